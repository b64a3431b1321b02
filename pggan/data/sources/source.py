"""What a source of images is, and one file of it."""

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import NamedTuple, Protocol

from pggan.data.sources.image_file import EXTENSIONS, ImageFile

# Named among the bad files instead of being passed over: whoever has them wants to know.
UNREADABLE_EXTENSIONS = (".gif", ".bmp", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".ppm", ".pgm")


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


def first_folder(name: str) -> str | None:
    """The first folder of a name with slashes, if it has one."""
    return name.removeprefix("./").split("/")[0] if "/" in name.removeprefix("./") else None
