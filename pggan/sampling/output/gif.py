"""GIF files with one palette for all frames, written frame by frame.

Source: GIF89a specification (CompuServe 1990).
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
from PIL import GifImagePlugin, Image

from pggan.sampling.output.film import Film, to_rgb

COLORS = 255  # and one for pixels that have not changed
UNCHANGED = 255  # that one
KEEP = 1  # how a frame is disposed of: the next one is drawn over it
SAMPLED_FRAMES = 16  # that the palette is chosen from
SAMPLED_PIXELS = 2**18  # of these


def write_gif(film: Film, path: Path) -> None:
    """Write `film`; pixels that stay the same are not stored again, which makes small files of calm backgrounds."""
    palette = choose_palette(film)
    colors = bytes(palette.getpalette() or []).ljust(768, b"\0")[:768]
    previous = None
    with path.open("wb") as file:
        for frame, duration in zip(film.frames(), film.durations(100), strict=True):
            indices = np.asarray(Image.fromarray(to_rgb(frame)).quantize(palette=palette, dither=Image.Dither.NONE))
            about: dict[str, Any] = {"duration": 10 * duration, "disposal": KEEP}  # PIL takes milliseconds
            if previous is None:
                height, width = indices.shape
                file.write(b"GIF89a" + struct.pack("<HHBBB", width, height, 0xF7, 0, 0) + colors)
                file.write(b"!\xff\x0bNETSCAPE2.0\x03\x01\0\0\0")  # again and again
                shown = indices
            else:
                shown = np.where(indices == previous, np.uint8(UNCHANGED), indices)
                about["transparency"] = UNCHANGED
            file.writelines(GifImagePlugin.getdata(Image.fromarray(shown), **about))
            previous = indices
        file.write(b";")


def choose_palette(film: Film) -> Image.Image:
    """A picture with the palette of COLORS colours that suits frames from the whole of `film`."""
    wanted = min(SAMPLED_FRAMES, film.count)
    indices = sorted({round(number) for number in np.linspace(0, film.count - 1, wanted)})
    found = []
    for frame in film.draw(indices):
        pixels = to_rgb(frame).reshape(-1, 3)
        found.append(pixels[:: -(-len(pixels) * wanted // SAMPLED_PIXELS)])
    together = Image.fromarray(np.concatenate(found)[None])
    return together.quantize(COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
