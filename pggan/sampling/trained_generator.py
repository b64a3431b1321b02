"""A trained generator in Python: `pggan.load` opens one, and every command that draws images uses it.

N images, Z latent size, R resolution, C channels.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from PIL import Image
from torch import Tensor

from pggan.checkpoints.generator_file import LoadedGenerator, load_generator
from pggan.checkpoints.read import choose_checkpoint
from pggan.config.parse import NEWEST, parse_seeds
from pggan.core.devices import choose_device
from pggan.core.errors import UserError
from pggan.sampling.generate import RenderSettings, mean_features, render_each, render_settings
from pggan.sampling.latents.latents import load_latents, seed_latents
from pggan.sampling.latents.paths import LatentPath, frame_positions, lerp, loop, slerp, through
from pggan.sampling.output.images import Pixels, to_pil
from pggan.sampling.perceptual import LAPLACIAN, load_distance
from pggan.sampling.projection import Projection, ProjectionSettings, project
from pggan.sampling.target_image import Picture, read_target

PATHS: dict[str, Callable[[Tensor], LatentPath]] = {
    "slerp": lambda keyframes: through(keyframes, slerp),
    "lerp": lambda keyframes: through(keyframes, lerp),
    "loop": loop,
}
PATH_NAMES = ", ".join(PATHS)
Seeds = int | str | Iterable[int]  # 5, "0-63", "1,5,9-12" or [1, 5, 9]


class TrainedGenerator:
    """Images of a trained generator, from seeds or latents, at any resolution and alpha.

    A seed, and a latent, always gives the same image on one machine, whatever else is drawn with it.
    """

    def __init__(self, loaded: LoadedGenerator) -> None:
        self.loaded = loaded
        self.network = loaded.network
        self._centers: dict[int | None, Tensor] = {}

    def __repr__(self) -> str:
        place = "" if self.loaded.path is None else f" {self.loaded.path}"
        stage = f"{self.resolution}x{self.resolution}, alpha {self.alpha:g}, {self.images:,} images"
        classes = f", {self.num_classes} classes" if self.num_classes else ""
        return f"<TrainedGenerator{place}: {stage}, latents of {self.latent_size} numbers{classes}>"

    @property
    def latent_size(self) -> int:
        """Z, the numbers in a latent."""
        return self.network.architecture.latent_size

    @property
    def resolutions(self) -> tuple[int, ...]:
        """All resolutions, in pixels, that this generator has layers for."""
        return self.network.architecture.resolutions

    @property
    def resolution(self) -> int:
        """The resolution in pixels that the training had reached."""
        return self.loaded.resolution

    @property
    def alpha(self) -> float:
        """The weight, from 0 to 1, of the newest layers at that resolution."""
        return self.loaded.alpha

    @property
    def images(self) -> int:
        """Real images that the training had shown."""
        return self.loaded.images

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes; empty where there are none, or they are not known."""
        return self.loaded.class_names

    @property
    def num_classes(self) -> int:
        """The number of classes; 0 for a generator that was trained without labels."""
        return self.network.architecture.num_classes

    def latents(self, seeds: Seeds) -> Tensor:
        """The latents [N, Z] of `seeds`, N(0, 1); raises UserError for seeds that can't be read."""
        wanted = parse_seeds(seeds if isinstance(seeds, int | str) else [int(seed) for seed in seeds])
        return seed_latents(wanted, self.latent_size)

    def load_latents(self, path: str) -> Tensor:
        """The latents [N, Z] of a file, such as `pggan project` writes; raises UserError for another one."""
        return load_latents(path, self.latent_size)

    def sample(
        self,
        seeds: Seeds,
        *,
        resolution: int | None = None,
        alpha: float | None = None,
        truncation: float = 1.0,
        label: int | str | None = None,
    ) -> list[Image.Image]:
        """One picture per seed; arguments as of `render`."""
        settings = self.settings(resolution=resolution, alpha=alpha, truncation=truncation, label=label)
        return [to_pil(image) for image in self.stream(self.latents(seeds), settings)]

    def render(
        self,
        latents: Tensor,
        *,
        resolution: int | None = None,
        alpha: float | None = None,
        truncation: float = 1.0,
        label: int | str | None = None,
    ) -> Pixels:
        """Images uint8 [N, R, R, C] of `latents` [N, Z].

        Args: resolution, alpha: the stage of the growth, None for the newest one trained; truncation: below 1, images
        are pulled towards the average one; label: number or name of the class, None for the first
        one where there are any.
        Raises UserError for what this generator does not have.
        """
        settings = self.settings(resolution=resolution, alpha=alpha, truncation=truncation, label=label)
        return np.stack(list(self.stream(latents, settings)))

    def settings(
        self,
        *,
        resolution: int | None = None,
        alpha: float | None = None,
        truncation: float = 1.0,
        label: int | str | None = None,
    ) -> RenderSettings:
        """The settings that `stream` takes besides latents, checked; the arguments are those of `render`."""
        return render_settings(self.loaded, resolution=resolution, alpha=alpha, truncation=truncation, label=label)

    def path(self, keyframes: Seeds | Tensor, frames: int, kind: str = "slerp") -> Tensor:
        """The latents [F, Z] of `frames` steps through at least two `keyframes`: seeds, or latents [K, Z].

        Args: kind: slerp (on great circles), lerp (on straight lines), or loop (back to the first, without corners).
        Raises UserError for keyframes that can't be read, or another kind.
        """
        latents = keyframes if isinstance(keyframes, Tensor) else self.latents(keyframes)
        if kind not in PATHS or len(latents) < 2:
            raise UserError(
                f"No path of kind '{kind}' leads through {len(latents)} keyframes.", f"Use two, and {PATH_NAMES}."
            )
        return PATHS[kind](latents)(frame_positions(frames, closed=kind == "loop"))

    def project(
        self,
        picture: Picture,
        how: ProjectionSettings = ProjectionSettings(),  # noqa: B008 - frozen
        *,
        distance: str = LAPLACIAN,
        resolution: int | None = None,
        alpha: float | None = None,
        label: int | str | None = None,
    ) -> Projection:
        """The latent whose image is nearest to a picture: a file, a PIL image, or bytes [H, W, C].

        Args: distance: how images are compared, as of `pggan project`: laplacian, efficientnet-lite0 or
        MODULE:FUNCTION.
        Raises UserError for what is no image, or smaller than the generator's, and for another distance.
        """
        measure = load_distance(distance, self.network.weights[0].device)
        settings = self.settings(resolution=resolution, alpha=alpha, label=label)
        target = read_target(picture, settings.resolution, self.network.architecture.channels)
        return project(self.network, target, settings, how, distance=measure)

    def stream(self, latents: Iterable[Tensor], settings: RenderSettings) -> Iterator[Pixels]:
        """Images uint8 [R, R, C] of `latents` [Z], one after the other; memory does not grow with their number."""
        center = None
        if settings.truncation != 1:
            if settings.label not in self._centers:
                self._centers[settings.label] = mean_features(self.network, settings.label)
            center = self._centers[settings.label]
        return render_each(self.loaded, latents, settings, center)


def load(run: str, device: str = "auto", checkpoint: str | int = NEWEST) -> TrainedGenerator:
    """The averaged generator of `run`: a run directory, a checkpoint in it, or a generator file.

    Args: device: auto (CUDA, else MPS, else CPU), cpu, cuda or mps; checkpoint: of a run directory, newest, best, or
    the images of one.
    Raises UserError when there is no valid generator, or no such device.
    """
    place = choose_checkpoint(str(run), checkpoint)
    return TrainedGenerator(load_generator(place, choose_device(device, "device")))
