"""Animated WebP files, written frame by frame."""

from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from pggan.sampling.output.film import Film
from pggan.sampling.output.images import Pixels, to_pil


def write_webp(film: Film, path: Path) -> None:
    """Write `film` losslessly; the encoder keeps encoded frames until it has the last one."""
    picture = _LazyPicture(film.frames(), film.count)
    picture.save(path, format="WEBP", save_all=True, lossless=True, duration=film.durations(1000), loop=0)


class _LazyPicture(Image.Image):
    """A picture of several frames for PIL's writers, each drawn when its turn comes."""

    def __init__(self, frames: Iterator[Pixels], count: int) -> None:
        super().__init__()
        self.n_frames = count
        self._frames, self._number = frames, -1
        self.seek(0)

    def seek(self, frame: int) -> None:
        """Draw the next frame, if it is the one wanted; writers also go back to the first one in the end."""
        if frame == self._number + 1:
            picture = to_pil(next(self._frames))
            self.im, self._mode, self._size, self._number = picture.im, picture.mode, picture.size, frame

    def tell(self) -> int:
        """The first frame, which is where writers begin."""
        return 0
