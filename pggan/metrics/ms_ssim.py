"""Multi-scale structural similarity (Wang et al. 2003) of pairs of fakes (Karras et al. 2018, section 5).

SSIM's contrast term is averaged over pixels and channels at four scales; at the fifth scale, SSIM itself is averaged.
MS-SSIM is the product of these averages, each raised to its exponent in WEIGHTS.  As in the official code, at a
scale with S < 11 pixels a side, the Gaussian window has SxS pixels and sigma 1.5 S / 11.

If MS-SSIM of fakes is far above MS-SSIM of reals, the generator lacks variety.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.metrics import Metric, Task, label
from pggan.metrics.images import separable_filter

WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
WINDOW = 11
SIGMA = 1.5
RANGE = 255.0
K1, K2 = 0.01, 0.03


def gaussian(size: int) -> list[float]:
    """A one-dimensional Gaussian window of `size` weights with sum 1."""
    offsets = np.arange(size) - (size - 1) / 2
    weights = np.exp(-((offsets / (size * SIGMA / WINDOW)) ** 2) / 2)
    found: list[float] = (weights / weights.sum()).tolist()
    return found


def similarity(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """SSIM [N] and SSIM's contrast term [N] of pairs of images [N, C, S, S] in [0, 255]."""
    window = gaussian(min(WINDOW, x.shape[-1]))
    mean_x, mean_y = separable_filter(x, window), separable_filter(y, window)
    variance = separable_filter(x * x, window) - mean_x**2 + separable_filter(y * y, window) - mean_y**2
    covariance = separable_filter(x * y, window) - mean_x * mean_y
    c1, c2 = (K1 * RANGE) ** 2, (K2 * RANGE) ** 2
    contrast = (2 * covariance + c2) / (variance + c2)
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    return (luminance * contrast).mean((1, 2, 3)), contrast.mean((1, 2, 3))


def ms_ssim(x: Tensor, y: Tensor) -> Tensor:
    """MS-SSIM [N] of pairs of float64 images [N, C, R, R] in [0, 255]; float32 would lose digits of the variances."""
    product = torch.ones(len(x), dtype=x.dtype, device=x.device)
    for weight in WEIGHTS[:-1]:
        product = product * similarity(x, y)[1].clamp(min=0) ** weight
        x, y = F.avg_pool2d(x, 2), F.avg_pool2d(y, 2)
    return product * similarity(x, y)[0].clamp(min=0) ** WEIGHTS[-1]


def of_pairs(images: Tensor) -> Tensor:
    """MS-SSIM, float64 [N / 2], of the pairs (0, 1), (2, 3) … of `images`, uint8 [N, C, R, R]."""
    precise = (images if images.device.type == "cuda" else images.cpu()).double()  # Apple's GPUs have no float64.
    return ms_ssim(precise[0::2], precise[1::2])


class MultiScaleSimilarity(Metric):
    """The mean MS-SSIM of pairs of fakes and, for comparison, of pairs of reals."""

    paper_images = 20_000
    least_images = 2
    least_resolution = 16
    takes_more_fakes = True

    def __init__(self, task: Task, count: int) -> None:
        super().__init__(task, count - count % 2)
        self.pairs = task.of_fakes(of_pairs, self.count)

    def values(self) -> dict[str, float]:
        count, task = min(self.count, self.task.reals.pyramid.images // 2 * 2), self.task
        found = {label("ms_ssim", "5scales", self.count): float(self.pairs.rows().mean())}
        return found | {label("ms_ssim_reals", "5scales", count): float(task.of_reals(of_pairs, count).mean())}
