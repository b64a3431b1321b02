"""The default dataset: cartoon faces drawn on this machine, so that the first training needs no download."""

import json
from functools import cache, partial
from importlib.resources import files
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pggan.core.errors import UserError, nearest
from pggan.data.format.index import check_resolution
from pggan.data.format.levels import Images, block_mean
from pggan.data.format.pyramid import ImagePyramid, pyramid_bytes, require_free_space, require_new
from pggan.data.format.writer import PyramidWriter
from pggan.data.prepare.worker_pool import WorkerPool

# Without colours of their own most styles leave the background empty, and all images alike there.
BACKGROUNDS = ["b6e3f4", "c0aede", "d1d4f9", "ffd5dc", "ffdfbf", "a3c4a8", "e8b4a0", "8fb8de"]
LEAST_DRAWN_SIDE = 64  # thin lines vanish when the renderer rng smaller
PACKAGES = ("dicebear", "dicebear_styles", "resvg_py")


def avatar_styles() -> list[str]:
    """The names of all styles.  Raises UserError without the optional packages."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise UserError(
            f"Drawing avatars needs packages that are not installed: {', '.join(missing)}.",
            'Install them with: pip install "pggan[avatars]"',
        )
    definitions = (Path(entry.name) for entry in files("dicebear_styles").iterdir())
    return sorted(definition.stem for definition in definitions if definition.suffix == ".json")


def render_avatars(
    destination: Path, *, style: str = "toon-head", count: int = 4096, resolution: int, workers: int
) -> ImagePyramid:
    """Draw `count` faces, numbered from 0, as a colour dataset at `destination`.

    The images depend on `style`, `resolution` and their number alone, not on `count` or `workers`.
    Raises UserError without the optional packages, for an unknown style, and for too little disk space.
    """
    if style not in (styles := avatar_styles()):
        list_all = "from pggan.data.sources.avatars import avatar_styles; print(*avatar_styles())"
        raise UserError(
            f"There is no avatar style '{style}'.", f"{nearest(style, styles)}  All: python -c '{list_all}'"
        )
    check_resolution(resolution)
    if count < 1:
        raise UserError(f"A count of {count} avatars is not possible.", "Draw at least one.")
    require_new(destination)
    require_free_space(destination, pyramid_bytes(count, resolution, 3))
    credit = _definition(style)["meta"]  # the artist and the licence, which most styles ask to name
    source = {"kind": "avatars", "style": style, "backgrounds": BACKGROUNDS, "credit": credit}
    draw = partial(_draw, style, resolution)
    with (
        PyramidWriter(destination, resolution, 3, source) as writer,
        WorkerPool(workers) as crew,
        crew.in_order("Drawing avatars", draw, range(count), count) as images,
    ):
        for image in images:
            writer.add(image)
    return ImagePyramid(destination)


def _draw(style: str, resolution: int, number: int) -> Images:
    import resvg_py
    from dicebear import Avatar

    svg = str(Avatar(_style(style), {"seed": f"s{number}", "backgroundColor": BACKGROUNDS}))
    side = max(LEAST_DRAWN_SIDE, 2 * resolution)
    # Without system fonts, so text is left out: it would look different on every machine.
    png = resvg_py.svg_to_bytes(svg, width=side, height=side, background="white", skip_system_fonts=True)
    with Image.open(BytesIO(png), formats=("PNG",)) as image:
        drawn = np.asarray(image.convert("RGB"))
    return block_mean(drawn, resolution)


def _definition(style: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((files("dicebear_styles") / f"{style}.json").read_text())
    return content


@cache  # building a style takes as long as drawing fifty faces
def _style(style: str) -> Any:
    from dicebear import Style

    return Style(_definition(style))
