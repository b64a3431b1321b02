"""Images at every resolution from 4x4 up, as raw bytes mapped into memory: the one data format of training.

A dataset is a directory (N images, R side in pixels, C channels):

    index.json          what there is, with a checksum for every file; published last
    r0032-00000.bin     uint8 [N, R, R, C] of level R = 32, first shard
    labels.bin          int64 little endian [N], only when there are classes

A pixel of level r is floor(m + 1/2), where m is the mean of its (R/r) x (R/r) block in the top-level image.
"""

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from pggan.data.index import Index, StoredFile, check_resolution, levels_up_to, parse_index
from pggan.errors import UserError
from pggan.files import file_sha256, fsync_path

Images = NDArray[np.uint8]

INDEX_FILE = "index.json"
PREPARE_AGAIN = "Prepare the dataset again, or copy it again."


def block_sums(image: NDArray[Any], resolution: int) -> NDArray[np.uint32]:
    """The sum of every block of an image [H, W, C], as [r, r, C].  H and W are multiples of `resolution`."""
    height, width, channels = image.shape
    tall, wide = height // resolution, width // resolution
    rows = np.zeros((resolution, width, channels), np.uint32)
    for offset in range(tall):
        rows += image[offset::tall]
    sums = np.zeros((resolution, resolution, channels), np.uint32)
    for offset in range(wide):
        sums += rows[:, offset::wide]
    return sums


def rounded_mean(sums: NDArray[np.uint32], count: int) -> Images:
    """floor(sums / count + 1/2) in integers: halves go up.  `count` bytes in each sum, < 8 million."""
    return ((2 * sums + count) // (2 * count)).astype(np.uint8)


def require_free_space(destination: Path, images: int, resolution: int, channels: int) -> None:
    """Raise a UserError, with the megabytes missing, unless such a pyramid fits beside `destination`."""
    needed = images * channels * sum(level * level for level in levels_up_to(resolution))
    existing = next(parent for parent in destination.absolute().parents if parent.exists())
    missing = needed - shutil.disk_usage(existing).free
    if missing > 0:
        raise UserError(
            f"{destination} needs {needed / 1e6:,.0f} MB; the disk is {missing / 1e6:,.0f} MB short.",
            "Free some space, choose another disk, or lower the resolution.",
        )


def require_new(destination: Path) -> None:
    """Raise a UserError if there is anything at `destination`."""
    if os.path.lexists(destination):
        raise UserError(f"{destination} exists already.", "Choose another name, or remove it first.")


class ImagePyramid:
    """A dataset opened for reading: `read` gives any images at any level.

    Opening compares the size of every file with the index; `verify` compares the checksums too.
    `labels` is int64 [N], or None without classes.  `fingerprint` differs when any byte does.
    Raises UserError when the directory holds no dataset, a newer one, or a damaged one.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        content = _index_content(self.path)
        try:
            index = parse_index(content)
        except ValueError as error:
            raise UserError(f"{self.path / INDEX_FILE} is not usable: {error}.", PREPARE_AGAIN) from error
        self._index = index
        self.fingerprint = hashlib.sha256(content).hexdigest()
        self.images = index.images
        self.channels = index.channels
        self.resolution = index.resolution
        self.resolutions = levels_up_to(index.resolution)
        self.class_names = index.labels
        self.source = index.source
        for stored in index.files:
            self._check_size(stored)
        self.labels = self._read_labels(index.labels_file) if index.labels_file else None
        self._mapped: dict[int, list[Images]] = {}

    def read(self, resolution: int, indices: NDArray[np.integer[Any]]) -> Images:
        """The images at `indices`, an integer array [n] in 0..images-1, in that order: [n, r, r, C].

        Raises UserError when the dataset has no such level.
        """
        if resolution not in self.resolutions:
            raise UserError(
                f"{self.path} has no level {resolution}; it goes from 4 to {self.resolution}.",
                "Lower the final resolution, or prepare the dataset again with a larger max_resolution.",
            )
        if indices.size and not 0 <= indices.min() <= indices.max() < self.images:
            raise IndexError(f"image indices must lie in 0..{self.images - 1}")
        shards = self._shards(resolution)
        starts = np.cumsum([0, *map(len, shards)])
        shard_of = np.searchsorted(starts, indices, side="right") - 1
        images = np.empty((len(indices), *shards[0].shape[1:]), np.uint8)
        for number in np.unique(shard_of):
            chosen = shard_of == number
            images[chosen] = shards[number][indices[chosen] - starts[number]]
        return images

    def verify(self) -> None:
        """Read every file; raise a UserError that names the first whose checksum is not the index's."""
        for stored in self._index.files:
            if file_sha256(self.path / stored.file) != stored.sha256:
                raise UserError(
                    f"{self.path / stored.file} was changed or damaged: its checksum differs from the index.",
                    PREPARE_AGAIN,
                )

    def _check_size(self, stored: StoredFile) -> None:
        path = self.path / stored.file
        # A link is refused even if it leads to a file of the right size: a dataset from elsewhere must not
        # reach out of its own directory.
        if path.is_symlink() or not path.is_file():
            raise UserError(f"{path} is missing, or not a plain file.", PREPARE_AGAIN)
        size = path.stat().st_size
        if size != stored.bytes:
            raise UserError(
                f"{path} has {size} bytes where {stored.bytes} are expected.",
                "The dataset was not copied completely: copy it again, or prepare it again.",
            )

    def _read_labels(self, stored: StoredFile) -> NDArray[np.int64]:
        labels = np.fromfile(self.path / stored.file, dtype="<i8").astype(np.int64)
        classes = len(self.class_names or [])
        if labels.min() < 0 or labels.max() >= classes:
            problem = f"{self.path / stored.file} holds a label outside 0..{classes - 1}."
            raise UserError(problem, PREPARE_AGAIN)
        return labels

    def _shards(self, resolution: int) -> list[Images]:
        # Mapped on first use, because a run uses one level at a time and every map holds a file open.
        if resolution not in self._mapped:
            shape = (resolution, resolution, self.channels)
            self._mapped[resolution] = [
                np.memmap(self.path / stored.file, np.uint8, mode="r", shape=(stored.images, *shape))
                for stored in self._index.levels[resolution]
            ]
        return self._mapped[resolution]


def _index_content(directory: Path) -> bytes:
    try:
        return (directory / INDEX_FILE).read_bytes()
    except OSError as error:
        raise UserError(
            f"{directory} is not a prepared dataset: {INDEX_FILE} cannot be read ({error.strerror}).",
            f"Prepare one with `pggan prepare source=FOLDER dest={directory}`.",
        ) from error


class PyramidWriter:
    """Writes a dataset image by image, as a context manager; it gets its name only when it is complete.

    `source` says how the images were made; it may be added to until the end of the `with` block.
    With `class_names`, every image needs a label, an index into them.  No shard exceeds `shard_bytes`, unless
    it holds one image.  Raises UserError when the destination exists or cannot be written.
    """

    def __init__(
        self,
        destination: Path,
        resolution: int,
        channels: int,
        source: dict[str, Any],
        *,
        class_names: Sequence[str] | None = None,
        shard_bytes: int = 2**30,
    ) -> None:
        check_resolution(resolution)
        self.destination = Path(destination)
        self.resolution = resolution
        self.channels = channels
        self.source = source
        self._class_names = None if class_names is None else list(class_names)
        self._labels: list[int] = []
        self._images = 0
        self._partial = self.destination.parent / (_partial_prefix(self.destination) + secrets.token_hex(4))
        levels = levels_up_to(resolution)
        self._levels = [_LevelWriter(self._partial, level, channels, shard_bytes) for level in levels]

    def __enter__(self) -> Self:
        require_new(self.destination)
        with self._write_errors_named():
            self.destination.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(self.destination)
            self._partial.mkdir()
            # Held open and locked from here to the final rename, so that no other writer takes this directory
            # for one whose process was killed.
            self._index_file = (self._partial / INDEX_FILE).open("wb")
            _try_lock(self._index_file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                with self._write_errors_named():
                    self._publish()
        finally:
            for level in self._levels:
                level.discard()
            with suppress(OSError):
                self._index_file.close()
            shutil.rmtree(self._partial, ignore_errors=True)  # nothing is there any more after a success

    def add(self, image: Images, label: int | None = None) -> None:
        """Append one image, [R, R, C], at every level."""
        if image.shape != (self.resolution, self.resolution, self.channels) or image.dtype != np.uint8:
            raise ValueError(f"expected uint8 of side {self.resolution}, not {image.dtype} {image.shape}")
        if (label is None) != (self._class_names is None):
            raise ValueError("an image has a label exactly when the dataset has classes")
        if label is not None:
            self._labels.append(label)
        with self._write_errors_named():
            self._levels[-1].add(image)
            # Every level comes from the sums of the one above, never from its rounded means: that is exact.
            sums: NDArray[Any] = image
            for writer in reversed(self._levels[:-1]):
                sums = block_sums(sums, writer.resolution)
                writer.add(rounded_mean(sums, (self.resolution // writer.resolution) ** 2))
        self._images += 1

    def _publish(self) -> None:
        if not self._images:
            raise ValueError("a dataset needs at least one image")
        index = Index(
            images=self._images,
            channels=self.channels,
            resolution=self.resolution,
            labels=self._class_names,
            labels_file=self._write_labels(),
            levels={writer.resolution: writer.finish() for writer in self._levels},
            source=self.source,
        )
        self._index_file.write(index.to_json())
        self._index_file.flush()
        fsync_path(self._partial / INDEX_FILE)
        fsync_path(self._partial)
        self._partial.rename(self.destination)
        fsync_path(self.destination.parent)

    def _write_labels(self) -> StoredFile | None:
        if self._class_names is None:
            return None
        content = np.array(self._labels, "<i8").tobytes()
        path = self._partial / "labels.bin"
        path.write_bytes(content)
        fsync_path(path)
        return StoredFile(path.name, self._images, len(content), hashlib.sha256(content).hexdigest())

    @contextmanager
    def _write_errors_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{self.destination} cannot be written: {error.strerror}.",
                "Make room or get permission there, or choose another place.",
            ) from error


class _LevelWriter:
    """The shards of one level, written one after the other."""

    def __init__(self, directory: Path, resolution: int, channels: int, shard_bytes: int) -> None:
        self.resolution = resolution
        self._directory = directory
        self._images_per_shard = max(1, shard_bytes // (resolution * resolution * channels))
        self._finished: list[StoredFile] = []
        self._file: BinaryIO | None = None

    def add(self, image: Images) -> None:
        if self._file is None:
            self._path = self._directory / f"r{self.resolution:04d}-{len(self._finished):05d}.bin"
            self._file = self._path.open("wb")
            self._digest = hashlib.sha256()
            self._images = 0
        content = image.tobytes()
        self._file.write(content)
        self._digest.update(content)
        self._images += 1
        if self._images == self._images_per_shard:
            self.finish()

    def finish(self) -> list[StoredFile]:
        """Close the shard begun, if any; all shards so far."""
        if self._file is not None:
            size = self._file.tell()
            self._file.close()
            self._file = None
            fsync_path(self._path)
            self._finished.append(StoredFile(self._path.name, self._images, size, self._digest.hexdigest()))
        return self._finished

    def discard(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # closing writes what is buffered, which a full disk refuses
                self._file.close()


def _partial_prefix(destination: Path) -> str:
    return f".{destination.name}.partial-"


def _remove_abandoned(destination: Path) -> None:
    """Remove what killed writers of the same destination left, but nothing that a live writer has locked."""
    for entry in destination.parent.iterdir():
        if not entry.name.startswith(_partial_prefix(destination)):
            continue
        try:
            with (entry / INDEX_FILE).open("r+b") as index_file:
                abandoned = _try_lock(index_file)
        except FileNotFoundError:
            abandoned = True
        if abandoned:
            shutil.rmtree(entry, ignore_errors=True)


def _try_lock(file: BinaryIO) -> bool:
    """Whether this process got the lock; the system frees it when the process ends, however it ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked by another process, or a file system without locks
        return False
    return True
