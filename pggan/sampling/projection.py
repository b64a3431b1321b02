"""Finds the latent [Z] whose image is nearest to a target image (GAN inversion)."""

from collections.abc import Callable, Iterator
from collections.abc import Generator as Yielding
from dataclasses import dataclass
from io import BytesIO
from math import cos, log10, pi
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from pggan.core.errors import UserError
from pggan.core.rng import generator_for
from pggan.data.image_file import BadImage, ImageFile, load_image
from pggan.data.reals import to_float
from pggan.networks.layers import ComputeOptions, use_options
from pggan.networks.networks import Generator
from pggan.ops.elementwise import downsample, upsample
from pggan.sampling.files import tracked
from pggan.sampling.generate import RenderSettings, draw, one_hot, seed_latents
from pggan.sampling.images import Pixels
from pggan.sampling.latents import on_sphere

Picture = str | Path | Image.Image | bytes  # `str` is a path, and `bytes` is the content of an image file.
Measure = Callable[[Tensor], Tensor]  # maps latents [N, Z] to the distances [N] of their images from the target

STEPS = 300
STARTS, CANDIDATES = 4, 1024  # Adam starts from the 4 of 1024 seeds whose images are nearest to the target.
LEARNING_RATE = 0.1
NOISE = 0.3  # The standard deviation of noise on latents falls from this value to 0 in the first half of all steps.
ROUNDS = 128  # The images of all 1024 seeds are compared with the target in this many batches.


@dataclass(frozen=True)
class Projection:
    """A latent [Z], its image uint8 [R, R, C], and the PSNR in dB between this image and the target (inf if equal)."""

    latent: Tensor
    image: Pixels
    psnr: float


def project(network: Generator, target: Pixels, settings: RenderSettings, steps: int = STEPS) -> Projection:
    """Find the latent whose image is nearest to `target` uint8 [R, R, C], where R is settings.resolution."""
    *_, best = tracked(search(network, target, settings, steps), ROUNDS + steps, "Projecting")
    image = draw(network, best[None], settings)[0]
    error = float(np.square(image.astype(np.float64) - target).mean())
    return Projection(best.cpu(), image, 10 * log10(255**2 / error) if error else float("inf"))


def search(network: Generator, target: Pixels, settings: RenderSettings, steps: int) -> Yielding[Tensor, None, None]:
    """Find the latent with the image nearest to `target`; yields the best latent [Z] after each batch of seeds or step.

    Adam optimises several latents at once on the sphere of radius sqrt(Z); noise helps latents out of local minima.
    StyleGAN2's projector (Karras et al. 2020, appendix D) optimises the mapped latent w, and compares images by LPIPS.
    """
    device = network.weights[0].device
    goal = to_float(torch.tensor(target, device=device)[None])

    def measure(latents: Tensor) -> Tensor:
        labels = one_hot(network, settings.label, len(latents))
        images = network(latents, labels, settings.resolution, settings.alpha)
        return laplacian_distance(images, goal.expand(len(latents), *goal.shape[1:]))

    seeds = on_sphere(seed_latents(list(range(CANDIDATES)), network.architecture.latent_size).to(device))
    distances = torch.empty(0, device=device)
    with use_options(network, ComputeOptions()):  # Weights are scaled (equalized learning rate) once for all steps.
        for batch in seeds.chunk(ROUNDS):
            with torch.no_grad():
                distances = torch.cat([distances, measure(batch)])
            yield seeds[distances.argmin()]
        yield from optimise(measure, seeds[distances.topk(STARTS, largest=False).indices], steps)


def optimise(measure: Measure, latents: Tensor, steps: int) -> Iterator[Tensor]:
    """Minimise the function `measure` by Adam, from S `latents` [S, Z]; yields the best latent [Z] after each step."""
    latents = latents.clone().requires_grad_()
    optimizer = torch.optim.Adam([latents], betas=(0.9, 0.99))
    random = generator_for(0, "projection", 0)
    for step in range(steps):
        done = step / steps
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 + cos(pi * done)) / 2
        deviation = NOISE * max(1 - 2 * done, 0) ** 2
        noise = torch.randn(latents.shape, generator=random).to(latents.device)
        distances = measure(latents + deviation * noise)
        optimizer.zero_grad()
        distances.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            latents.copy_(on_sphere(latents))
            if step + 1 == steps:
                distances = measure(latents)
        yield latents.detach()[distances.argmin()].clone()


def laplacian_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the distances [N] between images `a` and `b` [N, C, R, R] by their Laplacian pyramids.

    A distance is the sum of all levels' mean absolute differences.  Source: Lap1 of Bojanowski et al. 2018, section 3.
    """
    difference, levels = a - b, []
    while difference.shape[-1] > 1:
        smaller = downsample(difference)
        levels.append(difference - upsample(smaller))
        difference = smaller
    return torch.stack([level.abs().flatten(1).mean(1) for level in [*levels, difference]]).sum(0)


def read_target(picture: Picture, resolution: int, channels: int) -> Pixels:
    """Crop and shrink a picture to uint8 [R, R, C]; raises UserError if the picture is damaged or too small."""
    what, path, content = "The picture", Path("picture"), BytesIO()
    if isinstance(picture, Image.Image):
        upright = ImageOps.exif_transpose(picture)
        if upright.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I;16B"):  # a PNG can't hold other modes
            wanted = "I;16" if upright.mode[0] == "I" else "RGBA" if upright.has_transparency_data else "RGB"
            upright = upright.convert(wanted)
        upright.save(content, "PNG")
    elif isinstance(picture, bytes):
        content = BytesIO(picture)
    else:
        what, path = f"image={picture}", Path(picture)
    file = ImageFile(path, lambda: path.open("rb") if isinstance(picture, str | Path) else content)
    try:
        return load_image(file, resolution, channels, "center")[0]
    except BadImage as error:
        remedy = f"Give a PNG, JPEG, WebP or AVIF image from {resolution}x{resolution} pixels to 64 megapixels."
        raise UserError(f"{what} can't be projected: {error}.", remedy) from error
