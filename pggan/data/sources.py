"""List the image files of a folder, a zip or a tar archive, without unpacking the archive to the disk."""

import os
import re
import stat
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple
from unicodedata import normalize
from zlib import crc32

from pggan.core.errors import UserError
from pggan.data.face_crop import Landmarks
from pggan.data.image_file import EXTENSIONS, FORMATS, BadImage, ImageFile, ImageHeader, kind_of
from pggan.data.pyramid import is_pyramid

# Files with these extensions can't be read, but are reported as bad images, so that users notice the files.
UNREADABLE = [".gif", ".bmp", ".tif", ".tiff", ".heic", ".heif", ".jp2", ".jxl", ".ppm", ".pgm", ".npy"]
TABLE = "dataset.json"  # StyleGAN's tools write the labels of images into this file
COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
LINKED = "links to folders (cp -rL copies their files)"
SPECIAL = "a link or another special file: unpack the archive"
HIDDEN = r"(^|/)(\.(?!\.?/)|@eaDir/)"  # names that begin with a dot, and folders of thumbnails of a Synology NAS
# Python decodes the bytes of a non-UTF-8 file name to surrogates.  This table maps the surrogates to Latin-1 letters.
LATIN_1 = {0xDC00 + byte: byte for byte in range(128, 256)}
MAX_MEMBER_BYTES = 64_000_000  # maximum size of a file in an archive; larger files are refused


class Entry(NamedTuple):
    """An image file that has not been opened yet."""

    name: str  # the path in the folder or archive, with slashes; no two entries of a `Source` have the same name
    file: ImageFile
    problem: str | None = None  # the reason to refuse the file before it is opened, or None
    label: str | None = None  # name of the image's class
    stamp: str = ""  # a text that changes when the file changes, such as the file's size and modification time
    header: ImageHeader | None = None  # set only for avatars (drawn cartoon faces), whose size is known in advance
    face: Landmarks | None = None  # landmarks of the face that crop=faces cuts out
    offset: int = 0  # where the file begins in a tar archive, in bytes


@dataclass
class Source:
    """The image files of a folder, archive or data set, sorted by path; raises UserError if there are no images."""

    description: dict[str, object]  # where the images come from ("kind", "name" and more), stored in index.json
    entries: list[Entry]
    others: dict[str, int] = field(default_factory=dict)  # {extension or `LINKED`: number of skipped files or links}
    table: Entry | None = None  # dataset.json of StyleGAN's tools, which may hold labels

    def __post_init__(self) -> None:
        if not self.entries:
            problem = f"There are no images in {self.description['name']}. Other files: {self.others or 'none'}."
            unpack = "Unpack a prepared data set, and give the folder that holds its index.json."
            kinds = f"Images are files ending in {', '.join(EXTENSIONS)}."
            raise UserError(problem, unpack if ".bin" in self.others else kinds)
        # macOS may store ü as u and a combining mark.  The order must not depend on this, so names are normalized.
        self.entries = sorted(
            self.entries, key=lambda entry: [normalize("NFC", part) for part in entry.file.path.parts]
        )

    def in_reading_order(self) -> list[Entry]:
        """Return the entries in the order of the tar archive, because seeking back in a compressed archive is slow."""
        return sorted(self.entries, key=lambda entry: entry.offset)


def source_of(description: dict[str, object], files: Iterable[Entry]) -> Source:
    """Select images that are not hidden.  A file's class is its first folder below the folder shared by all files."""
    # Of several files with the same name in an archive, the last one counts, as after unpacking.
    given = {str(PurePosixPath(file.name)): file for file in files}
    named = {name.translate(LATIN_1): file for name, file in given.items()}
    if len(named) < len(given):  # "ü" in UTF-8 and "ü" in Latin-1 must stay two names
        named = {os.fsencode(name).decode(errors="backslashreplace"): file for name, file in given.items()}
    found = {name: one._replace(name=name) for name, one in named.items() if not re.search(HIDDEN, name)}
    ends = {name: LINKED if found[name].problem == LINKED else PurePosixPath(name).suffix.lower() for name in found}
    folders = {name: PurePosixPath(name).parts[:-1] for name in found if ends[name] in (*EXTENSIONS, *UNREADABLE)}
    shared = os.path.commonprefix([*folders.values()])  # noqa: RUF071 - of names of folders, not of letters
    depth = len(shared) - (bool(shared) and set(folders.values()) == {shared})
    images = [found[name]._replace(label=next(iter(parts[depth:]), None)) for name, parts in folders.items()]
    others = Counter(ends[name] or "without extension" for name in found if name not in folders)
    tables = (found.get("/".join([*shared[:length], TABLE])) for length in range(len(shared), -1, -1))
    return Source(description, images, dict(others.most_common()), next(filter(None, tables), None))


def folder_source(path: Path) -> Source:
    """List the image files at any depth of a folder, without hidden files and without links to folders."""
    return source_of({"kind": "folder", "name": path.resolve().name}, _files_below(path))


def _files_below(path: Path) -> Iterator[Entry]:
    root = Path(os.path.realpath(path))
    for folder, subfolders, names in os.walk(path, onerror=_refuse):
        is_run = "config.yaml" in names and not {"checkpoints", "samples"}.isdisjoint(subfolders)
        if Path(folder) != path and (is_run or is_pyramid(Path(folder))):  # skips pictures in runs and datasets
            subfolders[:], names[:] = [], []
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        links = [name for name in subfolders if Path(folder, name).is_symlink()]
        for file in (Path(folder, name) for name in names + links):
            stamp = "missing"
            with suppress(OSError):  # for a broken link, `stat` fails, and `stamp` stays "missing"
                status = file.stat()
                stamp = f"{status.st_size}-{status.st_mtime_ns}"
            content = ImageFile(file, partial(_open_below, file, root))
            problem = LINKED if file.name in links else None
            yield Entry(file.relative_to(path).as_posix(), content, problem, stamp=stamp)


def _refuse(error: OSError) -> None:
    problem = f"The folder {error.filename} can't be read: {error.strerror}."
    raise UserError(problem, f"Give yourself the permission to read it: chmod -R u+rX {error.filename}")


def _open_below(path: Path, root: Path) -> BinaryIO:
    # A link in a downloaded folder must not bring other files of this machine into the dataset.
    if path.is_symlink():
        if not path.exists():
            raise BadImage("a link that leads nowhere")
        if not Path(os.path.realpath(path)).is_relative_to(root):
            raise BadImage("a link that leads out of the source folder; `cp -rL` makes a folder without links")
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
        raise BadImage("not a regular file")
    return path.open("rb")


def archive_source(path: Path) -> Source:
    """List the image files of a zip or tar archive; raises UserError if the archive is damaged or of another kind."""
    kind, members = ("zip", _zipped) if _is_zip(path) else ("tar", _tarred)
    try:
        return source_of({"kind": kind, "name": path.name}, members(path))
    except UserError:
        raise
    except Exception as error:  # a damaged archive may raise any type of error
        with path.open("rb") as file:
            is_damaged = "not be opened" not in str(error) or re.search(r"(gz|bz2|xz): .+(checksum|zlib)", str(error))
            what = None if is_damaged else kind_of(file)
        if path.suffix.lower() in EXTENSIONS or (what or "").startswith(FORMATS):
            what = "one image: name its folder"
        problem = f"{path} can't be read as a zip or tar archive: {str(error).partition(':')[0]}."
        remedy = "download a damaged archive again." if what is None else f"this file is {what}."
        raise UserError(problem, f"Give a folder of images or an archive; {remedy}") from error


def _is_zip(path: Path) -> bool:
    return zipfile.is_zipfile(path) and not tarfile.is_tarfile(path)  # is_zipfile accepts a tar that ends with a zip


def _zipped(path: Path) -> Iterator[Entry]:
    with zipfile.ZipFile(path) as archive:
        if any(member.volume for member in archive.infolist()):
            raise UserError(f"{path} is one part of a split zip.", "Join the parts: zip -s 0 FILE.zip --out WHOLE.zip")
        for member in archive.infolist():
            name = member.filename
            with suppress(UnicodeError):
                if not member.flag_bits & 0x800:  # some programs write UTF-8 names without the UTF-8 flag
                    raw = name.encode("cp437")
                    # Info-ZIP's path: "up", the size of the rest, the byte 1, the CRC-32 of `raw`, the name in UTF-8.
                    before, _, after = member.extra.partition(b"\1" + crc32(raw).to_bytes(4, "little"))
                    raw = after[: int.from_bytes(before[-2:], "little") - 5] if before[-4:-2] == b"up" else raw
                    name = raw.decode()
                name = name.replace("\\", "/")  # some programs on Windows write paths with backslashes
            # In a name that is not UTF-8, a backslash may be the second byte of a Shift-JIS letter.
            name = re.sub(r"([^ -~].)|\\", lambda found: found[1] or "/", name)
            is_readable = member.compress_type in COMPRESSION and not member.flag_bits & 1
            problem = None if is_readable else "encrypted, or compressed by a method like Deflate64: unpack the archive"
            problem = SPECIAL if stat.S_ISLNK(member.external_attr >> 16) else problem
            if not name.endswith("/"):
                entry = _member(path, name, member.file_size, member.filename, problem)
                yield entry._replace(stamp=f"{member.file_size}-{member.CRC}")


def _tarred(path: Path) -> Iterator[Entry]:
    changed = path.stat().st_mtime_ns
    archive: Any  # the type is Any, because typeshed declares a wrong type for `TarInfo.sparse`
    with tarfile.open(path, encoding="utf-8") as archive:
        for member in archive:
            if not member.isdir():
                problem = None if member.isreg() else SPECIAL
                if member.sparse is not None:  # tarfile misreads the empty last block of a sparse file
                    member.sparse = [part for part in member.sparse if part[1]]
                entry = _member(path, member.name, member.size, member, problem)
                yield entry._replace(stamp=f"{changed}-{member.offset}", offset=member.offset)
        archive.fileobj.seek(archive.offset)
        if archive.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):  # at a damaged header, tarfile stops without an error
            raise tarfile.ReadError("the header of a file is damaged")


def _member(path: Path, name: str, size: int, member: str | tarfile.TarInfo, problem: str | None) -> Entry:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        problem = "a name that leads out of the archive"
    elif size > MAX_MEMBER_BYTES:
        problem = problem or f"larger than {MAX_MEMBER_BYTES // 10**6} MB"
    return Entry(name, ImageFile(path / name.lstrip("/"), partial(_open_member, path, member)), problem)


class _Tar(tarfile.TarFile):
    def __del__(self) -> None:  # without this method, garbage collection would leave the archive's file open
        self.close()


@lru_cache(maxsize=4)  # `changed` is the modification time: the cache opens a changed archive again
def _opened(path: Path, changed: int) -> Any:
    return zipfile.ZipFile(path) if _is_zip(path) else _Tar.open(path)


def _open_member(path: Path, member: str | tarfile.TarInfo) -> BinaryIO:
    archive = _opened(path, path.stat().st_mtime_ns)
    content: BinaryIO = archive.open(member) if isinstance(member, str) else archive.extractfile(member)
    return content
