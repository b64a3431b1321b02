"""Finding a data set: a folder or archive by its path, a known set by its name, or avatars, which need no download.

Avatars are cartoon faces that are drawn on this machine.  Known sets are downloaded and read by torchvision, which is
imported only when one is asked for.
"""

import json
import re
from contextlib import chdir
from difflib import get_close_matches
from functools import cache, lru_cache, partial
from importlib.metadata import version
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from pggan.core.errors import UserError, nearest
from pggan.data.archives import ARCHIVES, TarSource, ZipSource
from pggan.data.image_file import ImageFile, ImageHeader
from pggan.data.pyramid import INDEX_FILE
from pggan.data.sources import Entry, FolderSource, Source, disk_entry

ADDRESS = re.compile(r"[a-z0-9]{2,}:/", re.IGNORECASE)  # https://…, of which a path keeps one slash
DOWNLOADS = Path("data/downloads")  # of known sets, where no other folder is named


def open_source(
    source: str | Path, root: str | Path = DOWNLOADS, split: str = "train", *, download: bool = True
) -> Source:
    """The folder or archive at a path, or the known set of a name.  Raises UserError when there is none.

    Args: root: the folder with the files of known sets; download: whether those that are missing may be downloaded.
    """
    name = known_name(str(source))
    return _at(Path(source)) if name is None else KnownSet(name, Path(root).absolute(), split, download=download)


def require_source(source: str) -> None:
    """Raise UserError for a path that `open_source` refuses, or a folder without images; no known set is opened."""
    if known_name(source) is None and not (Path(source) / INDEX_FILE).is_file():
        found = _at(Path(source))
        if isinstance(found, FolderSource) and next(found.paths(), None) is None:
            found.some_entries()


def _at(path: Path) -> Source:
    """The folder or archive at `path`."""
    if not path.exists():
        remedy = "Give the path of the folder or archive that holds the images."
        if ADDRESS.match(str(path)):
            remedy = "Addresses are not downloaded: get the archive first, and give its path."
        raise UserError(f"{path} does not exist.", remedy)
    if (path / INDEX_FILE).is_file():
        raise UserError(f"{path} is prepared already.", f"Train on it: pggan train data.path={path}")
    if path.is_dir():
        return FolderSource(path)
    if path.is_file() and path.suffix.lower() in ARCHIVES:
        return ZipSource(path) if path.suffix.lower() == ".zip" else TarSource(path)
    problem = f"{path} is neither a folder nor an archive."
    raise UserError(problem, f"Give a folder of images, or an archive ending in {', '.join(ARCHIVES)}.")


# ---- known sets

PREFIX = "torchvision:"
CLASSES = {
    "celeba": "CelebA",
    "lsun": "LSUN",
    "cifar10": "CIFAR10",
    "mnist": "MNIST",
    "fashion_mnist": "FashionMNIST",
}


def known_name(source: str) -> str | None:
    """The name of the known set that `source` means; None for a path.  Raises UserError for none that is known."""
    name = source.lower().removeprefix(PREFIX).replace("-", "_")
    if source.lower().startswith(PREFIX):
        if name not in CLASSES:
            raise UserError(f"There is no known data set '{name}'.", nearest(name, CLASSES))
        return name
    if Path(source).exists():
        return None
    if name not in CLASSES and (near := get_close_matches(name, CLASSES, n=1, cutoff=0.8)):
        raise UserError(f"{source} does not exist.", f"Did you mean the known data set '{near[0]}'?")
    return name if name in CLASSES else None


@lru_cache(maxsize=2)  # once per process
def _opened(name: str, root: Path, split: str, download: bool) -> Any:
    from torchvision import datasets

    kind = getattr(datasets, CLASSES[name])
    if name == "celeba":
        return kind(root, split, target_type="identity", download=download)
    if name == "lsun":
        # It keeps an index of keys in the working directory, in a format that can run code: not read from there.
        with TemporaryDirectory() as empty, chdir(empty):
            return kind(root, split.split(",") if "_" in split else split)
    return kind(root, train=split == "train", download=download)


def _open_image(name: str, root: Path, split: str, number: int) -> BinaryIO:
    """Image `number` of a set, which is there, as a PNG file."""
    content = BytesIO()
    _opened(name, root, split, False)[number][0].save(content, "PNG", compress_level=0)
    content.seek(0)
    return content


class KnownSet(Source):
    """The images of a known set, in its order."""

    def __init__(self, name: str, root: Path, split: str, *, download: bool) -> None:
        """The set is downloaded first where that is needed and possible.  Raises UserError."""
        root.mkdir(parents=True, exist_ok=True)
        try:
            self._dataset = _opened(name, root, split, download)
        except Exception as error:  # no network, wrong checksums, an unknown split, no lmdb: torchvision's own messages
            raise UserError(
                f"{name} can't be opened in {root}: {error}",
                'See the torchvision page of this data set; CelebA and LSUN need pip install "pggan[datasets]", too.',
            ) from error
        self._place = (name, root, split)
        self.description = {"kind": "torchvision", "name": name, "split": split}

    def entries(self) -> list[Entry]:
        """All images, in the order of the set."""
        (name, _, split), dataset = self._place, self._dataset
        if name == "celeba":  # as files, which are checked more strictly than torchvision does
            folder = Path(dataset.root, dataset.base_folder, "img_align_celeba")
            people = zip(dataset.filename, dataset.identity[:, 0].tolist(), strict=True)
            return [disk_entry(folder / file, folder, file, str(person)) for file, person in people]
        if name == "lsun":
            labels = [label for label, part in zip(dataset.classes, dataset.dbs, strict=True) for _ in range(len(part))]
        else:
            labels = [dataset.classes[int(target)] for target in dataset.targets]
        found = []
        for number, label in enumerate(labels):
            file = ImageFile(Path(name, f"{number:08d}"), partial(_open_image, *self._place, number))
            found.append(Entry(file.path.name, f"{name}-{split}-{len(labels)}-{number}", 0, file, label=label))
        return found


# ---- avatars

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
        side, drawn_by = self._resolution, "-".join(version(package) for package in PACKAGES)
        found = []
        for number in range(self._count):
            file = ImageFile(Path(STYLE, f"{number:08d}"), partial(_draw, side, number))
            stamp, header = f"{STYLE}-{side}-{number}-{drawn_by}", ImageHeader(side, side, 3)
            found.append(Entry(file.path.name, stamp, side * side * 3, file, header=header))
        return found


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
