"""Batches of real images against their definition, from every place that they can come from."""

import contextlib
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from pggan.bench.steps import phase_of
from pggan.core.rng import StepRng
from pggan.core.schedule import Schedule
from pggan.data.format.pyramid import ImagePyramid
from pggan.data.stream.loader import CPU_BUDGET_BYTES, Loader, Request, budget_bytes
from pggan.data.stream.reals import RealStream, epoch_order, indices_at
from pggan.data.stream.to_float import FloatMaker, mirrored

CPU = torch.device("cpu")
SCHEDULE = Schedule(
    first_resolution=4,
    final_resolution=16,
    stable_images={4: 60},
    fade_images={8: 60},
    batch={4: 12, 16: 8},
    learning_rate_g={4: 0.1},
    learning_rate_d={4: 0.1},
)


@pytest.fixture(scope="module")
def pyramid(make_pyramid, tmp_path_factory):
    return make_pyramid(tmp_path_factory.mktemp("reals") / "set", classes=3, images=50)


def defined_batch(pyramid, seed, images, phase):
    """One image at a time, with plain arithmetic."""
    rng, batch = StepRng(seed, images, CPU), []
    flips = rng.uniform("mirror", phase.batch, 1, 1, 1).flatten()
    for position in range(phase.batch):
        epoch, place = divmod(images + position, pyramid.images)
        index = epoch_order(seed, epoch, pyramid.images)[place]
        pixels = torch.from_numpy(pyramid.read(phase.resolution, np.array([index]))[0].copy()).permute(2, 0, 1)
        image = pixels.float() / 127.5 - 1
        if flips[position] < 0.5:
            image = image.flip(2)
        if phase.alpha < 1:
            small = torch.nn.functional.avg_pool2d(image, 2)
            image = torch.lerp(small.repeat_interleave(2, 1).repeat_interleave(2, 2), image, phase.alpha)
        batch.append(image)
    return torch.stack(batch)


def steps():
    images = 0
    while images < SCHEDULE.total:
        phase = SCHEDULE.at(images)
        yield images, phase
        images += phase.batch


@pytest.mark.parametrize("budget", [0, 10_000, 10**9])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_batch_is_as_defined_wherever_it_comes_from(pyramid, budget, ahead):
    stream = RealStream(pyramid, 3, CPU, True, False, budget=budget, phase_at=SCHEDULE.at if ahead else None)
    for images, phase in steps():
        found = stream.batch(phase, StepRng(3, images, CPU)).images
        torch.testing.assert_close(found, defined_batch(pyramid, 3, images, phase), rtol=0, atol=1e-6)
        if phase.alpha == 1:
            assert torch.equal(found, defined_batch(pyramid, 3, images, phase))


def test_batches_do_not_depend_on_history(pyramid):
    """In order, in another order and again, with reading ahead that is right or wrong: the same bits."""
    stream = RealStream(pyramid, 0, CPU, True, True, budget=0, phase_at=SCHEDULE.at)
    first = {}
    for images, phase in steps():
        batch = stream.batch(phase, StepRng(0, images, CPU))
        first[images] = batch._replace(images=batch.images.clone())
    fresh = RealStream(pyramid, 0, CPU, True, True, budget=10**9)
    for images, phase in reversed(list(steps())):
        for source in (stream, fresh):
            again = source.batch(phase, StepRng(0, images, CPU))
            assert torch.equal(again.images, first[images].images)
            assert torch.equal(again.labels, first[images].labels)
            assert torch.equal(again.fake_labels, first[images].fake_labels)


@pytest.mark.parametrize("budget", [0, 10**9])
def test_shares_of_several_streams_make_the_whole_batch(pyramid, budget):
    """Strided and consecutive shares, over growth and epochs: an image depends on its position in the batch alone."""
    whole = RealStream(pyramid, 1, CPU, True, True)
    shares = {
        "halves": [lambda batch, part=part: np.arange(batch).reshape(2, -1)[part] for part in range(2)],
        "strided": [lambda batch, part=part: slice(part, batch, 4) for part in range(4)],
    }
    for kind, parts in shares.items():
        streams = [
            RealStream(pyramid, 1, CPU, True, True, budget=budget, phase_at=SCHEDULE.at, share=part) for part in parts
        ]
        for images, phase in steps():
            expected = whole.batch(phase, StepRng(1, images, CPU))
            for stream, part in zip(streams, parts, strict=True):
                found, positions = stream.batch(phase, StepRng(1, images, CPU)), part(phase.batch)
                assert torch.equal(found.images, expected.images[positions]), kind
                assert torch.equal(found.labels, expected.labels[positions])
                assert torch.equal(found.fake_labels, expected.fake_labels[positions])


def test_every_image_is_shown_once_per_epoch_in_an_order_of_its_own():
    shown = [indices_at(7, images, 8, 50) for images in range(0, 400, 8)]
    epochs = np.concatenate(shown).reshape(-1, 50)
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)
    assert not np.array_equal(indices_at(7, 0, 50, 50), indices_at(8, 0, 50, 50))


def test_a_batch_larger_than_the_data_reaches_over_epochs():
    found = indices_at(0, 5, 20, 3)
    expected = [epoch_order(0, position // 3, 3)[position % 3] for position in range(5, 25)]
    assert found.tolist() == expected


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


def test_labels_belong_to_their_images(pyramid):
    stream = RealStream(pyramid, 2, CPU, False, True)
    phase = phase_of(16, 10)
    batch = stream.batch(phase, StepRng(2, 40, CPU))
    indices = indices_at(2, 40, 10, 50)
    assert batch.labels.argmax(1).tolist() == pyramid.labels[indices].tolist()
    unlabelled = RealStream(pyramid, 2, CPU, False, False).batch(phase, StepRng(2, 40, CPU))
    assert (unlabelled.labels, unlabelled.fake_labels) == (None, None)


# ---- the loader


def test_a_level_lives_on_the_device_when_it_fits_the_budget(pyramid, monkeypatch):
    loader = Loader(pyramid, CPU, budget=pyramid.level_bytes(8))
    assert [loader.fits(level) for level in (4, 8, 16)] == [True, True, False]
    request = Request(8, np.array([4, 9, 4]))
    expected = pyramid.read(8, request.indices)
    assert np.array_equal(loader.get(request).numpy(), expected)
    monkeypatch.setattr(pyramid, "read", None)  # it is never read again
    assert np.array_equal(loader.get(request).numpy(), expected)


def test_what_is_read_ahead_is_not_read_again_and_what_was_not_asked_for_is_dropped(pyramid, monkeypatch):
    reads, read = [], ImagePyramid.read

    def noting(self, resolution, indices, out=None):
        reads.append((threading.current_thread() is threading.main_thread(), indices.tolist()))
        return read(self, resolution, indices, out)

    monkeypatch.setattr(ImagePyramid, "read", noting)
    loader = Loader(pyramid, CPU, budget=0)
    loader.read_ahead(Request(16, np.array([1, 2])))
    assert np.array_equal(loader.get(Request(16, np.array([1, 2]))).numpy(), read(pyramid, 16, np.array([1, 2])))
    loader.read_ahead(Request(16, np.array([3, 4])))
    assert np.array_equal(loader.get(Request(8, np.array([5]))).numpy(), read(pyramid, 8, np.array([5])))
    assert reads == [(False, [1, 2]), (False, [3, 4]), (False, [5])]


def test_two_buffers_take_turns(pyramid):
    loader = Loader(pyramid, CPU, budget=0)
    places = [loader.get(Request(16, np.array([number, 0]))).data_ptr() for number in range(6)]
    assert len(set(places)) == 2
    assert places[0] != places[1]
    assert places[::2] == places[:1] * 3


def test_large_batches_are_read_in_parts_without_a_gap(make_pyramid, tmp_path, monkeypatch):
    monkeypatch.setattr("pggan.data.stream.loader.LEAST_BYTES_PER_READER", 1000)
    pyramid = make_pyramid(tmp_path / "set", images=20)
    indices = np.random.default_rng(0).permutation(20)[:17]
    found = Loader(pyramid, CPU, budget=0).get(Request(16, indices)).numpy()
    assert np.array_equal(found, pyramid.read(16, indices))


def test_an_error_while_reading_ahead_reaches_the_training(pyramid, monkeypatch):
    loader = Loader(pyramid, CPU, budget=0)
    loader.read_ahead(Request(16, np.array([99])))
    with pytest.raises(IndexError):
        loader.get(Request(16, np.array([99])))


def test_on_a_gpu_copies_are_waited_for_and_buffers_are_not_overwritten_early(pyramid, monkeypatch):
    """The order of events on a CUDA device, with stand-ins for its streams."""
    log = []

    class Event:
        def __init__(self, number):
            self.number = number

        def synchronize(self):
            log.append(f"buffer {self.number} copied")

    class Stream:
        events = 0

        def record_event(self):
            self.events += 1
            return Event(self.events)

        def wait_event(self, event):
            log.append(f"step waits for {event.number}")

    current, empty = Stream(), torch.empty
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext(log.append("on the copy stream")))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda images, stream: log.append(stream is current))
    monkeypatch.setattr(
        torch, "empty", lambda shape, dtype, pin_memory: log.append(pin_memory) or empty(shape, dtype=dtype)
    )
    loader = Loader(pyramid, CPU, budget=0)
    loader._stream = Stream()
    requests = [Request(16, np.array([number, 0])) for number in range(3)]
    for request in requests:
        assert np.array_equal(loader.get(request).numpy(), pyramid.read(16, request.indices))
    pinned = [
        True,
        "on the copy stream",
        "step waits for 1",
        True,
        True,
        "on the copy stream",
        "step waits for 2",
        True,
    ]
    assert log == [*pinned, "buffer 1 copied", "on the copy stream", "step waits for 3", True]


def test_no_thread_outlives_the_stream(pyramid):
    before = set(threading.enumerate())
    stream = RealStream(pyramid, 0, CPU, True, False, budget=0, phase_at=lambda images: replace(phase, batch=4))
    phase = phase_of(16, 4)
    for step in range(3):
        stream.batch(phase, StepRng(0, 4 * step, CPU))
    new = set(threading.enumerate()) - before
    assert new
    del stream
    for thread in new:
        thread.join(10)
        assert not thread.is_alive()


def test_the_budget_is_in_mebibytes_or_a_share_of_what_is_there(monkeypatch):
    assert budget_bytes(3, CPU) == 3 * 2**20
    assert budget_bytes(0, CPU) == 0
    assert budget_bytes(None, CPU) == CPU_BUDGET_BYTES
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 * 2**30, 90 * 2**30))
    assert budget_bytes(None, torch.device("cuda")) == 20 * 2**30
