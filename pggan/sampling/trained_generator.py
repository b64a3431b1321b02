"""`pggan.load` and the class TrainedGenerator (N images, Z latent size, R resolution, C channels)."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from io import BytesIO
from itertools import pairwise
from math import ceil, sqrt
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pggan.checkpoints.generator_file import LoadedGenerator, load_generator
from pggan.checkpoints.read import NEWEST, choose_checkpoint
from pggan.core.devices import choose_device
from pggan.core.errors import UserError, nearest, require
from pggan.sampling.files import ANIMATED, check_output, film_zoom, save_film, sheet, sheet_zoom
from pggan.sampling.generate import RenderSettings, render_each, seed_latents
from pggan.sampling.images import Pixels, to_pil
from pggan.sampling.latents import mean_features, parse_seeds, path_through, principal_directions
from pggan.sampling.marks import mark_line
from pggan.sampling.projection import STEPS, Picture, Projection, laplacian_distance, project, read_target

COMPARE = "pggan.metrics.command:compare"  # imported inside `evaluate`, because `pggan.metrics` imports this module
PATHS = ("slerp", "lerp", "loop")
Seeds = int | str | Iterable[int]  # seeds, such as 5, "0-63", "1,5,9-12" or [1, 5, 9]


class Pictures(list[Image.Image]):
    """A list of PIL pictures of one size, which a notebook shows as one sheet."""

    def grid(self, columns: int | None = None) -> Image.Image:
        """Arrange all pictures on one sheet, enlarged for a screen; without `columns`, the sheet is about square."""
        side = ceil(sqrt(len(self)))
        columns = columns or min(range(side, 2 * side + 1), key=lambda each: -len(self) % each)  # fewest empty places
        images = [np.asarray(picture).reshape(picture.height, picture.width, -1) for picture in self]
        return to_pil(sheet(images, columns, sheet_zoom(self[0].width, columns)))

    def _repr_png_(self) -> bytes | None:
        content = BytesIO()
        self.grid().save(content, "PNG")
        return content.getvalue()


@dataclass(frozen=True)
class Film:
    """A film in the file `path`, which a notebook can play."""

    path: Path

    def _repr_html_(self) -> str:
        kind, data = self.path.suffix[1:].lower(), b64encode(self.path.read_bytes()).decode()
        if kind == "mp4":
            return f'<video src="data:video/mp4;base64,{data}" autoplay controls loop muted></video>'
        return f'<img src="data:image/{kind};base64,{data}">'


class TrainedGenerator:
    """A trained generator, which draws images; on one machine, a seed or a latent always gives the same image.

    Attributes: resolution, alpha (fade-in weight of the newest layers): the defaults for drawing; images: number
    of images shown in training; resolutions: all that the network can draw; latent_size: Z; num_classes, class_names:
    0 and empty without classes; network: the PyTorch module; loaded: the content of the generator's file.
    """

    def __init__(self, loaded: LoadedGenerator) -> None:
        self.loaded, self.network = loaded, loaded.network
        self.resolution, self.alpha, self.images = loaded.resolution, loaded.alpha, loaded.images
        self.class_names = loaded.class_names
        a = loaded.network.architecture
        self.latent_size, self.resolutions, self.num_classes = a.latent_size, a.resolutions, a.num_classes
        self._center = cache(partial(mean_features, self.network))  # returns the cached mean features of a class

    def latents(self, seeds: Seeds) -> Tensor:
        """Draw latents [N, Z] from N(0, 1) for `seeds`, such as 5 or "0-63"; raises UserError for invalid seeds."""
        return seed_latents(parse_seeds(seeds), self.latent_size)

    def settings(
        self,
        *,
        resolution: int | None = None,
        alpha: float | None = None,
        truncation: float = 1.0,
        label: int | str | None = None,
    ) -> RenderSettings:
        """Return settings for drawing images; raises UserError for a resolution or class that the generator lacks.

        Args: truncation: below 1, images are pulled towards the average image; label: the class, by default the
        first class; an int is the number of a class, and a str is a name or, if no class has this name, a number.
        """
        if resolution is not None and resolution not in self.resolutions:
            levels = ", ".join(map(str, self.resolutions))
            raise UserError(f"This generator can't draw resolution={resolution}.", f"Choose one of {levels}.")
        require(abs(truncation) <= 10, "truncation", truncation, "a number from -10 to 10")
        if alpha is None:
            alpha = self.alpha if resolution in (None, self.resolution) else 1.0
        if not 0 <= alpha <= 1:
            raise UserError(f"alpha={alpha} is out of range.", "Give a fade-in weight from 0 to 1.")
        numbers = [*map(str, range(self.num_classes))]
        names = [*self.class_names, *numbers] if isinstance(label, str) else numbers
        name = names[0] if label is None and names else str(label)
        if label is not None and name not in names:
            remedy = f"{nearest(name, names)} It has {self.num_classes} classes." if names else "It has no classes."
            raise UserError(f"This generator has no class for label={label}.", remedy)
        number = names.index(name) % self.num_classes if names else None
        return RenderSettings(resolution or self.resolution, alpha, truncation, number)

    def sample(self, seeds: Seeds, **options: Any) -> Pictures:
        """Draw one PIL picture per seed; `options` are arguments of the method `settings`, such as resolution=64."""
        return self.draw(self.latents(seeds), **options)

    def draw(self, latents: Tensor, **options: Any) -> Pictures:
        """Draw one PIL picture for each of `latents` [N, Z]; `options` are arguments of the method `settings`."""
        return Pictures(map(to_pil, self.stream(latents, self.settings(**options))))

    def grid(self, seeds: Seeds = "0-15", columns: int | None = None, **options: Any) -> Image.Image:
        """Draw the images of `seeds` on one sheet; `options` are arguments of the method `settings`."""
        return self.sample(seeds, **options).grid(columns)

    def path(self, seeds: Seeds, kind: str, frames: int, settings: RenderSettings | None = None) -> Tensor:
        """Return latents [`frames`, Z] on a path through `seeds`; given `settings`, images change at constant speed."""
        require(kind in PATHS and frames >= 2, "path, frames", f"{kind}, {frames}", f"one of {PATHS}, and at least 2")
        distances = None if settings is None else partial(self.visible_steps, settings)
        return path_through(self.latents(seeds), kind, frames, distances)

    def visible_steps(self, settings: RenderSettings, latents: Tensor) -> Tensor:
        """Return the distances [N - 1] (see `laplacian_distance`) between the images of successive `latents` [N, Z]."""
        images = (torch.from_numpy(image).permute(2, 0, 1)[None] / 127.5 for image in self.stream(latents, settings))
        return torch.cat([laplacian_distance(before, after) for before, after in pairwise(images)])

    def interpolate(self, seeds: Seeds, frames: int = 9, path: str = "slerp", **options: Any) -> Pictures:
        """Draw the frames of a path (slerp, lerp or loop) through `seeds`; `options` are arguments of `settings`."""
        return self.draw(self.path(seeds, path, frames), **options)

    def film(
        self, out: str | Path, seeds: Seeds, frames: int = 180, path: str = "loop", fps: int = 30, **options: Any
    ) -> Film:
        """Write a film (.mp4, .webp or .gif) of a path through `seeds`, on which images change at constant speed."""
        place, settings = check_output(str(out), ANIMATED), self.settings(**options)
        latents = self.path(seeds, path, frames, settings)
        shown = (sheet([image], 1, film_zoom(settings.resolution)) for image in self.stream(latents, settings))
        save_film(shown, frames, fps, place, mark_line(True, self.loaded.path, f"seeds={seeds}"))
        return Film(place)

    def directions(self, count: int = 8, label: int | str | None = None) -> Tensor:
        """Return K = `count` unit vectors [K, Z], along which images change the most; the strongest come first."""
        return principal_directions(self.network, count, self.settings(label=label).label)

    def evaluate(
        self,
        data: str | Path | None = None,
        metrics: Sequence[str] = ("swd", "ms_ssim", "kid"),
        extractor: str = "efficientnet-lite0",
        count: int | None = None,
    ) -> dict[str, float]:
        """Compare generated images with the images at `data`, like `pggan evaluate`; returns {metric: value}.

        Args: data: by default, the training set; count: number of fakes and reals, by default as in the metric's paper.
        """
        return dict(resolve_name(COMPARE)(self, data and str(data), list(metrics), extractor, count))

    def render(self, latents: Tensor, **options: Any) -> Pixels:
        """Generate images uint8 [N, R, R, C] from `latents` [N, Z], with the settings `self.settings(**options)`."""
        return np.stack(list(self.stream(latents, self.settings(**options))))

    def stream(self, latents: Tensor, settings: RenderSettings) -> Iterator[Pixels]:
        """Generate images uint8 [R, R, C], one by one, from `latents` [N, Z]."""
        center = None if settings.truncation == 1 else self._center(settings.label)
        return render_each(self.network, latents, settings, center)

    def project(self, picture: Picture, *, steps: int = STEPS, **options: Any) -> Projection:
        """Find the latent whose image is nearest to `picture`; raises UserError if the picture is unusable."""
        settings = self.settings(**options)
        target = read_target(picture, settings.resolution, self.network.architecture.channels)
        return project(self.network, target, settings, steps)


def load(run: str | Path, device: str = "auto", checkpoint: str | int = NEWEST) -> TrainedGenerator:
    """Load the averaged generator (EMA) of `run`: a run directory, one of its checkpoints, or a generator file.

    Args: device: auto (CUDA, else MPS, else CPU), cpu, cuda or mps; checkpoint: newest, best, or a number of
    images shown, if `run` is a run directory.  Raises UserError if there is no such generator or device.
    """
    return TrainedGenerator(load_generator(choose_checkpoint(str(run), checkpoint), choose_device(device, "device")))
