"""A trained generator in Python: `pggan.load` loads it, and every command that draws images uses it.

N images, Z latent size, R resolution, C channels.
"""

from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from pggan.checkpoints.generator_file import LoadedGenerator, load_generator
from pggan.checkpoints.read import NEWEST, choose_checkpoint
from pggan.core.devices import choose_device
from pggan.core.errors import UserError, nearest
from pggan.sampling.generate import RenderSettings, render_each, seed_latents
from pggan.sampling.images import Pixels, to_pil
from pggan.sampling.latents import mean_features, parse_seeds
from pggan.sampling.projection import STEPS, Picture, Projection, project, read_target

Seeds = int | str | Iterable[int]  # seeds, such as 5, "0-63", "1,5,9-12" or [1, 5, 9]


class TrainedGenerator:
    """Images of a trained generator, from seeds or latents, at any resolution and alpha.

    On one machine, a seed or a latent always gives the same image, whatever other images the same call draws.

    Attributes: resolution, alpha: the stage that training had reached; images: the number of images shown in training;
    resolutions: all resolutions that the network has layers for; latent_size: Z; num_classes, class_names: 0 and empty
    without classes; network: the PyTorch module; loaded: the content of the generator's file.
    """

    def __init__(self, loaded: LoadedGenerator) -> None:
        self.loaded, self.network = loaded, loaded.network
        self.resolution, self.alpha, self.images = loaded.resolution, loaded.alpha, loaded.images
        self.class_names = loaded.class_names
        a = loaded.network.architecture
        self.latent_size, self.resolutions, self.num_classes = a.latent_size, a.resolutions, a.num_classes
        self._center = cache(partial(mean_features, self.network))  # the mean features of each class are computed once

    def latents(self, seeds: Seeds) -> Tensor:
        """The latents [N, Z], N(0, 1), of `seeds`, such as 5 or "0-63"; raises UserError for seeds of another form."""
        return seed_latents(parse_seeds(seeds), self.latent_size)

    def settings(
        self,
        *,
        resolution: int | None = None,
        alpha: float | None = None,
        truncation: float = 1.0,
        label: int | str | None = None,
    ) -> RenderSettings:
        """The settings for drawing images; raises UserError for a resolution or class that the generator does not have.

        Args: resolution, alpha: the stage, None for the stage that training had reached; truncation: below 1, images
        are pulled towards the average image; label: number or name of the class, None for the first class.
        """
        if resolution is not None and resolution not in self.resolutions:
            levels = ", ".join(map(str, self.resolutions))
            raise UserError(f"This generator has no level for resolution={resolution}.", f"Choose one of {levels}.")
        if alpha is None:
            alpha = self.alpha if resolution in (None, self.resolution) else 1.0
        if not 0 <= alpha <= 1:
            raise UserError(f"alpha={alpha} is out of range.", "Take a number from 0 (old layers) to 1 (new layers).")
        names = [*self.class_names, *map(str, range(self.num_classes))]
        name = names[0] if label is None and names else str(label)
        if label is not None and name not in names:
            remedy = f"{nearest(name, names)} It has {self.num_classes} classes." if names else "It has no classes."
            raise UserError(f"This generator has no class for label={label}.", remedy)
        number = names.index(name) % self.num_classes if names else None
        return RenderSettings(resolution or self.resolution, alpha, truncation, number)

    def sample(self, seeds: Seeds, **stage: Any) -> list[Image.Image]:
        """Draw one PIL picture for each seed; the other arguments are those of the method `settings`."""
        return [to_pil(image) for image in self.stream(self.latents(seeds), self.settings(**stage))]

    def render(self, latents: Tensor, **stage: Any) -> Pixels:
        """Draw images uint8 [N, R, R, C] of `latents` [N, Z]; other arguments are those of the method `settings`."""
        return np.stack(list(self.stream(latents, self.settings(**stage))))

    def stream(self, latents: Tensor, settings: RenderSettings) -> Iterator[Pixels]:
        """Yield the images uint8 [R, R, C] of `latents` [N, Z], one after the other."""
        center = None if settings.truncation == 1 else self._center(settings.label)
        return render_each(self.network, latents, settings, center)

    def project(self, picture: Picture, *, steps: int = STEPS, **stage: Any) -> Projection:
        """Find the latent whose image is nearest to `picture`, a file or a PIL image.

        Args: steps: number of steps of the optimiser; stage: keyword arguments for `settings`, such as resolution=64.
        Raises UserError if `picture` can't be read as an image, or is smaller than the generator's images.
        """
        settings = self.settings(**stage)
        target = read_target(picture, settings.resolution, self.network.architecture.channels)
        return project(self.network, target, settings, steps)


def load(run: str | Path, device: str = "auto", checkpoint: str | int = NEWEST) -> TrainedGenerator:
    """Load the averaged generator (EMA) of `run`: a run directory, one of its checkpoints, or a generator file.

    Args: device: auto (CUDA, else MPS, else CPU), cpu, cuda or mps; checkpoint: which checkpoint of a run directory to
    take: newest, best, or a number of images shown.
    Raises UserError when there is no valid generator, or no such device.
    """
    place = choose_checkpoint(str(run), checkpoint)
    return TrainedGenerator(load_generator(place, choose_device(device, "device")))
