"""What images there are: in a folder, a zip or tar archive, or another pyramid.  Nothing is decoded here.

Archives are read in place and never unpacked, so nothing in them can be written anywhere.
"""

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, Protocol, cast

import numpy as np

from pggan.data.arrays import MAGIC
from pggan.data.images import EXTENSIONS, BadImage, ImageFile, Loaded, open_regular
from pggan.data.pyramid import INDEX_FILE, ImagePyramid
from pggan.errors import UserError

# Named among the bad files instead of being passed over: whoever has them wants to know.
UNREADABLE_EXTENSIONS = (".gif", ".bmp", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".ppm", ".pgm")
COMPRESSED_TARS = {
    ".gz": gzip.open,
    ".tgz": gzip.open,
    ".bz2": bz2.open,
    ".tbz2": bz2.open,
    ".xz": lzma.open,
    ".txz": lzma.open,
}
ARCHIVES = (".zip", ".tar", *COMPRESSED_TARS)
LARGEST_MEMBER_BYTES = 64_000_000  # of an archive
LARGEST_PACKED_BYTES = 16_000_000  # of a compressed tar, whose members pass through this process
SIGNATURES = (b"\x89PNG", b"\xff\xd8\xff", b"RIFF", MAGIC)
LARGEST_READ_BYTES = 2**24  # by the tar reader at once: what a header may make it read


class Entry(NamedTuple):
    """One image file of a source, not opened yet.

    `name` has slashes and tells it from all others of the source; `stamp` is another one when the content may be
    another; `size` in bytes; `problem` says why it is not even to be opened; `label` is the class that the source
    itself gives it: its first sub-folder, or that of the dataset.
    """

    name: str
    stamp: str
    size: int
    file: ImageFile
    problem: str | None = None
    label: str | None = None


class Source(Protocol):
    """Where image files come from; `description` is kept with the dataset."""

    description: dict[str, object]

    def entries(self) -> list[Entry]:
        """All image files, sorted by name."""

    def loaded(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The same entries, ready to be opened in another process."""


def is_image_name(name: str) -> bool:
    """Whether a file of this name is meant to be an image."""
    path = PurePosixPath(name)
    return path.suffix.lower() in (*EXTENSIONS, *UNREADABLE_EXTENSIONS) and not any(
        part.startswith(".") and part != ".." for part in path.parts
    )


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
    """A file below the folder `root`, which is resolved."""

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


class FolderSource:
    """The image files under a folder, at any depth; hidden files and linked folders are passed over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description: dict[str, object] = {"kind": "folder", "name": path.resolve().name}

    def entries(self) -> list[Entry]:
        """All image files, sorted by path."""
        root = Path(os.path.realpath(self.path))
        found: list[Entry] = []
        for folder, subfolders, names in os.walk(self.path):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            for name in names:
                if is_image_name(name):
                    path = Path(folder, name)
                    status = path.lstat()
                    stamp = f"{status.st_size}-{status.st_mtime_ns}"
                    inner = path.relative_to(self.path).as_posix()
                    file = DiskFile(path, root)
                    found.append(Entry(inner, stamp, status.st_size, file, label=_first_folder(inner)))
        return sorted(found, key=lambda entry: entry.file.path)

    def loaded(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The entries as they are."""
        return iter(entries)


# ---- archives


class ZipMember(NamedTuple):
    """The file number `number` of a zip archive."""

    archive: Path
    number: int
    path: Path

    def open(self) -> BinaryIO:
        """Its content, unpacked while it is read."""
        archive, members = _opened_zip(self.archive, self.archive.stat().st_mtime_ns)
        return cast(BinaryIO, archive.open(members[self.number]))


@lru_cache(maxsize=4)  # once per process, and again when it was changed
def _opened_zip(path: Path, changed: int) -> tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]:
    archive = zipfile.ZipFile(path)
    return archive, archive.infolist()


class ZipSource:
    """The image files in a zip archive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description: dict[str, object] = {"kind": "zip", "name": path.name}

    def entries(self) -> list[Entry]:
        """All image files, sorted by name.  Raises UserError for what is no zip archive."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                members = archive.infolist()
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise _unreadable(self.path, error) from error
        found = [
            Entry(
                member.filename,
                f"{member.file_size}-{member.CRC}",
                member.file_size,
                ZipMember(self.path, index, self.path / member.filename.lstrip("/")),
                _member_problem(member.filename, member.file_size, LARGEST_MEMBER_BYTES)
                or ("encrypted" if member.flag_bits & 1 else None),
                _first_folder(member.filename),
            )
            for index, member in enumerate(members)
            if not member.is_dir() and is_image_name(member.filename)
        ]
        return _unique(found)

    def loaded(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The entries as they are."""
        return iter(entries)


class TarMember(NamedTuple):
    """`size` bytes at `offset` of a tar archive that is not compressed."""

    archive: Path
    offset: int
    size: int
    path: Path

    def open(self) -> BinaryIO:
        """Its content."""
        with self.archive.open("rb") as archive:
            archive.seek(self.offset)
            return io.BytesIO(archive.read(self.size))


class TarSource:
    """The image files in a tar archive, compressed or not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description: dict[str, object] = {"kind": "tar", "name": path.name}
        self._unpack = COMPRESSED_TARS.get(path.suffix.lower())

    def entries(self) -> list[Entry]:
        """All image files, sorted by name.  Raises UserError for what is no tar archive, or a damaged one."""
        largest = LARGEST_PACKED_BYTES if self._unpack else LARGEST_MEMBER_BYTES
        status = self.path.stat()
        found = []
        for member, _ in self._members():
            if member.isdir() or not is_image_name(member.name):
                continue
            problem = _member_problem(member.name, member.size, largest)
            stamp = f"{member.size}-{member.mtime}-{member.offset_data}-{status.st_size}-{status.st_mtime_ns}"
            name = self.path / member.name.lstrip("/")
            file = TarMember(self.path, member.offset_data, member.size, name)
            found.append(
                Entry(
                    member.name,
                    stamp,
                    member.size,
                    file,
                    problem or (None if member.isreg() else "not a regular file"),
                    _first_folder(member.name),
                )
            )
        return _unique(found)

    def loaded(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The entries with their content, where the archive is compressed; in the order of the archive."""
        if self._unpack is None:
            yield from entries
            return
        wanted = {cast(TarMember, entry.file).offset: entry for entry in entries}
        for member, archive in self._members():
            entry = wanted.get(member.offset_data)
            if entry is not None and entry.problem is None and member.isreg():
                content = archive.extractfile(member)
                assert content is not None, "a regular file"
                start = content.read(len(MAGIC))
                # Megabytes of zeros under an image's name are not worth unpacking.
                rest = content.read() if start.startswith(SIGNATURES) else b""
                yield entry._replace(file=Loaded(entry.file.path, start + rest))
            elif entry is not None:
                yield entry

    def _members(self) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
        try:
            with (
                cast(BinaryIO, (self._unpack or open)(self.path, "rb")) as file,  # type: ignore[operator]
                tarfile.open(fileobj=_LimitedReads(file), mode="r:") as archive,
            ):
                while (member := archive.next()) is not None:
                    archive.members = []  # type: ignore[attr-defined]  # or millions of them would stay in memory
                    yield member, archive
        except (OSError, tarfile.TarError, EOFError, lzma.LZMAError, ValueError) as error:
            raise _unreadable(self.path, error) from error


class _LimitedReads(io.RawIOBase):
    """A file that refuses to be read in large pieces: a header can announce a name of gigabytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LARGEST_READ_BYTES:
            raise ValueError(f"a header or file of {size:,} bytes")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def _member_problem(name: str, size: int, largest: int) -> str | None:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        return "a name that leads out of the archive"
    return f"larger than {largest // 10**6} MB" if size > largest else None


def _unique(entries: list[Entry]) -> list[Entry]:
    """Entries sorted by name; of several with one name the last one counts, as when an archive is unpacked."""
    by_name = {entry.name: entry for entry in entries}
    return [by_name[name] for name in sorted(by_name)]


def _first_folder(name: str) -> str | None:
    return name.removeprefix("./").split("/")[0] if "/" in name.removeprefix("./") else None


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} can't be read: {error}.", "The archive is damaged or of another kind: get it again.")


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


def array_file(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> BinaryIO:
    """An array as a .npy file in memory."""
    content = io.BytesIO()
    np.save(content, pixels)
    content.seek(0)
    return content


@lru_cache(maxsize=4)
def _opened_pyramid(path: Path, changed: int) -> ImagePyramid:
    return ImagePyramid(path)


class PyramidSource:
    """The top level of a prepared pyramid."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description: dict[str, object] = {"kind": "pyramid", "name": path.resolve().name}
        self._pyramid = ImagePyramid(path)

    def _name(self, index: int) -> str:
        return f"{index:08d}"

    def entries(self) -> list[Entry]:
        """All images, in their order."""
        pyramid = self._pyramid
        size = pyramid.resolution**2 * pyramid.channels
        names, labels = pyramid.class_names, pyramid.labels
        return [
            Entry(
                self._name(index),
                f"{pyramid.fingerprint[:16]}-{index}",
                size,
                PyramidImage(self.path, index, self.path / self._name(index)),
                label=None if names is None or labels is None else names[labels[index]],
            )
            for index in range(pyramid.images)
        ]

    def loaded(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The entries as they are."""
        return iter(entries)


# ---- several at once


class JoinedSource:
    """Several sources as one; a name begins with its source's."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self.description: dict[str, object] = {
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
            mine = [
                entry._replace(name=entry.name.removeprefix(prefix))
                for entry in wanted
                if entry.name.startswith(prefix)
            ]
            for entry in source.loaded(mine):
                yield entry._replace(name=prefix + entry.name)

    def _prefix(self, number: int) -> str:
        return f"{number + 1}-{self._sources[number].description['name']}/"
