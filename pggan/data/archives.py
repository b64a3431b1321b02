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


def archive_source(path: Path) -> Source:
    """The image files in an archive, sorted by name.  Raises UserError for a damaged one."""
    kind = "zip" if path.suffix.lower() == ".zip" else "tar"
    found = _zipped(path) if kind == "zip" else _tarred(path)
    by_name = {entry.name: entry for entry in found}  # of several with one name the last one counts, as when unpacked
    loaded = partial(_unpacked, path) if _is_packed(path) else iter
    return Source({"kind": kind, "name": path.name}, [by_name[name] for name in sorted(by_name)], loaded)


def _entry(
    path: Path, name: str, stamp: str, size: int, *, content: partial[BinaryIO], problem: str | None = None
) -> Entry:
    """The entry of the member `name`, which has `size` bytes."""
    place, largest = PurePosixPath(name), MAX_PACKED_BYTES if _is_packed(path) else MAX_MEMBER_BYTES
    if place.is_absolute() or ".." in place.parts:
        problem = "a name that leads out of the archive"
    elif size > largest:
        problem = f"larger than {largest // 10**6} MB"
    return Entry(name, stamp, ImageFile(path / name.lstrip("/"), content), problem, first_folder(name))


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() in COMPRESSED_TARS


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} can't be read: {error}.", "The archive is damaged or of another kind: get it again.")


# ---- zip


def _zipped(path: Path) -> Iterator[Entry]:
    """The images of a zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise _unreadable(path, error) from error
    for member in members:
        if not member.is_dir() and is_image_name(member.filename):
            content = partial(_open_zipped, path, member.filename)
            problem = "encrypted" if member.flag_bits & 1 else None
            stamp, size = f"{member.file_size}-{member.CRC}", member.file_size
            yield _entry(path, member.filename, stamp, size, content=content, problem=problem)


@lru_cache(maxsize=4)  # once per process, and again when it was changed
def _opened_zip(path: Path, changed: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


def _open_zipped(path: Path, name: str) -> BinaryIO:
    """A member of a zip archive, unpacked while it is read; the last of several with one name."""
    return cast(BinaryIO, _opened_zip(path, path.stat().st_mtime_ns).open(name))


# ---- tar


def _tarred(path: Path) -> Iterator[Entry]:
    """The images of a tar archive, compressed or not."""
    for member, stamp, _ in _members(path):
        if not member.isdir() and is_image_name(member.name):
            content = partial(_open_part, path, member.offset_data, member.size)
            problem = None if member.isreg() else "not a regular file"
            yield _entry(path, member.name, stamp, member.size, content=content, problem=problem)


def _members(path: Path) -> Iterator[tuple[tarfile.TarInfo, str, tarfile.TarFile]]:
    """Each member with a stamp, which differs for all of them and when the archive has changed, and the archive."""
    unpack, status = COMPRESSED_TARS.get(path.suffix.lower(), open), path.stat()
    try:
        with (
            cast(BinaryIO, unpack(path, "rb")) as file,  # type: ignore[operator]
            tarfile.open(fileobj=file, mode="r:") as archive,
        ):
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # or millions of them would stay in memory
                place = f"{member.size}-{member.mtime}-{member.offset_data}"
                yield member, f"{place}-{status.st_size}-{status.st_mtime_ns}", archive
    except (OSError, tarfile.TarError, EOFError, lzma.LZMAError, ValueError) as error:
        raise _unreadable(path, error) from error


def _open_part(archive: Path, offset: int, size: int) -> BinaryIO:
    """A member of a tar archive that is not compressed."""
    with archive.open("rb") as file:
        file.seek(offset)
        return io.BytesIO(file.read(size))


def _unpacked(path: Path, entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries of a compressed tar archive with their content, in the order of the archive."""
    wanted = {entry.stamp: entry for entry in entries}
    for member, stamp, archive in _members(path):
        if (entry := wanted.get(stamp)) is not None:
            content = archive.extractfile(member) if entry.problem is None else None
            if content is not None:
                entry = entry._replace(file=entry.file._replace(open=partial(io.BytesIO, content.read())))
            yield entry
