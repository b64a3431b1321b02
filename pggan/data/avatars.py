"""The default dataset: cartoon faces drawn on this machine, so that the first training needs no download."""

import json
from functools import cache, partial
from importlib.metadata import version
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from pggan.core.errors import UserError, nearest
from pggan.data.image_file import ImageFile, ImageHeader
from pggan.data.source import Entry, Source

# Without colours of their own most styles leave the background empty, and all images alike there.
BACKGROUNDS = ["b6e3f4", "c0aede", "d1d4f9", "ffd5dc", "ffdfbf", "a3c4a8", "e8b4a0", "8fb8de"]
MIN_DRAWN_SIDE = 64  # thin lines vanish when the renderer draws smaller
PACKAGES = ("dicebear-core", "dicebear-styles", "resvg-py")


def avatar_styles() -> list[str]:
    """The names of all styles.  Raises UserError without the optional packages, and what these need."""
    try:
        import dicebear  # noqa: F401
        import resvg_py  # noqa: F401

        found = [Path(entry.name) for entry in files("dicebear_styles").iterdir()]
    except ImportError as error:
        problem = f"Drawing avatars needs packages that are not installed, or do not work: {error}."
        raise UserError(problem, 'Install them with: pip install "pggan[avatars]"') from error
    return sorted(path.stem for path in found if path.suffix == ".json")


def _draw(style: str, resolution: int, number: int) -> BinaryIO:
    """Avatar number `number` of a style as a PNG file, of a multiple of `resolution`, to which it is reduced."""
    import dicebear
    import resvg_py

    svg = str(dicebear.Avatar(_style(style), {"seed": f"s{number}", "backgroundColor": BACKGROUNDS}))
    side = max(MIN_DRAWN_SIDE, 2 * resolution)
    # Without system fonts, so text is left out: it would look different on every machine.
    png = resvg_py.svg_to_bytes(svg, width=side, height=side, background="white", skip_system_fonts=True)
    return BytesIO(png)


class AvatarSource(Source):
    """Avatars of one style, numbered from 0; they depend on style, resolution and number alone."""

    task = "Drawing avatars"

    def __init__(self, style: str, count: int, resolution: int) -> None:
        """Raises UserError without the optional packages, and for an unknown style."""
        if style not in (styles := avatar_styles()):
            list_all = "from pggan.data.avatars import avatar_styles; print(*avatar_styles())"
            raise UserError(
                f"There is no avatar style '{style}'.", f"{nearest(style, styles)}  All: python -c '{list_all}'"
            )
        self._style, self._count, self._resolution = style, count, resolution
        credit = _definition(style)["meta"]  # the artist and the licence, which most styles ask to name
        self.description = {"kind": "avatars", "name": style, "backgrounds": BACKGROUNDS, "credit": credit}

    def entries(self) -> list[Entry]:
        """All avatars, by number."""
        drawn_by = "-".join(version(package) for package in PACKAGES)
        side = self._resolution
        return [
            Entry(
                f"{number:08d}",
                f"{self._style}-{side}-{number}-{drawn_by}",
                side * side * 3,
                ImageFile(Path(self._style, f"{number:08d}"), partial(_draw, self._style, side, number)),
                header=ImageHeader(side, side, 3),
            )
            for number in range(self._count)
        ]


def _definition(style: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((files("dicebear_styles") / f"{style}.json").read_text())
    return content


@cache  # building a style takes as long as drawing fifty faces
def _style(style: str) -> Any:
    from dicebear import Style

    return Style(_definition(style))
