"""Images at every resolution from 4x4 up, as raw bytes mapped into memory: the one data format of training.

A dataset is a directory (N images, R side in pixels, C channels):

    index.json          what there is, with a checksum for every file; published last
    r0032-00000.bin     uint8 [N, R, R, C] of level R = 32, first shard
    labels.bin          int64 little endian [N], only when there are classes

A pixel of level r is floor(m + 1/2), where m is the mean of its (R/r) x (R/r) block in the top-level image.
"""

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pggan.core.atomic_io import file_sha256, is_plain
from pggan.core.cpu import available_cores
from pggan.core.errors import UserError
from pggan.data.index import levels_up_to, parse_index
from pggan.data.levels import Images

INDEX_FILE = "index.json"
PREPARE_AGAIN = "Prepare the dataset again, or copy it again."


class ImagePyramid:
    """A dataset opened for reading: `read` gives any images at any level.

    Opening compares the size of every file with the index; `verify` compares the checksums too.
    `labels` is int64 [N], or None without classes.  `fingerprint` differs when any byte does.
    Raises UserError when the directory holds no dataset, a newer one, or a damaged one.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        try:
            content = (self.path / INDEX_FILE).read_bytes()
            index = parse_index(content)
        except OSError as error:
            raise UserError(
                f"{self.path} is not a prepared dataset: {INDEX_FILE} cannot be read ({error.strerror}).",
                f"Prepare one with `pggan prepare source=FOLDER dest={self.path}`.",
            ) from error
        except ValueError as error:
            raise UserError(f"{self.path / INDEX_FILE} is not usable: {error}.", PREPARE_AGAIN) from error
        self._index = index
        self.fingerprint = hashlib.sha256(content).hexdigest()
        self.images = index.images
        self.channels = index.channels
        self.resolution = index.resolution
        self.resolutions = levels_up_to(index.resolution)
        self.class_names = index.class_names
        self.source = index.source
        for stored in index.files(self.resolutions):
            file = self.path / stored.file
            # A link is refused even if it leads to a file of the right size: a dataset from elsewhere must not
            # reach out of its own directory.
            if not is_plain(file):
                raise UserError(f"{file} is missing, or not a plain file.", PREPARE_AGAIN)
            if (size := file.stat().st_size) != stored.bytes:
                raise UserError(
                    f"{file} has {size} bytes where {stored.bytes} are expected.",
                    "The dataset was not copied completely: copy it again, or prepare it again.",
                )
        self.labels: NDArray[np.int64] | None = None
        if index.labels_file is not None:
            file, last = self.path / index.labels_file.file, len(index.class_names or ()) - 1
            self.labels = np.fromfile(file, dtype="<i8").astype(np.int64)
            if self.labels.min() < 0 or self.labels.max() > last:
                raise UserError(f"{file} holds a label outside 0..{last}.", PREPARE_AGAIN)
        self._mapped: dict[int, tuple[list[Images], NDArray[np.int64]]] = {}

    def read(self, resolution: int, indices: NDArray[np.integer[Any]], out: Images | None = None) -> Images:
        """The images at `indices`, an integer array [n] in 0..images-1, in that order: [n, r, r, C].

        They are written to `out`, if given.  Raises UserError when the dataset has no such level.
        """
        if resolution not in self.resolutions:
            raise UserError(
                f"{self.path} has no level {resolution}; it goes from 4 to {self.resolution}.",
                "Lower the final resolution, or prepare the dataset again with a larger max_resolution.",
            )
        if indices.size and not 0 <= indices.min() <= indices.max() < self.images:
            raise IndexError(f"image indices must lie in 0..{self.images - 1}")
        shards, starts = self._shards(resolution)
        images = np.empty((len(indices), *shards[0].shape[1:]), np.uint8) if out is None else out
        if len(shards) == 1:
            return np.take(shards[0], indices, axis=0, out=images, mode="clip")  # checked above; this mode is faster
        shard_of = np.searchsorted(starts, indices, side="right") - 1
        for number in np.unique(shard_of):
            chosen = shard_of == number
            images[chosen] = shards[number][indices[chosen] - starts[number]]
        return images

    def level_bytes(self, resolution: int) -> int:
        """Bytes on disk of one level."""
        return sum(shard.bytes for shard in self._index.levels[resolution])

    def verify(self, resolutions: Iterable[int] | None = None) -> None:
        """Read every file of these levels (all if None) and the labels, and compare their checksums.

        Raises UserError that names the first whose checksum is not the index's.
        """
        files = self._index.files(self.resolutions if resolutions is None else resolutions)
        with ThreadPoolExecutor(available_cores()) as pool:  # hashing lets other threads run
            digests = pool.map(file_sha256, (self.path / stored.file for stored in files))
            for stored, digest in zip(files, digests, strict=True):
                if digest != stored.sha256:
                    raise UserError(
                        f"{self.path / stored.file} was changed or damaged: its checksum differs from the index.",
                        PREPARE_AGAIN,
                    )

    def _shards(self, resolution: int) -> tuple[list[Images], NDArray[np.int64]]:
        """The shards of a level, and the number of the first image in each."""
        # Mapped on first use, because a run uses one level at a time and every map holds a file open.
        if resolution not in self._mapped:
            maps = [
                np.memmap(path, np.uint8, "r").reshape(-1, resolution, resolution, self.channels).view(np.ndarray)
                for path in (self.path / shard.file for shard in self._index.levels[resolution])
            ]
            self._mapped[resolution] = maps, np.cumsum([0, *map(len, maps[:-1])], dtype=np.int64)
        return self._mapped[resolution]
