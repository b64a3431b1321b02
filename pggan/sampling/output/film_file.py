"""A film as a file, of the kind that its ending names."""

from pathlib import Path

from pggan.core.atomic_io import atomic_write
from pggan.sampling.output.apng import write_apng
from pggan.sampling.output.film import Film
from pggan.sampling.output.gif import write_gif
from pggan.sampling.output.video import write_video
from pggan.sampling.output.webp import write_webp


def save_film(film: Film, path: Path) -> None:
    """Write an endless animation (.webp, .gif, .apng) or a video (.mp4, .webm), atomically.

    .webp and .apng are lossless, .gif has 255 colours in all.  Few frames are in memory, however long the film is: the
    one that is encoded, the one before it, and those that a video encoder looks ahead to.
    """
    writers = {".webp": write_webp, ".gif": write_gif, ".apng": write_apng}
    with atomic_write(path) as temporary:
        writers.get(path.suffix.lower(), write_video)(film, temporary)
