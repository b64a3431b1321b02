"""Known data sets through torchvision, whose own code downloads and reads them; imported only when one is asked for."""

from contextlib import chdir
from difflib import get_close_matches
from functools import lru_cache, partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from pggan.core.errors import UserError, nearest
from pggan.data.image_file import ImageFile
from pggan.data.npy import array_file
from pggan.data.source import Entry, Source, disk_entry, disk_file

PREFIX = "torchvision:"
NAMES = ("celeba", "cifar10", "fashion_mnist", "lfw", "lsun", "mnist")
INSTALL = 'Install it with: pip install "pggan[datasets]"'


class NamedSet(NamedTuple):
    """Where the files of known sets are, which split is wanted, and whether missing files may be downloaded."""

    root: Path
    split: str
    download: bool


def named_set(source: str) -> str | None:
    """The name of the known set that `source` means; None for a path.  Raises UserError for none that is known."""
    name = source.lower().removeprefix(PREFIX).replace("-", "_")
    if source.lower().startswith(PREFIX):
        if name not in NAMES:
            raise UserError(f"There is no known data set '{name}'.", nearest(name, NAMES))
        return name
    if Path(source).exists():
        return None
    if name not in NAMES and (near := get_close_matches(name, NAMES, n=1, cutoff=0.8)):
        raise UserError(f"{source} does not exist.", f"Did you mean the known data set '{near[0]}'?")
    return name if name in NAMES else None


def load_torchvision() -> ModuleType:
    """torchvision.datasets.  Raises UserError when it does not fit the torch that is installed."""
    try:
        from torchvision import datasets
    except Exception as error:  # a version that was built for another torch raises errors of several types
        raise UserError(
            f"torchvision can't be imported: {error}.", "Install the torchvision that belongs to this torch."
        ) from error
    return datasets  # type: ignore[no-any-return]


@lru_cache(maxsize=2)  # once per process
def _opened(name: str, wanted: NamedSet) -> Any:
    root, split, download = wanted
    datasets = load_torchvision()
    if name == "celeba":
        return datasets.CelebA(root, split, target_type="identity", download=download)
    if name == "lfw":  # no longer downloadable
        return datasets.LFWPeople(root, "10fold" if split == "all" else split, "funneled")
    if name == "lsun":
        # It keeps an index of keys in the working directory, in a format that can run code: not read from there.
        with TemporaryDirectory() as empty, chdir(empty):
            return datasets.LSUN(root, split.split(",") if "_" in split else split)
    kind = {"cifar10": datasets.CIFAR10, "mnist": datasets.MNIST, "fashion_mnist": datasets.FashionMNIST}[name]
    return kind(root, train=split == "train", download=download)


def _open_array(name: str, wanted: NamedSet, number: int) -> BinaryIO:
    """The pixels of image `number`, as a NumPy file."""
    return array_file(np.asarray(_opened(name, wanted).data[number]))


def _open_lsun(wanted: NamedSet, part: int, number: int) -> BinaryIO:
    """Image `number` of a category of LSUN, as it is stored."""
    database = _opened("lsun", wanted).dbs[part]
    with database.env.begin() as transaction:
        return BytesIO(transaction.get(database.keys[number]))


class NamedSource(Source):
    """The images of a known set, in its order."""

    def __init__(self, name: str, wanted: NamedSet) -> None:
        """The set is downloaded first where that is needed and possible.  Raises UserError."""
        if name == "lsun" and find_spec("lmdb") is None:
            raise UserError("LSUN needs a package that is not installed: lmdb.", INSTALL)
        here = wanted._replace(root=wanted.root.absolute())
        here.root.mkdir(parents=True, exist_ok=True)
        try:
            self._dataset = _opened(name, here)
        except UserError:
            raise
        except Exception as error:  # no network, wrong checksums, an unknown split: torchvision's own messages
            raise UserError(
                f"{name} can't be opened in {wanted.root}: {error}", "See the torchvision page of this data set."
            ) from error
        self._name = name
        self._wanted = here._replace(download=False)  # it is there now
        self.description = {"kind": "torchvision", "name": name, "split": wanted.split}

    def entries(self) -> list[Entry]:
        """All images, in the order of the set."""
        name, wanted, dataset = self._name, self._wanted, self._dataset
        if name == "lfw":
            return [self._file_entry(path, path.parent.name) for path in map(Path, dataset.data)]
        if name == "celeba":
            folder = Path(dataset.root, dataset.base_folder, "img_align_celeba")
            people = zip(dataset.filename, dataset.identity[:, 0].tolist(), strict=True)
            return [self._file_entry(folder / file, str(person)) for file, person in people]
        if name == "lsun":
            size = 0
            images = [
                (label, partial(_open_lsun, wanted, part, number))
                for part, (label, database) in enumerate(zip(dataset.classes, dataset.dbs, strict=True))
                for number in range(len(database))
            ]
        else:
            size = int(np.prod(dataset.data.shape[1:]))
            images = [
                (dataset.classes[int(target)], partial(_open_array, name, wanted, number))
                for number, target in enumerate(dataset.targets)
            ]
        return [
            Entry(
                f"{index:08d}",
                f"{name}-{wanted.split}-{len(images)}-{index}",
                size,
                ImageFile(Path(name, f"{index:08d}"), content),
                label=label,
            )
            for index, (label, content) in enumerate(images)
        ]

    def _file_entry(self, path: Path, label: str) -> Entry:
        root, name = self._wanted.root, path.relative_to(self._wanted.root).as_posix()
        if path.exists():
            return disk_entry(path, root, name, label)
        return Entry(name, "missing", 0, disk_file(path, root), "listed, but missing", label)
