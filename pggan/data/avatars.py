"""The default dataset: cartoon faces drawn on this machine, so that the first training needs no download."""

import json
from functools import cache, partial
from importlib.metadata import version
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from pggan.core.errors import UserError
from pggan.data.image_file import ImageFile, ImageHeader
from pggan.data.source import Entry, Source

STYLE = "toon-head"  # DiceBear's
# Without colours of their own most styles leave the background empty, and all images alike there.
BACKGROUNDS = ["b6e3f4", "c0aede", "d1d4f9", "ffd5dc", "ffdfbf", "a3c4a8", "e8b4a0", "8fb8de"]
MIN_DRAWN_SIDE = 64  # thin lines vanish when the renderer draws smaller
PACKAGES = ("dicebear-core", "dicebear-styles", "resvg-py")


class AvatarSource(Source):
    """Avatars numbered from 0; they depend on resolution and number alone."""

    task = "Drawing avatars"

    def __init__(self, count: int, resolution: int) -> None:
        """Raises UserError without the optional packages, and what these need."""
        try:
            import resvg_py  # noqa: F401

            _style()
        except ImportError as error:
            problem = f"Drawing avatars needs packages that are not installed, or do not work: {error}."
            raise UserError(problem, 'Install them with: pip install "pggan[avatars]"') from error
        self._count, self._resolution = count, resolution
        credit = _definition()["meta"]  # the artist and the licence, which most styles ask to name
        self.description = {"kind": "avatars", "name": STYLE, "backgrounds": BACKGROUNDS, "credit": credit}

    def entries(self) -> list[Entry]:
        """All avatars, by number."""
        drawn_by = "-".join(version(package) for package in PACKAGES)
        side = self._resolution
        return [
            Entry(
                f"{number:08d}",
                f"{STYLE}-{side}-{number}-{drawn_by}",
                side * side * 3,
                ImageFile(Path(STYLE, f"{number:08d}"), partial(_draw, side, number)),
                header=ImageHeader(side, side, 3),
            )
            for number in range(self._count)
        ]


def _draw(resolution: int, number: int) -> BinaryIO:
    """Avatar number `number` as a PNG file, of a multiple of `resolution`, to which it is reduced."""
    import dicebear
    import resvg_py

    svg = str(dicebear.Avatar(_style(), {"seed": f"s{number}", "backgroundColor": BACKGROUNDS}))
    side = max(MIN_DRAWN_SIDE, 2 * resolution)
    # Without system fonts, so text is left out: it would look different on every machine.
    return BytesIO(resvg_py.svg_to_bytes(svg, width=side, height=side, background="white", skip_system_fonts=True))


def _definition() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((files("dicebear_styles") / f"{STYLE}.json").read_text())
    return content


@cache  # building a style takes as long as drawing fifty faces
def _style() -> Any:
    from dicebear import Style

    return Style(_definition())
