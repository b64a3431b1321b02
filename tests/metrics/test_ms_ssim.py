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
    """Luminance and contrast of images [S, S] that one window covers: weighted means, variances and the covariance."""
    side = len(x)
    line = np.exp(-((np.arange(side) - (side - 1) / 2) ** 2) / (2 * (1.5 * side / 11) ** 2))
    w = np.outer(line, line) / np.outer(line, line).sum()
    mx, my = (w * x).sum(), (w * y).sum()
    vx, vy, cov = (w * (x - mx) ** 2).sum(), (w * (y - my) ** 2).sum(), (w * (x - mx) * (y - my)).sum()
    c1, c2 = 2.55**2, 7.65**2
    return (2 * mx * my + c1) / (mx**2 + my**2 + c1), (2 * cov + c2) / (vx + vy + c2)


@pytest.mark.parametrize("side", [8, 4])
def test_fewer_scales_have_the_weights_of_the_first_ones_scaled_to_the_same_sum(side):
    """One window covers each scale: of 8, 4, 2 and 1 pixels, or of the last three."""
    random = np.random.default_rng(2)
    x = random.uniform(0, 255, (side, side))
    y = 0.7 * x + random.normal(0, 20, (side, side))
    found = float(ms_ssim(*(torch.tensor(one)[None, None] for one in (x, y))))
    weights = {8: [0.0448, 0.2856, 0.3001, 0.2363], 4: [0.0448, 0.2856, 0.3001]}[side]
    scaled = [weight * 1.0001 / sum(weights) for weight in weights]  # the five add up to 1.0001
    product = 1.0
    for weight in scaled[:-1]:
        contrast = written_out(x, y)[1]
        assert 0.1 < contrast < 0.99
        product *= contrast**weight
        x, y = (one.reshape(len(one) // 2, 2, -1, 2).mean((1, 3)) for one in (x, y))
    assert x.shape == (1, 1)
    luminance, contrast = written_out(x, y)  # of one pixel, which has no contrast
    assert contrast == 1
    assert found == pytest.approx(product * luminance ** scaled[-1])
    assert 0.1 < found < 0.99


def test_pairs_are_neighbours_and_the_name_tells_scales_and_images(task_of, make_pyramid, tmp_path):
    task = task_of(None, make_pyramid(tmp_path / "data", images=7, resolution=8))
    metric = MultiScaleSimilarity(task, 5)
    images = torch.from_numpy(task.reals.read(range(4))).permute(0, 3, 1, 2)
    metric.pairs.add(images)
    values = metric.values()
    by_hand = [float(ms_ssim(*(images[n : n + 1].double() for n in (first, first + 1)))) for first in (0, 2)]
    assert values["ms_ssim@4scales-4"] == pytest.approx(sum(by_hand) / 2)
    assert values["ms_ssim_reals@4scales-4"] == values["ms_ssim@4scales-4"]
