"""The image files in a folder, an archive, another pyramid, or several of these; nothing is decoded here."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from pggan.core.errors import UserError
from pggan.data.archives import ARCHIVES, TarSource, ZipSource
from pggan.data.face_crop import to_pil
from pggan.data.image_file import ImageFile, ImageHeader, png_file
from pggan.data.pyramid import INDEX_FILE, ImagePyramid
from pggan.data.source import Entry, FolderSource, Source
from pggan.data.torchvision_sets import NamedSet, NamedSource, named_set

ADDRESS = re.compile(r"[a-z0-9]{2,}:/", re.IGNORECASE)  # https://…, of which a path keeps one slash


def open_sources(paths: object, named: NamedSet) -> Source:
    """The source that `paths` names: a path, the name of a known set, or a list of these.  Raises UserError."""
    if isinstance(paths, list):
        if not paths:
            raise UserError("source=[] names nothing.", "Give at least one folder or archive.")
        return JoinedSource([open_sources(path, named) for path in paths])
    name = named_set(str(paths))
    return open_source(Path(str(paths))) if name is None else NamedSource(name, named)


def open_for_training(path: str, cache: str) -> Source:
    """The source at `path`, or the known set of that name, which is downloaded into `cache`.  Raises UserError."""
    return open_sources(path, NamedSet(Path(cache, "downloads"), "train", download=True))


def require_source(path: str) -> None:
    """Raise UserError for a path that `open_sources` refuses, or a folder without images; a known set is not opened."""
    source = open_source(Path(path)) if named_set(path) is None else None
    if isinstance(source, FolderSource):
        source.require_images()


def open_source(path: Path) -> Source:
    """The folder, archive or pyramid at `path`.  Raises UserError when there is none."""
    if path.is_dir():
        return PyramidSource(path) if (path / INDEX_FILE).is_file() else FolderSource(path)
    if not path.exists():
        remedy = "Give the path of the folder or archive that holds the images."
        if ADDRESS.match(str(path)):
            remedy = "Addresses are not downloaded: get the archive first, and give its path."
        raise UserError(f"{path} does not exist.", remedy)
    if path.is_file() and path.suffix.lower() in ARCHIVES:
        return ZipSource(path) if path.suffix.lower() == ".zip" else TarSource(path)
    problem = f"{path} is neither a folder nor an archive."
    raise UserError(problem, f"Give a folder of images, or an archive ending in {', '.join(ARCHIVES)}.")


@lru_cache(maxsize=4)
def _opened_pyramid(path: Path, changed: int) -> ImagePyramid:
    return ImagePyramid(path)


def _open_image(path: Path, number: int) -> BinaryIO:
    """An image of the top level, as a PNG file."""
    pyramid = _opened_pyramid(path, (path / INDEX_FILE).stat().st_mtime_ns)
    return png_file(to_pil(pyramid.read(pyramid.resolution, np.array([number]))[0]))


class PyramidSource(Source):
    """The top level of a prepared pyramid."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description = {"kind": "pyramid", "name": path.resolve().name}
        self._pyramid = ImagePyramid(path)

    def entries(self) -> list[Entry]:
        """All images, in their order."""
        pyramid = self._pyramid
        side, channels = pyramid.resolution, pyramid.channels
        names, labels = pyramid.class_names, pyramid.labels
        return [
            Entry(
                f"{index:08d}",
                f"{pyramid.fingerprint[:16]}-{index}",
                side * side * channels,
                ImageFile(self.path / f"{index:08d}", partial(_open_image, self.path, index)),
                label=None if names is None or labels is None else names[labels[index]],
                header=ImageHeader(side, side, channels),
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
