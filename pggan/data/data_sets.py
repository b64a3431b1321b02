"""Finding a data set: a folder or archive by its path, a known set by its name, or avatars, which need no download.

Avatars are cartoon faces that are drawn on this machine.  Known sets are downloaded and read by torchvision, which is
imported only when one is asked for.
"""

import json
from functools import cache, lru_cache, partial
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from pggan.core.errors import UserError, nearest
from pggan.data.image_file import ImageFile, ImageHeader
from pggan.data.pyramid import INDEX_FILE
from pggan.data.sources import Entry, Source, archive_source, folder_source


def require_source(source: str) -> None:
    """Raise UserError for what is neither the name of a known set nor a path of anything; nothing is read."""
    if source.startswith(PREFIX):
        if (name := source.removeprefix(PREFIX)) not in CLASSES:
            raise UserError(f"There is no known data set '{name}'.", nearest(name, CLASSES))
    elif not Path(source).exists():
        remedy = f"Give the path of the folder or archive that holds the images, or {PREFIX}NAME for a known set."
        raise UserError(f"{source} does not exist.", remedy)


def open_source(source: str, cache: str | Path = "data") -> Source:
    """The folder or archive at a path, or the known set of a name.  Raises UserError when there is none.

    Args: cache: the folder for `downloads` of known sets that are not there yet.
    """
    require_source(source)
    if source.startswith(PREFIX):
        return known_set(source.removeprefix(PREFIX), Path(cache, "downloads").absolute())
    if Path(source, INDEX_FILE).is_file():
        raise UserError(f"{source} is prepared already.", f"Train on it: pggan train data.path={source}")
    return (folder_source if Path(source).is_dir() else archive_source)(Path(source))


# ---- known sets

PREFIX = "torchvision:"
CLASSES = {"celeba": "CelebA", "cifar10": "CIFAR10", "mnist": "MNIST", "fashion_mnist": "FashionMNIST"}


@lru_cache(maxsize=2)  # once per process
def _opened(name: str, root: Path) -> Any:
    from torchvision import datasets

    return getattr(datasets, CLASSES[name])(root, download=True)


def _open_image(name: str, root: Path, number: int) -> BinaryIO:
    """Image `number` of a set, which is there, as a PNG file."""
    content = BytesIO()
    _opened(name, root)[number][0].save(content, "PNG", compress_level=0)
    content.seek(0)
    return content


def known_set(name: str, root: Path) -> Source:
    """The images of a known set for training, in its order; it is downloaded first where it is missing."""
    about: dict[str, object] = {"kind": "torchvision", "name": name}
    try:
        root.mkdir(parents=True, exist_ok=True)
        dataset = _opened(name, root)
    except Exception as error:  # no network, wrong checksums: torchvision's own messages
        raise UserError(
            f"{name} can't be opened in {root}: {error}",
            'See the torchvision page of this data set; CelebA needs pip install "pggan[datasets]", too.',
        ) from error
    labels = [dataset.classes[int(target)] for target in getattr(dataset, "targets", ())]  # CelebA has none
    found = []
    for number in range(len(dataset)):
        file = ImageFile(Path(name, f"{number:08d}"), partial(_open_image, name, root, number))
        found.append(Entry(file.path.name, file, label=labels[number] if labels else None))
    return Source(about, found)


# ---- avatars

STYLE = "toon-head"  # DiceBear's
# Without colours of their own most styles leave the background empty, and all images alike there.
BACKGROUNDS = ["b6e3f4", "c0aede", "d1d4f9", "ffd5dc", "ffdfbf", "a3c4a8", "e8b4a0", "8fb8de"]
MIN_DRAWN_SIDE = 64  # thin lines vanish when the renderer draws smaller


def avatars(count: int, resolution: int) -> Source:
    """Avatars numbered from 0; they depend on resolution and number alone.

    Raises UserError without the optional packages, and what these need.
    """
    try:
        import resvg_py  # noqa: F401

        _style()
    except ImportError as error:
        problem = f"Drawing avatars needs packages that are not installed, or do not work: {error}."
        raise UserError(problem, 'Install them with: pip install "pggan[avatars]"') from error
    credit = _definition()["meta"]  # the artist and the licence, which most styles ask to name
    about: dict[str, object] = {"kind": "avatars", "name": STYLE, "backgrounds": BACKGROUNDS, "credit": credit}
    header, found = ImageHeader(resolution, resolution, is_grey=False), []
    for number in range(count):
        file = ImageFile(Path(STYLE, f"{number:08d}"), partial(_draw, resolution, number))
        found.append(Entry(file.path.name, file, header=header))
    return Source(about, found)


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
