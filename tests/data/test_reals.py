"""Batches of real images against their definition."""

import numpy as np
import pytest
import torch

from pggan.core.rng import StepRng
from pggan.core.schedule import Schedule
from pggan.data.reals import RealBatches, epoch_order, indices_at
from pggan.performance.bench import phase_of
from tests.pyramids import write_pyramid

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


@pytest.mark.slow
def test_a_batch_is_as_defined(pyramid):
    """In order, in another order and again: the same bits."""
    stream = RealBatches(pyramid, 3, CPU, True, False)
    for images, phase in [*steps(), *reversed([*steps()])]:
        found = stream.batch(phase, StepRng(3, images, CPU)).images
        torch.testing.assert_close(found, defined_batch(pyramid, 3, images, phase), rtol=0, atol=1e-6)
        if phase.alpha == 1:
            assert torch.equal(found, defined_batch(pyramid, 3, images, phase))


def test_shares_of_several_streams_make_the_whole_batch(pyramid):
    """Strided and consecutive shares, over growth and epochs: an image depends on its position in the batch alone."""
    whole = RealBatches(pyramid, 1, CPU, True, True)
    shares = {
        "halves": [lambda batch, part=part: np.arange(batch).reshape(2, -1)[part] for part in range(2)],
        "strided": [lambda batch, part=part: np.arange(part, batch, 4) for part in range(4)],
    }
    for kind, parts in shares.items():
        streams = [RealBatches(pyramid, 1, CPU, True, True, indices=part) for part in parts]
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


def test_labels_belong_to_their_images(pyramid):
    stream = RealBatches(pyramid, 2, CPU, False, True)
    phase = phase_of(16, 10)
    batch = stream.batch(phase, StepRng(2, 40, CPU))
    indices = indices_at(2, 40, 10, 50)
    assert batch.labels.argmax(1).tolist() == pyramid.labels[indices].tolist()
    assert RealBatches(pyramid, 2, CPU, False, False).batch(phase, StepRng(2, 40, CPU))[1:] == (None, None)


def test_fakes_have_the_classes_of_all_images_though_the_set_is_sorted_by_class(tmp_path):
    images = np.zeros((60, 4, 4, 3), np.uint8)
    pyramid = write_pyramid(tmp_path / "set", images, {}, class_names=["a", "b"], labels=[0] * 40 + [1] * 20)
    batch = RealBatches(pyramid, 0, CPU, False, True).batch(phase_of(4, 300), StepRng(0, 0, CPU))
    assert 70 <= batch.fake_labels[:, 1].sum() <= 130  # 100, and four standard deviations
