"""A JPEG file from rows.  JPEG is written at once: the whole picture is in memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pggan.sampling.output.images import Pixels, require_jpeg, save_picture


@contextmanager
def jpeg_stream(path: Path, width: int, height: int, channels: int) -> Iterator[Callable[[Pixels], None]]:
    """Yield a function that appends rows uint8 [H, `width`, C] of a picture; `path` appears when the block ends.

    Raises UserError for what no JPEG can hold.
    """
    require_jpeg(path, width, height, channels)
    rows: list[Pixels] = []
    yield rows.append
    save_picture(np.concatenate(rows), path)
