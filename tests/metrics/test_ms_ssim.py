"""MS-SSIM, against its definition and another program."""

import numpy as np
import pytest
import torch
from pytorch_msssim import ms_ssim as other_ms_ssim

from pggan.metrics.ms_ssim import MultiScaleSimilarity, ms_ssim


@pytest.fixture(scope="module")
def pair():
    """Two grey images [1, 1, 192, 192] that share a part, which is darker in the second one."""
    random = np.random.default_rng(0)
    coarse, noise = random.integers(0, 200, (12, 12)).repeat(16, 0).repeat(16, 1), random.normal(0, 20, (2, 192, 192))
    shared = (coarse, 0.7 * coarse)
    return tuple(torch.tensor((one + own).clip(0, 255))[None, None] for one, own in zip(shared, noise, strict=True))


def test_it_is_that_of_another_program_from_176_pixels_up(pair):
    """Of one channel: that program takes the product of scales per channel, the official code after their mean.

    Its window is in float32, with weights exact to 2^-24, as are the means: 255^2 2^-24 = 0.004 of variances near 400.
    """
    ours, theirs = ms_ssim(*pair), other_ms_ssim(*pair, data_range=255, size_average=False)
    assert 0.2 < float(ours) < 0.9
    assert float(ours) == pytest.approx(float(theirs), abs=1e-5)


def written_out(x, y):
    """Luminance and contrast of images [S, S] under each window: weighted means, variances and the covariance."""
    side = min(len(x), 11)
    line = np.exp(-((np.arange(side) - (side - 1) / 2) ** 2) / (2 * (1.5 * side / 11) ** 2))
    w = np.outer(line, line) / np.outer(line, line).sum()
    x, y = (np.lib.stride_tricks.sliding_window_view(one, (side, side)) for one in (x, y))
    mx, my, xx, yy, xy = ((w * one).sum((2, 3)) for one in (x, y, x * x, y * y, x * y))
    c1, c2 = 2.55**2, 7.65**2
    contrast = (2 * (xy - mx * my) + c2) / (xx - mx**2 + yy - my**2 + c2)
    return (2 * mx * my + c1) / (mx**2 + my**2 + c1), contrast


def test_scales_smaller_than_the_window_have_one_of_their_own_size():
    """Of 16, 8, 4, 2 and 1 pixels."""
    random = np.random.default_rng(2)
    x = random.uniform(0, 255, (16, 16))
    y = 0.7 * x + random.normal(0, 20, (16, 16))
    found, product = float(ms_ssim(*(torch.tensor(one)[None, None] for one in (x, y)))), 1.0
    for weight in (0.0448, 0.2856, 0.3001, 0.2363):
        contrast = written_out(x, y)[1].mean()
        assert 0.1 < contrast < 0.99
        product *= contrast**weight
        x, y = (one.reshape(len(one) // 2, 2, -1, 2).mean((1, 3)) for one in (x, y))
    luminance, contrast = written_out(x, y)  # of one pixel, which has no contrast
    assert found == pytest.approx(product * (luminance * contrast).item() ** 0.1333)
    assert 0.1 < found < 0.99


def test_pairs_are_neighbours_and_the_name_tells_scales_and_images(task_of, make_pyramid, tmp_path):
    task = task_of(None, make_pyramid(tmp_path / "data", images=7, resolution=16))
    metric = MultiScaleSimilarity(task, 5)
    images = torch.from_numpy(task.reals.read(range(4))).permute(0, 3, 1, 2)
    metric.pairs.add(images)
    values = metric.values()
    by_hand = [float(ms_ssim(*(images[n : n + 1].double() for n in (first, first + 1)))) for first in (0, 2)]
    assert values["ms_ssim@5scales-4"] == pytest.approx(sum(by_hand) / 2)
    assert values["ms_ssim_reals@5scales-4"] == values["ms_ssim@5scales-4"]
