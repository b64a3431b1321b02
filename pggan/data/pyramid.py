"""The dataset format: each image at every resolution from 4x4 up, as raw bytes that can be memory-mapped.

A dataset is a directory of N images with C channels:

    index.json          lists the files below with their checksums, and is written last
    r0032-00000.bin     the first shard at resolution 32, with n of the N images: uint8 [n, 32, 32, C]
    labels.bin          int64 little endian [N], only when there are classes

Lower resolutions are block averages of the highest resolution, rounded half up.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pggan.core.architecture import MIN_RESOLUTION, resolutions_between
from pggan.core.atomic_io import file_sha256, parse_json
from pggan.core.errors import UserError, nearest_path
from pggan.core.process import available_cores
from pggan.core.text import command_line

INDEX_FILE = "index.json"
PREPARE_AGAIN = "Delete this dataset, then prepare or copy it again. Training prepares missing datasets in data.cache=."
FORMAT, VERSION = "pggan-pyramid", 1
SHARD_BYTES = 2**30  # largest size of a shard; fixed, so that the same images always make the same files
LABELS_FILE, LABEL_BYTES = "labels.bin", 8
MIN_IMAGES = 2

Images = NDArray[np.uint8]  # an array [N, H, W, C] of images, or [H, W, C] of one image


@dataclass(frozen=True)
class StoredFile:
    """What index.json says about one file of the dataset."""

    file: str
    images: int
    bytes: int
    sha256: str


def images_per_shard(level: int, channels: int) -> int:
    """Compute how many images of the resolution `level` fit into one shard."""
    return max(1, SHARD_BYTES // (level * level * channels))


def shard_name(level: int, number: int) -> str:
    """Return the file name of a shard, such as r0032-00000.bin."""
    return f"r{level:04d}-{number:05d}.bin"


def is_pyramid(path: Path) -> bool:
    """Return whether `path` is a dataset, even a damaged one: it has a shard at 4x4, or index.json names the format."""
    index = path / INDEX_FILE
    return (path / shard_name(MIN_RESOLUTION, 0)).is_file() or (index.is_file() and FORMAT in index.read_text("latin1"))


def shards_of(level: int, channels: int, images: int) -> Iterator[StoredFile]:
    """Yield a StoredFile, without checksum, for each shard at resolution `level` of a dataset of `images` images."""
    most = images_per_shard(level, channels)
    for number, first in enumerate(range(0, images, most)):
        count = min(most, images - first)
        yield StoredFile(shard_name(level, number), count, count * level * level * channels, "")


def checksums(directory: Path, files: Iterable[StoredFile]) -> Iterator[str]:
    """Yield the SHA-256 of each of `files` in `directory`, in order."""
    with ThreadPoolExecutor(available_cores()) as pool:  # threads help, because hashing releases the GIL
        yield from pool.map(file_sha256, (directory / stored.file for stored in files))


@dataclass(frozen=True)
class Index:
    """The content of index.json; `levels` maps each resolution to the shards with images of this resolution."""

    images: int
    channels: int
    resolution: int
    class_names: list[str] | None  # None if images have no labels
    labels_file: StoredFile | None
    levels: dict[int, list[StoredFile]]
    source: dict[str, Any]

    def to_json(self) -> bytes:
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1).encode() + b"\n"

    def files(self, levels: Iterable[int]) -> list[StoredFile]:
        shards = [shard for level in levels for shard in self.levels[level]]
        return shards if self.labels_file is None else [*shards, self.labels_file]


def parse_index(content: bytes) -> Index:
    """Parse and check an untrusted index.json; raises ValueError if it is invalid, UserError for another VERSION."""
    raw = parse_json(content)
    if raw.get("format") != FORMAT:
        raise ValueError(f"its format is not '{FORMAT}'")
    if raw.get("version") != VERSION:
        raise UserError(
            f"The dataset has format version {raw.get('version')}; this pggan reads version {VERSION}.",
            "Upgrade pggan: pip install --upgrade pggan",
        )
    try:
        images, channels, resolution = (raw[name] for name in ("images", "channels", "resolution"))
        names = None if raw["class_names"] is None else [str(name) for name in raw["class_names"]]
        levels: dict[int, list[StoredFile]] = {}
        for level in resolutions_between(MIN_RESOLUTION, resolution):  # file names and sizes are computed, not read
            pairs = zip(shards_of(level, channels, images), raw["levels"][str(level)], strict=True)
            levels[level] = [replace(shard, sha256=str(given["sha256"])) for shard, given in pairs]
        labels = StoredFile(LABELS_FILE, images, LABEL_BYTES * images, "")
        labels_file = None if names is None else replace(labels, sha256=str(raw["labels_file"]["sha256"]))
        index = Index(images, channels, resolution, names, labels_file, levels, dict(raw["source"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"an entry is missing or has a wrong type: {error!r}") from error
    if images <= 0 or channels not in (1, 3, 4) or resolution not in levels:
        raise ValueError(f"impossible: {images} images, {channels} channels, resolution {resolution}")
    return index


def open_pyramid(
    path: Path,
    resolution: int,
    batch: int = 1,
    *,
    channels: int | None = None,
    labels: bool = False,
    verify: bool = True,
) -> "ImagePyramid":
    """Open a dataset; raises UserError if it lacks the resolution, number of images, channels or labels asked for.

    `verify` compares the files up to `resolution` with their checksums, which takes about a second per 2 GB.
    """
    pyramid = ImagePyramid(path)
    if pyramid.resolution < resolution:
        raise UserError(
            f"{path} goes up to {pyramid.resolution}x{pyramid.resolution}; {resolution}x{resolution} is needed.",
            "Prepare larger images, or lower the resolution (schedule.final_resolution= of the run).",
        )
    if pyramid.images < (needed := max(batch, MIN_IMAGES)):
        problem = f"{path} has {pyramid.images} images; {needed} are needed for a batch of {batch}."
        raise UserError(problem, "Give more images, or lower schedule.batch= of the run.")
    if channels not in (None, pyramid.channels):
        problem = f"The images in {path} have {pyramid.channels} channels; {channels} are needed."
        raise UserError(problem, f"Prepare them again with channels={channels}, or leave out data.channels=.")
    if labels and pyramid.labels is None:
        raise UserError(f"data.labels=true, but {path} has no labels.", "Prepare it with labels=true.")
    if verify:
        pyramid.verify(resolutions_between(MIN_RESOLUTION, resolution))
    return pyramid


class ImagePyramid:
    """A dataset that is opened for reading; raises UserError if files are missing, invalid or of the wrong size.

    `labels` has each image's class, int64 [N], or is None.  `fingerprint` is a hash of all images and labels.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        try:
            index = parse_index(content := (self.path / INDEX_FILE).read_bytes())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            problem = f"{self.path} is not a prepared dataset: {INDEX_FILE} is not usable ({reason})."
            new = Path("data", f"{self.path.absolute().name}{'-prepared' * (self.path.parent.name == 'data')}")
            remedy = f"Prepare a dataset with `{command_line('prepare', source=self.path, dest=new)}`."
            remedy = PREPARE_AGAIN if is_pyramid(self.path) else nearest_path(self.path) or remedy
            raise UserError(problem, remedy) from error
        self._index = index
        digests = {level: [shard.sha256 for shard in shards] for level, shards in index.levels.items()}
        labels = index.labels_file and index.labels_file.sha256
        known = [index.images, index.channels, digests, labels]  # older versions hashed class names, too, or `content`
        former = json.dumps(known).encode(), json.dumps([*known, index.class_names]).encode(), content
        self.fingerprint, *self.former_fingerprints = (hashlib.sha256(each).hexdigest() for each in former)
        self.images, self.channels, self.resolution = index.images, index.channels, index.resolution
        self.resolutions = resolutions_between(MIN_RESOLUTION, index.resolution)
        self.class_names, self.source = index.class_names, index.source
        for stored in index.files(self.resolutions):
            file = self.path / stored.file
            # Symbolic links are refused, because a downloaded dataset could link to private files of this machine.
            if not file.is_file() or file.is_symlink():
                raise UserError(f"{file} is missing, or not a regular file.", PREPARE_AGAIN)
            if (size := file.stat().st_size) != stored.bytes:
                raise UserError(f"{file} has {size} bytes where {stored.bytes} are expected.", PREPARE_AGAIN)
        self.labels: NDArray[np.int64] | None = None
        if index.labels_file is not None:
            file, last = self.path / index.labels_file.file, len(index.class_names or ()) - 1
            self.labels = np.fromfile(file, dtype="<i8").astype(np.int64)
            if self.labels.min() < 0 or self.labels.max() > last:
                raise UserError(f"{file} holds a label outside 0..{last}.", PREPARE_AGAIN)
        self._mapped: dict[int, tuple[list[Images], NDArray[np.int64]]] = {}

    def read(self, resolution: int, indices: NDArray[np.integer[Any]]) -> Images:
        """Return the images at `indices` [N] as [N, R, R, C], where R is `resolution`."""
        if indices.size and not 0 <= indices.min() <= indices.max() < self.images:
            raise IndexError(f"image indices must lie in 0..{self.images - 1}")
        shards, starts = self._shards(resolution)
        if len(shards) == 1:
            return np.take(shards[0], indices, axis=0, mode="clip")  # "clip" is faster than "raise"
        images = np.empty((len(indices), *shards[0].shape[1:]), np.uint8)
        shard_of = np.searchsorted(starts, indices, side="right") - 1
        for number in np.unique(shard_of):
            chosen = shard_of == number
            images[chosen] = shards[number][indices[chosen] - starts[number]]
        return images

    def verify(self, resolutions: Iterable[int] | None = None) -> None:
        """Check the SHA-256 of labels and of images at `resolutions` (None: all); raises UserError if any differ."""
        files = self._index.files(self.resolutions if resolutions is None else resolutions)
        for stored, digest in zip(files, checksums(self.path, files), strict=True):
            if digest != stored.sha256:
                problem = f"{self.path / stored.file} was changed or damaged: its checksum is not the one in the index."
                raise UserError(problem, PREPARE_AGAIN)

    def _shards(self, resolution: int) -> tuple[list[Images], NDArray[np.int64]]:
        # A shard is memory-mapped at its first read, not earlier, because every memory map keeps a file open.
        if resolution not in self._mapped:
            maps = [
                np.memmap(path, np.uint8, "r").reshape(-1, resolution, resolution, self.channels).view(np.ndarray)
                for path in (self.path / shard.file for shard in self._index.levels[resolution])
            ]
            self._mapped[resolution] = maps, np.cumsum([0, *map(len, maps[:-1])], dtype=np.int64)
        return self._mapped[resolution]
