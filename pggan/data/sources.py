"""List the image files of a folder, a zip or a tar archive.  Archives are never unpacked to the disk."""

import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from pggan.core.errors import UserError
from pggan.data.face_crop import Landmarks
from pggan.data.formats import BadImage
from pggan.data.image_file import EXTENSIONS, ImageFile, ImageHeader

# pggan can't read images with these extensions, and reports them as bad files, so that users notice them.
UNREADABLE = [".gif", ".bmp", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".ppm", ".pgm", ".npy"]
MAX_MEMBER_BYTES = 64_000_000  # larger files in an archive are not unpacked


class Entry(NamedTuple):
    """One image file of a source, not opened yet.

    name: the path relative to the source, with slashes; no two files of a source have the same name.
    problem: why the file must not be opened, or None.
    label: the class of the image: its first sub-folder, or its class in a known data set.
    stamp: a text, such as size and modification time, that changes when the content may have changed.
    header: size and colour of an avatar, known before the avatar is drawn; None for files, which have a header.
    face: with crop=face, the landmarks of the face that is cut out.
    offset: where the file begins in a tar archive, in bytes.
    """

    name: str
    file: ImageFile
    problem: str | None = None
    label: str | None = None
    stamp: str = ""
    header: ImageHeader | None = None
    face: Landmarks | None = None
    offset: int = 0


@dataclass
class Source:
    """Image files from one place, in the order of their paths.  Raises UserError if there are no image files.

    description: where the images come from, for the index of the dataset: a "kind", a "name" and more.
    """

    description: dict[str, object]
    entries: list[Entry]

    def __post_init__(self) -> None:
        if not self.entries:
            remedy = f"Images are files ending in {', '.join(EXTENSIONS)}; links to folders are not followed."
            raise UserError(f"There are no images in {self.description['name']}.", remedy)
        self.entries = sorted(self.entries, key=lambda entry: entry.file.path)

    def in_reading_order(self) -> list[Entry]:
        """The entries sorted by offset, because a step back in a compressed tar archive unpacks it from the start."""
        return sorted(self.entries, key=lambda entry: entry.offset)


def is_image_name(name: str) -> bool:
    """Whether a name has the extension of an image, and no hidden part (such as `.cache/a.png`)."""
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") and part != ".." for part in path.parts)
    return not hidden and path.suffix.lower() in (*EXTENSIONS, *UNREADABLE)


def first_folder(name: str) -> str | None:
    """The first folder of a relative path, such as "cats" for "cats/1.png"; None for a file that lies in no folder."""
    folder, slash, _ = name.removeprefix("./").partition("/")
    return folder if slash else None


def folder_source(path: Path) -> Source:
    """The image files under a folder, at any depth.  Hidden files and links to folders are ignored."""
    root, found = Path(os.path.realpath(path)), []
    for folder, subfolders, names in os.walk(path):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for file in (Path(folder, name) for name in names if is_image_name(name)):
            name, stamp = file.relative_to(path).as_posix(), "missing"
            with suppress(OSError):  # `stat` fails for a link that leads nowhere
                status = file.stat()
                stamp = f"{status.st_size}-{status.st_mtime_ns}"
            content = ImageFile(file, partial(_open_below, file, root))
            found.append(Entry(name, content, label=first_folder(name), stamp=stamp))
    return Source({"kind": "folder", "name": path.resolve().name}, found)


def _open_below(path: Path, root: Path) -> BinaryIO:
    # A link in a downloaded folder must not bring other files of this machine into the dataset.
    if path.is_symlink():
        if not path.exists():
            raise BadImage("a link that leads nowhere")
        if not Path(os.path.realpath(path)).is_relative_to(root):
            raise BadImage("a link that leads out of the source folder")
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
        raise BadImage("not a regular file")
    return path.open("rb")


# ---- archives


def archive_source(path: Path) -> Source:
    """The image files in a zip archive, or in a tar archive, which may be compressed.

    Raises UserError for a file of another type, and for a damaged archive.
    """
    kind, members = ("zip", _zipped) if zipfile.is_zipfile(path) else ("tar", _tarred)
    try:
        # If an archive holds several files of one name, the last file counts: unpacking would overwrite the others.
        found = {entry.name: entry for entry in members(path) if is_image_name(entry.name)}
    except Exception as error:  # a damaged archive may raise any type of error
        problem = f"{path} can't be read as a zip or tar archive: {str(error).partition(':')[0]}."
        raise UserError(problem, "Give a folder of images or an archive; download a damaged archive again.") from error
    return Source({"kind": kind, "name": path.name}, list(found.values()))


def _zipped(path: Path) -> Iterator[Entry]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                entry = _member(path, member.filename, member.file_size, member.filename)
                yield entry._replace(stamp=f"{member.file_size}-{member.CRC}")


def _tarred(path: Path) -> Iterator[Entry]:
    changed = path.stat().st_mtime_ns
    with tarfile.open(path) as archive:
        for member in archive:
            if not member.isdir():
                entry = _member(path, member.name, member.size, member)
                yield entry._replace(stamp=f"{changed}-{member.offset}", offset=member.offset)


def _member(path: Path, name: str, size: int, member: str | tarfile.TarInfo) -> Entry:
    """The Entry of one file in an archive; the caller adds `Entry.stamp`, which shows whether the file has changed."""
    problem = None
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        problem = "a name that leads out of the archive"
    elif isinstance(member, tarfile.TarInfo) and not member.isreg():
        problem = "not a regular file"
    elif size > MAX_MEMBER_BYTES:
        problem = f"larger than {MAX_MEMBER_BYTES // 10**6} MB"
    file = ImageFile(path / name.lstrip("/"), partial(_open_member, path, member))
    return Entry(name, file, problem, first_folder(name))


class _Tar(tarfile.TarFile):
    def __del__(self) -> None:  # a garbage-collected archive gets closed, as in zipfile.ZipFile
        self.close()


@lru_cache(maxsize=4)  # a process opens each archive once, and again when the archive has changed
def _opened(path: Path, changed: int) -> Any:
    return zipfile.ZipFile(path) if zipfile.is_zipfile(path) else _Tar.open(path)


def _open_member(path: Path, member: str | tarfile.TarInfo) -> BinaryIO:
    """Open one file of an archive for reading; the file is decompressed while it is read."""
    archive = _opened(path, path.stat().st_mtime_ns)
    content: BinaryIO = archive.open(member) if isinstance(member, str) else archive.extractfile(member)
    return content
