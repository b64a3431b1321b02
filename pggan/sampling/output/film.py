"""Films: pictures one after the other, drawn while they are encoded, so that memory does not grow with their number."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from pggan.core.errors import UserError
from pggan.sampling.output.images import Pixels, to_pil

# The largest sides, in pixels, by the ending of the file: of VP8's and H.264's headers, and of 16-bit sizes.
MAX_SIDE = {".webp": 16_383, ".gif": 65_535, ".apng": 65_535, ".mp4": 16_384, ".webm": 65_535}
ANIMATED = tuple(MAX_SIDE)
VIDEO = (".mp4", ".webm")
WORTH_LOOKING_AT = 512  # pixels that small films are enlarged to


@dataclass(frozen=True)
class Film:
    """`count` frames, `fps` per second; `draw` gives those of increasing indices, uint8 [H, W, C], one at a time."""

    count: int
    fps: int
    draw: Callable[[Sequence[int]], Iterator[Pixels]]

    def frames(self) -> Iterator[Pixels]:
        """All frames, with a bar on stderr if that is a terminal."""
        console = Console(stderr=True)
        drawn = self.draw(range(self.count))
        hidden = not console.is_terminal
        yield from track(drawn, "Drawing", self.count, console=console, transient=True, disable=hidden)

    def durations(self, per_second: int) -> list[int]:
        """How long each frame is shown, in whole units of which a second has `per_second`; their sum is exact."""
        borders = (round(number * per_second / self.fps) for number in range(self.count + 1))
        return [after - before for before, after in pairwise(borders)]


def require_encoder(path: Path) -> None:
    """Raise a UserError where `path` is a video and the library that encodes it is missing."""
    if path.suffix.lower() in VIDEO and find_spec("av") is None:
        remedy = "Install it: pip install 'pggan[video]'. Or set out=….webp, .gif or .apng."
        raise UserError(f"{path} needs PyAV, which is not installed.", remedy)


def require_size(path: Path, width: int, height: int) -> None:
    """Raise a UserError where frames are larger than the kind of file allows."""
    most = MAX_SIDE[path.suffix.lower()]
    if max(height, width) > most:
        problem = f"{path} can't be written: frames of {width}x{height} pixels are more than the {most} of such a file."
        raise UserError(problem, "Use a smaller zoom, grid or resolution.")


def automatic_zoom(width: int, height: int) -> int:
    """The largest whole factor up to WORTH_LOOKING_AT pixels, at least 1."""
    return max(WORTH_LOOKING_AT // max(width, height), 1)


def to_rgb(picture: Pixels) -> Pixels:
    """A picture [H, W, C] as [H, W, 3]; without its transparency."""
    return np.asarray(to_pil(picture).convert("RGB"))
