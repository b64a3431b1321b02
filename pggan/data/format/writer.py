"""Writes a dataset image by image, for sources that give one image after the other."""

import hashlib
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from pggan.core.atomic_io import fsync_path
from pggan.core.errors import UserError
from pggan.core.file_lock import try_lock
from pggan.data.format.index import LABEL_BYTES, Index, StoredFile, check_resolution, levels_up_to
from pggan.data.format.levels import Images, all_levels
from pggan.data.format.pyramid import INDEX_FILE, require_new

SHARD_BYTES = 2**30


def shard_name(resolution: int, number: int, generation: str = "") -> str:
    """The file name of a shard; `generation` tells those of a later update from those they replace."""
    return f"r{resolution:04d}-{number:05d}{generation}.bin"


def images_per_shard(resolution: int, channels: int, shard_bytes: int = SHARD_BYTES) -> int:
    """How many images one shard of a level holds at most."""
    return max(1, shard_bytes // (resolution * resolution * channels))


def write_labels(path: Path, labels: Sequence[int]) -> StoredFile:
    """Write the labels file of a dataset, durably."""
    content = np.array(labels, "<i8").tobytes()
    path.write_bytes(content)
    fsync_path(path)
    assert len(content) == LABEL_BYTES * len(labels), "one number each"
    return StoredFile(path.name, len(labels), len(content), hashlib.sha256(content).hexdigest())


@contextmanager
def write_errors_named(destination: Path, remedy: str = "") -> Iterator[None]:
    """What the system refuses while `destination` is written becomes a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{destination} cannot be written: {error.strerror}.",
            remedy or "Make room or get permission there, or choose another place.",
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
        shard_bytes: int = SHARD_BYTES,
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
        with write_errors_named(self.destination):
            self.destination.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(self.destination)
            self._partial.mkdir()
            # Held open and locked from here to the final rename, so that no other writer takes this directory
            # for one whose process was killed.
            self._index_file = (self._partial / INDEX_FILE).open("wb")
            try_lock(self._index_file.fileno(), without_locks=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                with write_errors_named(self.destination):
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
        with write_errors_named(self.destination):
            for writer, level in zip(reversed(self._levels), all_levels(image), strict=True):
                writer.add(level)
        self._images += 1

    def _publish(self) -> None:
        if not self._images:
            raise ValueError("a dataset needs at least one image")
        labels_file = None if self._class_names is None else write_labels(self._partial / "labels.bin", self._labels)
        index = Index(
            images=self._images,
            channels=self.channels,
            resolution=self.resolution,
            labels=self._class_names,
            labels_file=labels_file,
            levels={writer.resolution: writer.finish() for writer in self._levels},
            source=self.source,
        )
        self._index_file.write(index.to_json())
        self._index_file.flush()
        fsync_path(self._partial / INDEX_FILE)
        fsync_path(self._partial)
        self._partial.rename(self.destination)
        fsync_path(self.destination.parent)


class _LevelWriter:
    """The shards of one level, written one after the other."""

    def __init__(self, directory: Path, resolution: int, channels: int, shard_bytes: int) -> None:
        self.resolution = resolution
        self._directory = directory
        self._images_per_shard = images_per_shard(resolution, channels, shard_bytes)
        self._finished: list[StoredFile] = []
        self._file: BinaryIO | None = None

    def add(self, image: Images) -> None:
        if self._file is None:
            self._path = self._directory / shard_name(self.resolution, len(self._finished))
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
                abandoned = try_lock(index_file.fileno(), without_locks=False)
        except FileNotFoundError:
            abandoned = True
        if abandoned:
            shutil.rmtree(entry, ignore_errors=True)
