"""Finding a data set: a folder or archive by its path, a known set by its name, or avatars, which need no download.

Avatars are cartoon faces that are drawn on this machine.  Known sets are downloaded and read by torchvision, which is
imported only when one is asked for.
"""

import json
from collections.abc import Callable
from functools import cache, lru_cache, partial
from importlib.metadata import version
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from pggan.core.errors import UserError, nearest
from pggan.data.archives import ARCHIVES, archive_source
from pggan.data.image_file import ImageFile, ImageHeader
from pggan.data.pyramid import INDEX_FILE
from pggan.data.sources import Entry, Source, disk_entry, folder_source

DOWNLOADS = Path("data/downloads")  # of known sets, where no other folder is named


def open_source(
    source: str | Path, root: str | Path = DOWNLOADS, split: str = "train", *, download: bool = True
) -> Source:
    """The folder or archive at a path, or the known set of a name.  Raises UserError when there is none.

    Args: root: the folder with the files of known sets; download: whether those that are missing may be downloaded.
    """
    return _opener(str(source), Path(root).absolute(), split, download)()


def require_source(source: str) -> None:
    """Raise UserError for what is neither a pyramid nor a source; nothing is read."""
    if not Path(source, INDEX_FILE).is_file():
        _opener(source, DOWNLOADS, "train", download=False)


def _opener(source: str, root: Path, split: str, download: bool) -> Callable[[], Source]:
    """The function that opens `source`."""
    path = Path(source)
    if source.lower().startswith(PREFIX):
        name = source.lower().removeprefix(PREFIX).replace("-", "_")
        if name not in CLASSES:
            raise UserError(f"There is no known data set '{name}'.", nearest(name, CLASSES))
        return partial(known_set, name, root, split, download=download)
    if not path.exists():
        remedy = f"Give the path of the folder or archive that holds the images, or {PREFIX}NAME for a known set."
        raise UserError(f"{source} does not exist.", remedy)
    if Path(path, INDEX_FILE).is_file():
        raise UserError(f"{source} is prepared already.", f"Train on it: pggan train data.path={source}")
    if path.is_dir():
        return partial(folder_source, path)
    if path.is_file() and path.suffix.lower() in ARCHIVES:
        return partial(archive_source, path)
    problem = f"{source} is neither a folder nor an archive."
    raise UserError(problem, f"Give a folder of images, or an archive ending in {', '.join(ARCHIVES)}.")


# ---- known sets

PREFIX = "torchvision:"
CLASSES = {"celeba": "CelebA", "cifar10": "CIFAR10", "mnist": "MNIST", "fashion_mnist": "FashionMNIST"}


@lru_cache(maxsize=2)  # once per process
def _opened(name: str, root: Path, split: str, download: bool) -> Any:
    from torchvision import datasets

    part = {"split": split, "target_type": "identity"} if name == "celeba" else {"train": split == "train"}
    return getattr(datasets, CLASSES[name])(root, **part, download=download)


def _open_image(name: str, root: Path, split: str, number: int) -> BinaryIO:
    """Image `number` of a set, which is there, as a PNG file."""
    content = BytesIO()
    _opened(name, root, split, False)[number][0].save(content, "PNG", compress_level=0)
    content.seek(0)
    return content


def known_set(name: str, root: Path, split: str, *, download: bool) -> Source:
    """The images of a known set, in its order; it is downloaded first where that is needed and possible."""
    about: dict[str, object] = {"kind": "torchvision", "name": name, "split": split}
    root.mkdir(parents=True, exist_ok=True)
    try:
        dataset = _opened(name, root, split, download)
    except Exception as error:  # no network, wrong checksums, an unknown split: torchvision's own messages
        raise UserError(
            f"{name} can't be opened in {root}: {error}",
            'See the torchvision page of this data set; CelebA needs pip install "pggan[datasets]", too.',
        ) from error
    found = []
    if name == "celeba":  # as files, which are checked more strictly than torchvision does
        folder = Path(dataset.root, dataset.base_folder, "img_align_celeba")
        for file_name, person in zip(dataset.filename, dataset.identity[:, 0].tolist(), strict=True):
            found.append(disk_entry(folder / file_name, folder, file_name, str(person)))
        return Source(about, found)
    for number, target in enumerate(dataset.targets):
        file = ImageFile(Path(name, f"{number:08d}"), partial(_open_image, name, root, split, number))
        stamp, label = f"{name}-{split}-{len(dataset)}-{number}", dataset.classes[int(target)]
        found.append(Entry(file.path.name, stamp, file, label=label))
    return Source(about, found)


# ---- avatars

STYLE = "toon-head"  # DiceBear's
# Without colours of their own most styles leave the background empty, and all images alike there.
BACKGROUNDS = ["b6e3f4", "c0aede", "d1d4f9", "ffd5dc", "ffdfbf", "a3c4a8", "e8b4a0", "8fb8de"]
MIN_DRAWN_SIDE = 64  # thin lines vanish when the renderer draws smaller
PACKAGES = ("dicebear-core", "dicebear-styles", "resvg-py")


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
    drawn_by = "-".join(version(package) for package in PACKAGES)
    header, found = ImageHeader(resolution, resolution, 3), []
    for number in range(count):
        file = ImageFile(Path(STYLE, f"{number:08d}"), partial(_draw, resolution, number))
        stamp = f"{STYLE}-{resolution}-{number}-{drawn_by}"
        found.append(Entry(file.path.name, stamp, file, header=header))
    return Source(about, found, task="Drawing avatars")


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
