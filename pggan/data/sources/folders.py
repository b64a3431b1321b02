"""The image files in a folder, an archive, another pyramid, or several of these; nothing is decoded here."""

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from pggan.core.errors import UserError
from pggan.data.format.pyramid import INDEX_FILE, ImagePyramid
from pggan.data.sources.archives import ARCHIVES, TarSource, ZipSource
from pggan.data.sources.image_file import BadImage, open_regular
from pggan.data.sources.npy import array_file
from pggan.data.sources.source import Entry, Source, first_folder, is_image_name


def open_source(path: Path) -> Source:
    """The folder, archive or pyramid at `path`.  Raises UserError when there is none."""
    if path.is_dir():
        return PyramidSource(path) if (path / INDEX_FILE).is_file() else FolderSource(path)
    if not path.exists():
        raise UserError(f"{path} does not exist.", "Give the path of the folder or archive that holds the images.")
    if path.is_file() and path.suffix.lower() == ".zip":
        return ZipSource(path)
    if path.is_file() and path.suffix.lower() in ARCHIVES:
        return TarSource(path)
    raise UserError(
        f"{path} is neither a folder nor an archive.",
        f"Give a folder of images, or an archive ending in {', '.join(ARCHIVES)}.",
    )


# ---- folders


class DiskFile(NamedTuple):
    """A file below the folder `root`, which has no links in its path."""

    path: Path
    root: Path

    def open(self) -> BinaryIO:
        """Its content.  Raises BadImage for what is no file of this folder."""
        # A folder from elsewhere must not draw other files of this machine into the dataset.
        if self.path.is_symlink():
            if not self.path.exists():
                raise BadImage(self.path, "a link that leads nowhere")
            if not Path(os.path.realpath(self.path)).is_relative_to(self.root):
                raise BadImage(self.path, "a link that leads out of the source folder")
        return open_regular(self.path)

    def entry(self, name: str, label: str | None) -> Entry:
        """The entry of this file, of which a link is another one when the file that it leads to is."""
        try:
            status = self.path.stat()
        except OSError:  # a link that leads nowhere
            status = self.path.lstat()
        return Entry(name, f"{status.st_size}-{status.st_mtime_ns}", status.st_size, self, label=label)


class FolderSource(Source):
    """The image files under a folder, at any depth; hidden files and linked folders are passed over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description = {"kind": "folder", "name": path.resolve().name}

    def entries(self) -> list[Entry]:
        """All image files, sorted by path."""
        root = Path(os.path.realpath(self.path))
        found: list[Entry] = []
        for folder, subfolders, names in os.walk(self.path):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            for name in names:
                if is_image_name(name):
                    path = Path(folder, name)
                    inner = path.relative_to(self.path).as_posix()
                    found.append(DiskFile(path, root).entry(inner, first_folder(inner)))
        return sorted(found, key=lambda entry: entry.file.path)


# ---- pyramids


class PyramidImage(NamedTuple):
    """One image of the top level of a pyramid."""

    pyramid: Path
    number: int
    path: Path

    def open(self) -> BinaryIO:
        """Its pixels, as a NumPy file."""
        pyramid = _opened_pyramid(self.pyramid, (self.pyramid / INDEX_FILE).stat().st_mtime_ns)
        return array_file(pyramid.read(pyramid.resolution, np.array([self.number]))[0])


@lru_cache(maxsize=4)
def _opened_pyramid(path: Path, changed: int) -> ImagePyramid:
    return ImagePyramid(path)


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
                PyramidImage(self.path, index, self.path / f"{index:08d}"),
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
