"""The image files in a folder, an archive, another pyramid, or several of these; nothing is decoded here."""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from pggan.core.errors import UserError
from pggan.data.format.pyramid import INDEX_FILE, ImagePyramid
from pggan.data.sources.archives import ARCHIVES, TarSource, ZipSource
from pggan.data.sources.image_file import BadImage, ImageFile
from pggan.data.sources.npy import array_file
from pggan.data.sources.source import Entry, Source, first_folder, is_image_name, no_images

ADDRESS = re.compile(r"[a-z0-9]{2,}:/", re.IGNORECASE)  # https://…, of which a path keeps one slash


def open_source(path: Path) -> Source:
    """The folder, archive or pyramid at `path`.  Raises UserError when there is none."""
    if path.is_dir():
        return PyramidSource(path) if (path / INDEX_FILE).is_file() else FolderSource(path)
    if not path.exists():
        remedy = "Give the path of the folder or archive that holds the images."
        if ADDRESS.match(str(path)):
            remedy = "Addresses are not downloaded: get the archive first, and give its path."
        raise UserError(f"{path} does not exist.", remedy)
    if path.is_file() and path.suffix.lower() == ".zip":
        return ZipSource(path)
    if path.is_file() and path.suffix.lower() in ARCHIVES:
        return TarSource(path)
    raise UserError(
        f"{path} is neither a folder nor an archive.",
        f"Give a folder of images, or an archive ending in {', '.join(ARCHIVES)}.",
    )


# ---- folders


def disk_file(path: Path, root: Path) -> ImageFile:
    """A file below the folder `root`, which has no links in its path."""
    return ImageFile(path, partial(_open_below, path, root))


def _open_below(path: Path, root: Path) -> BinaryIO:
    # A folder from elsewhere must not draw other files of this machine into the dataset.
    if path.is_symlink():
        if not path.exists():
            raise BadImage(path, "a link that leads nowhere")
        if not Path(os.path.realpath(path)).is_relative_to(root):
            raise BadImage(path, "a link that leads out of the source folder")
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
        raise BadImage(path, "not a regular file")
    return path.open("rb")


def disk_entry(path: Path, root: Path, name: str, label: str | None) -> Entry:
    """The entry of a file below `root`; a link has changed when the file that it leads to has."""
    try:
        status = path.stat()
    except OSError:  # a link that leads nowhere
        status = path.lstat()
    stamp = f"{status.st_size}-{status.st_mtime_ns}"
    return Entry(name, stamp, status.st_size, disk_file(path, root), label=label)


class FolderSource(Source):
    """The image files under a folder, at any depth; hidden files and linked folders are passed over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description = {"kind": "folder", "name": path.resolve().name}

    def require_images(self) -> None:
        """Raise UserError where no file is named like an image."""
        if next(self._paths(), None) is None:
            raise no_images(self.description["name"])

    def entries(self) -> list[Entry]:
        """All image files, sorted by path."""
        root = Path(os.path.realpath(self.path))
        names = [(path, path.relative_to(self.path).as_posix()) for path in self._paths()]
        found = [disk_entry(path, root, name, first_folder(name)) for path, name in names]
        return sorted(found, key=lambda entry: entry.file.path)

    def _paths(self) -> Iterator[Path]:
        for folder, subfolders, names in os.walk(self.path):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            yield from (Path(folder, name) for name in names if is_image_name(name))


# ---- pyramids


@lru_cache(maxsize=4)
def _opened_pyramid(path: Path, changed: int) -> ImagePyramid:
    return ImagePyramid(path)


def _open_image(path: Path, number: int) -> BinaryIO:
    """The pixels of an image of the top level, as a NumPy file."""
    pyramid = _opened_pyramid(path, (path / INDEX_FILE).stat().st_mtime_ns)
    return array_file(pyramid.read(pyramid.resolution, np.array([number]))[0])


class PyramidSource(Source):
    """The top level of a prepared pyramid."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description = {"kind": "pyramid", "name": path.resolve().name}
        self._pyramid = ImagePyramid(path)

    def entries(self) -> list[Entry]:
        """All images, in their order."""
        pyramid = self._pyramid
        size = pyramid.resolution**2 * pyramid.channels
        names, labels = pyramid.class_names, pyramid.labels
        return [
            Entry(
                f"{index:08d}",
                f"{pyramid.fingerprint[:16]}-{index}",
                size,
                ImageFile(self.path / f"{index:08d}", partial(_open_image, self.path, index)),
                label=None if names is None or labels is None else names[labels[index]],
            )
            for index in range(pyramid.images)
        ]


# ---- several at once


class JoinedSource(Source):
    """Several sources as one; a name begins with its source's."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self.description = {
            "kind": "several",
            "name": ", ".join(str(source.description["name"]) for source in sources),
            "sources": [source.description for source in sources],
        }

    def entries(self) -> list[Entry]:
        """The entries of all, source by source."""
        return [
            entry._replace(name=self._prefix(number) + entry.name)
            for number, source in enumerate(self._sources)
            for entry in source.entries()
        ]

    def loaded(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The entries of all, source by source, ready to be opened."""
        wanted = list(entries)
        for number, source in enumerate(self._sources):
            prefix = self._prefix(number)
            own = [entry for entry in wanted if entry.name.startswith(prefix)]
            for entry in source.loaded([entry._replace(name=entry.name.removeprefix(prefix)) for entry in own]):
                yield entry._replace(name=prefix + entry.name)

    def _prefix(self, number: int) -> str:
        return f"{number + 1}-{self._sources[number].description['name']}/"
