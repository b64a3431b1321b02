"""The interface of a source of images, and one file of it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from pggan.core.errors import UserError
from pggan.data.sources.image_file import EXTENSIONS, ImageFile, ImageHeader

# Named among the bad files instead of being passed over: whoever has them wants to know.
UNREADABLE_EXTENSIONS = (".gif", ".bmp", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".ppm", ".pgm")


class Entry(NamedTuple):
    """One image file of a source, not opened yet.

    name: with slashes, different from all others of the source.
    stamp: differs when the content may differ.
    size: in bytes.
    problem: why it must not be opened.
    label: the class that the source gives it: its first sub-folder, or that of the dataset.
    header: what is known without opening it, for images that the source makes itself.
    """

    name: str
    stamp: str
    size: int
    file: ImageFile
    problem: str | None = None
    label: str | None = None
    header: ImageHeader | None = None


class Source(ABC):
    """Image files from one place.

    description: kept with the dataset; it has a "kind" and a "name".
    task: the title of the progress bar while the images are decoded.
    """

    description: dict[str, object]
    task = "Decoding images"

    @abstractmethod
    def entries(self) -> list[Entry]:
        """All image files, in the order of the dataset.  Raises UserError when the source can't be read."""

    def loaded(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The given entries, perhaps in another order, ready to be opened in another process."""
        return iter(entries)


def no_images(name: object) -> UserError:
    """The error for a source called `name` that has no images."""
    endings = ", ".join(EXTENSIONS)
    remedy = f"Images are files ending in {endings}; linked folders are not entered."
    return UserError(f"There are no images in {name}.", remedy)


def is_image_name(name: str) -> bool:
    """Whether a file of this name is meant to be an image."""
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") and part != ".." for part in path.parts)
    return not hidden and path.suffix.lower() in (*EXTENSIONS, *UNREADABLE_EXTENSIONS)


def first_folder(name: str) -> str | None:
    """The first folder of a name with slashes, if it has one."""
    folder, slash, _ = name.removeprefix("./").partition("/")
    return folder if slash else None
