"""Stored bytes to floats against their definition, in pieces of any size."""

import pytest
import torch

from pggan.data.stream.to_float import FloatMaker, mirrored

CPU = torch.device("cpu")


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("side", [4, 32])
def test_exactly_the_chosen_images_are_mirrored(channels, side):
    images = torch.randint(0, 256, (5, side, side, channels), dtype=torch.uint8)
    flip = torch.tensor([True, False, True, True, False])
    found = mirrored(images, flip)
    for image, chosen, original in zip(found, flip, images, strict=True):
        assert torch.equal(image, original.flip(1) if chosen else original)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(5, 4, 4, 1), (40, 32, 32, 3), (3, 128, 128, 3), (2, 256, 256, 4), (1, 512, 512, 3)])
def test_floats_are_the_same_in_pieces_of_any_size(shape, threads, monkeypatch):
    """Several images to a piece, an image of several pieces, and of several tasks: dividing, then subtracting."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    maker = FloatMaker(CPU)
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    images.view(-1)[:256] = torch.arange(256)[: images.numel()]
    plain = images.permute(0, 3, 1, 2).float() / 127.5 - 1
    for flip in (None, torch.arange(len(images)) % 3 == 1, torch.ones(len(images), dtype=torch.bool)):
        found = maker.make(images, flip)
        for number, image in enumerate(plain):
            assert torch.equal(found[number], image if flip is None or not flip[number] else image.flip(2))
        assert found.is_contiguous(memory_format=torch.channels_last)


def test_a_gpu_makes_the_same_floats_in_memory_of_their_own():
    """Its way, gone on the CPU: whole batches at once, and none overwritten, because a step may still read it."""
    images = torch.randint(0, 256, (6, 32, 32, 3), dtype=torch.uint8)
    for flip in (None, torch.arange(6) % 2 == 0):
        maker = FloatMaker(torch.device("cuda"))
        found = maker.make(images, flip)
        assert torch.equal(found, FloatMaker(CPU).make(images, flip))
        assert maker.make(images, flip).data_ptr() != found.data_ptr()


def test_floats_go_where_the_last_ones_were():
    maker, images = FloatMaker(CPU), torch.zeros(2, 8, 8, 3, dtype=torch.uint8)
    first = maker.make(images, None)
    assert maker.make(images + 255, None).data_ptr() == first.data_ptr()
    assert first.unique().tolist() == [1.0]
