"""Drawing for the page: one thread, whatever the number of requests.  N latents, Z latent size, R resolution."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

import numpy as np
from torch import Tensor

from pggan.core.errors import UserError
from pggan.sampling.explore.requests import FilmForm
from pggan.sampling.generate import RenderSettings
from pggan.sampling.output.film import Film, automatic_zoom, require_encoder, require_size
from pggan.sampling.output.film_file import save_film
from pggan.sampling.output.images import Pixels, enlarge, enlarge_smoothly
from pggan.sampling.trained_generator import TrainedGenerator

BLOCK = 8  # frames of a film between which a face that someone looks at is drawn


class Drawing:
    """Images and films of one generator.

    PyTorch keeps a team of threads for each thread that calls it, and a generator prepares its weights for one use at
    a time: so all requests are drawn by one thread, a film in pieces between them.
    """

    def __init__(self, generator: TrainedGenerator) -> None:
        self.generator = generator
        self.film_progress = (0, 0)  # frames drawn, and all frames, of the latest film
        self._thread = ThreadPoolExecutor(1, "drawing")
        self._one_film = Lock()
        self._cancelled = False

    def images(self, latents: Tensor, settings: RenderSettings) -> Pixels:
        """Images uint8 [N, R, R, C] of `latents` [N, Z]."""
        draw: Callable[[], Pixels] = lambda: np.stack(list(self.generator.stream(latents, settings)))  # noqa: E731
        return self._thread.submit(draw).result()

    def film(self, latents: Tensor, settings: RenderSettings, form: FilmForm) -> bytes:
        """A film of `latents` [N, Z] as a file, enlarged as those of `pggan interpolate`.

        Raises UserError while another one is drawn, without its encoder, and after `cancel_film`.
        """
        zoom = automatic_zoom(settings.resolution, settings.resolution)
        larger = enlarge_smoothly if form.smooth else enlarge

        def draw(indices: Sequence[int]) -> Iterator[Pixels]:
            for start in range(0, len(indices), BLOCK):
                if self._cancelled:
                    raise UserError("The film was cancelled.", "Export it again.")
                block = list(indices[start : start + BLOCK])
                yield from larger(self.images(latents[block], settings), zoom)
                self.film_progress = (block[-1] + 1, len(latents))

        if not self._one_film.acquire(blocking=False):
            raise UserError("Another film is being drawn.", "Wait for its end, or cancel it.")
        try:
            self._cancelled, self.film_progress = False, (0, len(latents))
            with TemporaryDirectory(prefix="pggan-film-") as folder:
                path = Path(folder) / f"film{form.kind}"
                require_encoder(path)
                require_size(path, zoom * settings.resolution, zoom * settings.resolution)
                save_film(Film(len(latents), form.fps, draw), path)
                return path.read_bytes()
        finally:
            self._one_film.release()

    def cancel_film(self) -> None:
        """End the film that is being drawn."""
        self._cancelled = True
