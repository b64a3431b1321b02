"""How evenly films of `pggan interpolate` move: `python -m benchmarks.smoothness --run pretrained:avatars64`.

Of each path, at equal times and at constant perceptual speed: the largest step between neighbouring frames over the
median one, the larger of several films.  Steps are measured by the distance that sets the speed (Laplacian pyramid),
and by two that do not: the root mean square difference of pixels, and 1 - SSIM (Wang et al. 2004, windows of 7x7).
"""

import argparse
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.reporting import report
from pggan.cli.compose import compose
from pggan.config import InterpolateConfig
from pggan.core.validation import validated
from pggan.sampling.interpolate import latents_of_path
from pggan.sampling.perceptual import laplacian_distance
from pggan.sampling.trained_generator import TrainedGenerator, load

WINDOW = 7  # pixels


def dissimilarity(a: Tensor, b: Tensor) -> Tensor:
    """1 - SSIM of images [1, C, R, R] in [0, 1]."""

    def mean(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, WINDOW, stride=1)

    mean_a, mean_b = mean(a), mean(b)
    variance_a, variance_b = mean(a * a) - mean_a**2, mean(b * b) - mean_b**2
    covariance = mean(a * b) - mean_a * mean_b
    brightness = (2 * mean_a * mean_b + 0.01**2) / (mean_a**2 + mean_b**2 + 0.01**2)
    structure = (2 * covariance + 0.03**2) / (variance_a + variance_b + 0.03**2)
    return 1 - (brightness * structure).mean()


DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "laplacian": laplacian_distance,
    "pixels": lambda a, b: (a - b).square().mean().sqrt(),
    "1 - ssim": dissimilarity,
}


def unevenness(faces: TrainedGenerator, words: list[str]) -> dict[str, float]:
    """The largest step over the median one, by each distance, of the film that `words` ask for."""
    config = validated(InterpolateConfig, compose("interpolate", ["run=x", *words]))
    settings = faces.settings()
    latents = latents_of_path(config, 0, faces, settings)(torch.arange(config.frames))
    images = [torch.from_numpy(image).permute(2, 0, 1)[None] / 255 for image in faces.stream(latents, settings)]
    if config.path.value in ("loop", "walk"):
        images.append(images[0])
    found = {}
    for name, distance in DISTANCES.items():
        steps = torch.stack([distance(before, after).squeeze() for before, after in pairwise(images)])
        found[name] = float(steps.max() / steps.median())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="pretrained:avatars64")
    parser.add_argument("--frames", type=int, default=120)
    parser.add_argument("--seeds", nargs="+", default=["0-4", "10-14"], help="one film of each; walks take the first")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    faces = load(arguments.run, "cpu")
    films = {}
    for path in ("lerp", "slerp", "loop", "walk"):
        for constant in (False, True):
            words = [f"path={path}", f"frames={arguments.frames}", f"constant_speed={constant}"]
            found = [unevenness(faces, [*words, f"seeds={seeds}"]) for seeds in arguments.seeds]
            name = f"{path}, {'constant speed' if constant else 'equal times'}"
            films[name] = {one: round(max(film[one] for film in found), 2) for one in DISTANCES}
            print(name, films[name], flush=True)
    report({"run": arguments.run, "frames": arguments.frames, "seeds": arguments.seeds, "films": films}, arguments.out)


if __name__ == "__main__":
    main()
