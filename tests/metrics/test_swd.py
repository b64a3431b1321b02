"""The sliced Wasserstein distance, against direct computations and a worked example."""

import os
from types import SimpleNamespace

import numpy as np
import pytest

from pggan.metrics import swd
from pggan.metrics.images import RealImages, feed
from pggan.metrics.swd import PatchCollector, SlicedWasserstein


@pytest.mark.parametrize("side", [32, 16])
def test_every_level_is_the_definition_computed_directly(task_of, make_pyramid, tmp_path, side):
    """Images of 32x32 have a Laplacian level and the low-pass one."""
    pyramid = make_pyramid(tmp_path / "data", images=12, resolution=32)
    task = task_of(None, pyramid)
    sets = [RealImages(pyramid, 32, first) for first in (6, 0)]
    shown = [PatchCollector(6, task) for _ in sets]
    for images, collector in zip(sets, shown, strict=True):
        feed(images, [collector], task.partition, "")
    a, b = (descriptors(images, {32: detail, 16: halved}[side]) for images in sets)
    a, b = [(one - one.mean((0, 2))[:, None]) / one.std((0, 2))[:, None] for one in (a, b)]
    directions = swd.random_directions(147, side).double().numpy()
    sorted_a, sorted_b = (np.sort(one.reshape(-1, 147) @ directions, axis=0) for one in (a, b))
    direct = 1000 * np.abs(sorted_a - sorted_b).mean()
    assert direct > 50
    # The levels have whole numbers of 2^-14 up to 2^9, which float32 holds; so it rounds as at 16x16 alone.
    assert swd.distance(*shown, side) == pytest.approx(direct, abs=1000 * 147 * 2**-24)


def filtered(images):
    """Images [N, S, S, C] under the 5x5 binomial filter, mirrored at borders without repeating the edge."""
    line = np.array([1, 4, 6, 4, 1]) / 16
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), (1, 2))
    return (windows * np.outer(line, line)).sum((-2, -1))


def halved(images):
    return filtered(images)[:, ::2, ::2]


def detail(images):
    """What images have beyond the next level."""
    spread = np.zeros_like(images)
    spread[:, ::2, ::2] = halved(images)
    return images - 4 * filtered(spread)


def descriptors(reals, level=lambda images: images):
    """Patches [6 * 128, 3, 49] of a level of images 0 to 5 in blocks of 4, cut one by one."""
    found = []
    for block in (range(4), range(4, 6)):
        images = level(reals.read(block).astype(np.float64))
        corners = swd.corners_of(block.start, 4, images.shape[1])
        for number, image in enumerate(images):
            for y, x in corners[:, number].T.tolist():
                found.append(image[y : y + 7, x : x + 7].transpose(2, 0, 1).reshape(3, 49))
    return np.stack(found)


def test_equal_sets_have_no_distance_and_a_blank_generator_has_a_number(task_of, make_pyramid, tmp_path):
    pyramid = make_pyramid(tmp_path / "data", images=8, resolution=16)
    blank = SimpleNamespace(read=lambda indices: np.full((len(indices), 16, 16, 3), 90, np.uint8))  # it has collapsed
    for fakes, is_right in ((RealImages(pyramid, 16), lambda v: v == 0), (blank, lambda v: 100 < v < 2000)):
        task = task_of(fakes, pyramid)
        metric = SlicedWasserstein(task, 4)
        feed(task.fakes, [*task.collectors.values()], task.partition, "")
        assert is_right(metric.values()["swd/16@patches-4"])


def test_the_floor_compares_one_half_of_the_reals_with_the_other_half(task_of, make_pyramid, tmp_path):
    pyramid, open_files = make_pyramid(tmp_path / "data", images=16, resolution=16), len(os.listdir("/dev/fd"))
    task = task_of(None, pyramid)
    metric = SlicedWasserstein(task, 16)
    feed(task.fakes, [*task.collectors.values()], task.partition, "")
    halves = [PatchCollector(8, task) for _ in range(2)]
    for first, half in zip((0, 8), halves, strict=True):
        feed(RealImages(pyramid, 16, first), [half], task.partition, "")
    assert len(os.listdir("/dev/fd")) <= open_files + 1  # of the reals; stored patches keep none open
    assert metric.values()["swd_floor/16@patches-8"] == swd.distance(*halves, 16) > 50
