"""Image files of a source: an entry for each, and the source that is a folder."""

import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from pggan.core.errors import UserError
from pggan.data.face_crop import Landmarks
from pggan.data.image_file import EXTENSIONS, BadImage, ImageFile, ImageHeader

# Named among the bad files instead of being passed over: whoever has them wants to know.
UNREADABLE = [".gif", ".bmp", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".ppm", ".pgm", ".npy"]


class Entry(NamedTuple):
    """One image file of a source, not opened yet.

    name: with slashes, different from all others of the source.
    stamp: differs when the content may differ.
    problem: why it must not be opened.
    label: the class that the source gives it: its first sub-folder, or that of the dataset.
    header: what is known without opening it, for images that the source makes itself.
    face: the landmarks of the face that is cut out.
    """

    name: str
    stamp: str
    file: ImageFile
    problem: str | None = None
    label: str | None = None
    header: ImageHeader | None = None
    face: Landmarks | None = None


@dataclass(frozen=True)
class Source:
    """Image files from one place, in the order of the dataset.  Raises UserError where there are none.

    description: kept with the dataset; it has a "kind" and a "name".
    loaded: gives entries ready to be opened, perhaps in another order; unless it is `iter`, with what is in the files.
    task: the title of the progress bar while the images are decoded.
    """

    description: dict[str, object]
    entries: list[Entry]
    loaded: Callable[[Iterable[Entry]], Iterable[Entry]] = iter
    task: str = "Decoding images"

    def __post_init__(self) -> None:
        if not self.entries:
            remedy = f"Images are files ending in {', '.join(EXTENSIONS)}; linked folders are not entered."
            raise UserError(f"There are no images in {self.description['name']}.", remedy)


def is_image_name(name: str) -> bool:
    """Whether a file of this name is meant to be an image."""
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") and part != ".." for part in path.parts)
    return not hidden and path.suffix.lower() in (*EXTENSIONS, *UNREADABLE)


def first_folder(name: str) -> str | None:
    """The first folder of a name with slashes, if it has one."""
    folder, slash, _ = name.removeprefix("./").partition("/")
    return folder if slash else None


def disk_entry(path: Path, root: Path, name: str, label: str | None) -> Entry:
    """The entry of a file below `root`, which has no links in its path; a link has the stamp of its target."""
    stamp = "missing"
    with suppress(OSError):  # of a link that leads nowhere, or a file that a data set only lists
        status = path.stat()
        stamp = f"{status.st_size}-{status.st_mtime_ns}"
    return Entry(name, stamp, ImageFile(path, partial(_open_below, path, root)), label=label)


def _open_below(path: Path, root: Path) -> BinaryIO:
    # A folder from elsewhere must not draw other files of this machine into the dataset.
    if path.is_symlink():
        if not path.exists():
            raise BadImage("a link that leads nowhere")
        if not Path(os.path.realpath(path)).is_relative_to(root):
            raise BadImage("a link that leads out of the source folder")
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
        raise BadImage("not a regular file")
    return path.open("rb")


def folder_source(path: Path) -> Source:
    """The image files under a folder, at any depth, sorted by path; hidden files and linked folders are passed over."""
    root, found = Path(os.path.realpath(path)), []
    for folder, subfolders, names in os.walk(path):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for file in (Path(folder, name) for name in names if is_image_name(name)):
            name = file.relative_to(path).as_posix()
            found.append(disk_entry(file, root, name, first_folder(name)))
    return Source({"kind": "folder", "name": path.resolve().name}, sorted(found, key=lambda entry: entry.file.path))
