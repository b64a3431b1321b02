"""Kernel inception distance of a generator's images to a data set: `python -m benchmarks.kid RUN DATA`.

The squared maximum mean discrepancy of image features under the kernel (x . y / d + 1)^3, unbiased, times 1000.
Lower is better; two halves of the same data give about 0.  Source: Binkowski et al. 2018, section 4.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.efficientnet_lite0 import EfficientNetLite0, load_extractor
from pggan.data.format.pyramid import ImagePyramid
from pggan.sampling.images import Pixels
from pggan.sampling.trained_generator import load

FIRST_SEED = 10_000  # not among the faces that people look at
CHUNK = 64


def features_of(images: Pixels, extractor: EfficientNetLite0) -> Tensor:
    """Features float64 [N, 1280] of uint8 [N, R, R, C]; grey images are taken as colour."""
    found = []
    for start in range(0, len(images), CHUNK):
        chunk = torch.from_numpy(images[start : start + CHUNK]).permute(0, 3, 1, 2).float()
        found.append(extractor(chunk.expand(-1, 3, -1, -1)))
    return torch.cat(found).double()


def kernel_distance(x: Tensor, y: Tensor) -> float:
    """KID x 1000 between features [N, F] and [M, F]."""

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b.T / a.shape[1] + 1) ** 3

    def mean_off_diagonal(k: Tensor) -> Tensor:
        count = len(k)
        return (k.sum() - k.diagonal().sum()) / (count * (count - 1))

    return 1000 * float(mean_off_diagonal(kernel(x, x)) + mean_off_diagonal(kernel(y, y)) - 2 * kernel(x, y).mean())


def measure(run: str, data: str, count: int) -> dict[str, object]:
    """KID of `count` generated against `count` real images, and of real against other real ones."""
    extractor = load_extractor()
    generator = load(run, "cpu")
    fakes = generator.render(generator.latents(range(FIRST_SEED, FIRST_SEED + count)))
    pyramid = ImagePyramid(Path(data))
    shuffled = np.random.default_rng(0).permutation(pyramid.images)
    reals = features_of(pyramid.read(generator.resolution, shuffled[:count]), extractor)
    others = features_of(pyramid.read(generator.resolution, shuffled[count : 2 * count]), extractor)
    return {
        "run": run,
        "images_shown": generator.images,
        "resolution": generator.resolution,
        "images_compared": count,
        "kid@efficientnet-lite0": kernel_distance(features_of(fakes, extractor), reals),
        "kid@efficientnet-lite0 real against real": kernel_distance(others, reals),
    }


def main() -> None:
    """Print the distance as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="a run directory, a checkpoint or a generator.safetensors")
    parser.add_argument("data", help="the pyramid to compare with")
    parser.add_argument("--images", type=int, default=512, help="images on each side (default: 512)")
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.run, arguments.data, arguments.images), indent=1))


if __name__ == "__main__":
    main()
