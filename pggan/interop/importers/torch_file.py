"""Files of `torch.save`, in the form of an archive and in the older one, read without running anything."""

import struct
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from pggan.interop.importers.restricted_pickle import Storage, StorageType, read_pickle

MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of the older form
FORM = 1001  # the second one


def read_torch_file(path: Path) -> Any:
    """The content of a file, with tensors as `restricted_pickle.Tensor`; raises ValueError, or OSError."""
    if zipfile.is_zipfile(path):
        return _read_archive(path)
    with path.open("rb") as file:
        return _read_older(file)


def _read_archive(path: Path) -> Any:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"]
            if len(names) != 1:
                raise ValueError("it is not an archive of PyTorch")
            root = names[0].removesuffix("data.pkl")

            def storage_of(key: str, kind: StorageType, count: int) -> Storage:
                entry = archive.getinfo(f"{root}data/{key}")
                if entry.compress_type != zipfile.ZIP_STORED:  # PyTorch never compresses; a bomb does
                    raise ValueError("it is compressed")
                return Storage(kind, count, archive.read(entry))

            with archive.open(names[0]) as file:
                return read_pickle(file, storage_of)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(str(error)) from error


def _read_older(file: IO[bytes]) -> Any:
    """Pickles of magic number, form, machine, content and keys of storages; then the storages."""
    if read_pickle(file) != MAGIC or read_pickle(file) != FORM:
        raise ValueError("it is not a file of PyTorch")
    read_pickle(file)
    storages: dict[str, Storage] = {}
    content = read_pickle(file, lambda key, kind, count: storages.setdefault(key, Storage(kind, count)))
    for key in read_pickle(file):
        storage = storages[key]
        (count,) = struct.unpack("<q", file.read(8))
        size = count * np.dtype(storage.kind.number).itemsize
        storage.content = file.read(max(size, 0))
        if len(storage.content) != size:
            raise ValueError("it is cut short")
    return content
