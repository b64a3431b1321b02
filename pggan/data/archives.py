"""Images in zip and tar archives, read in place and never unpacked: no member is written to the disk."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from pggan.core.errors import UserError
from pggan.data.image_file import ImageFile
from pggan.data.sources import Entry, Source, first_folder, is_image_name

OPENERS = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}
COMPRESSED_TARS = {f".{name}": OPENERS[kind] for kind in OPENERS for name in (kind, f"t{kind}")}
ARCHIVES = (".zip", ".tar", *COMPRESSED_TARS)
MAX_MEMBER_BYTES = 64_000_000  # of an archive
MAX_PACKED_BYTES = 16_000_000  # of a compressed tar, whose members pass through this process
SIGNATURES = (b"\x89PNG", b"\xff\xd8\xff", b"RIFF")
SIGNATURE_BYTES = 6  # tell an image of another format and text, too
MAX_READ_BYTES = 2**24  # by the tar reader at once: what a header may make it read


@lru_cache(maxsize=4)  # once per process, and again when it was changed
def _opened_zip(path: Path, changed: int) -> tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]:
    archive = zipfile.ZipFile(path)
    return archive, archive.infolist()


def _open_zipped(path: Path, number: int) -> BinaryIO:
    """The file number `number` of a zip archive, unpacked while it is read."""
    archive, members = _opened_zip(path, path.stat().st_mtime_ns)
    return cast(BinaryIO, archive.open(members[number]))


class ZipSource(Source):
    """The image files in a zip archive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description = {"kind": "zip", "name": path.name}

    def entries(self) -> list[Entry]:
        """All image files, sorted by name.  Raises UserError for what is no zip archive."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                members = archive.infolist()
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise _unreadable(self.path, error) from error
        found = []
        for number, member in enumerate(members):
            if not member.is_dir() and is_image_name(member.filename):
                path = self.path / member.filename.lstrip("/")
                file = ImageFile(path, partial(_open_zipped, self.path, number))
                stamp = f"{member.file_size}-{member.CRC}"
                problem = "encrypted" if member.flag_bits & 1 else None
                found.append(Entry(member.filename, stamp, member.file_size, file, problem))
        return _checked(found, MAX_MEMBER_BYTES)


def _open_part(archive: Path, offset: int, size: int) -> BinaryIO:
    """A member of a tar archive that is not compressed."""
    with archive.open("rb") as file:
        file.seek(offset)
        return io.BytesIO(file.read(size))


class TarSource(Source):
    """The image files in a tar archive, compressed or not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description = {"kind": "tar", "name": path.name}
        self._status = path.stat()
        self._unpack = COMPRESSED_TARS.get(path.suffix.lower())

    def entries(self) -> list[Entry]:
        """All image files, sorted by name.  Raises UserError for what is no tar archive, or a damaged one."""
        found = []
        for member, _ in self._members():
            if not member.isdir() and is_image_name(member.name):
                content = partial(_open_part, self.path, member.offset_data, member.size)
                file = ImageFile(self.path / member.name.lstrip("/"), content)
                problem = None if member.isreg() else "not a regular file"
                found.append(Entry(member.name, self._stamp(member), member.size, file, problem))
        return _checked(found, MAX_PACKED_BYTES if self._unpack else MAX_MEMBER_BYTES)

    def loaded(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The entries with their content, where the archive is compressed; in the order of the archive."""
        if self._unpack is None:
            yield from entries
            return
        wanted = {entry.stamp: entry for entry in entries}
        for member, archive in self._members():
            entry = wanted.get(self._stamp(member))
            if entry is not None and entry.problem is None and member.isreg():
                content = archive.extractfile(member)
                assert content is not None, "a regular file"
                start = content.read(SIGNATURE_BYTES)
                # Megabytes of zeros under an image's name are not worth unpacking.
                rest = content.read() if start.startswith(SIGNATURES) else b""
                yield entry._replace(file=entry.file._replace(open=partial(io.BytesIO, start + rest)))
            elif entry is not None:
                yield entry

    def _stamp(self, member: tarfile.TarInfo) -> str:
        """Differs for every member, and when the archive has changed."""
        return f"{member.size}-{member.mtime}-{member.offset_data}-{self._status.st_size}-{self._status.st_mtime_ns}"

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
        if not 0 <= size <= MAX_READ_BYTES:
            raise ValueError(f"a header or file of {size:,} bytes")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def _checked(entries: list[Entry], largest: int) -> list[Entry]:
    """The members of an archive sorted by name, with their classes and what is wrong with their names and sizes.

    Of several members with one name the last one counts, as when an archive is unpacked.
    """
    by_name = {}
    for entry in entries:
        path, problem = PurePosixPath(entry.name), entry.problem
        if path.is_absolute() or ".." in path.parts:
            problem = "a name that leads out of the archive"
        elif entry.size > largest:
            problem = f"larger than {largest // 10**6} MB"
        by_name[entry.name] = entry._replace(problem=problem, label=first_folder(entry.name))
    return [by_name[name] for name in sorted(by_name)]


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} can't be read: {error}.", "The archive is damaged or of another kind: get it again.")
