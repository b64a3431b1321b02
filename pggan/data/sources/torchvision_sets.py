"""Known data sets through torchvision, whose own code downloads and reads them; imported only when one is asked for."""

import sys
from collections.abc import Sequence
from contextlib import chdir
from functools import lru_cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from pggan.core.errors import UserError, nearest
from pggan.data.sources.folders import DiskFile
from pggan.data.sources.npy import array_file
from pggan.data.sources.source import Entry, Source

PREFIX = "torchvision:"
NAMES = ("celeba", "cifar10", "fashion_mnist", "lfw", "lsun", "mnist")
INSTALL = 'Install it with: pip install "pggan[datasets]"'


class NamedSet(NamedTuple):
    """Where the files of known sets are, which split is wanted, and whether missing files may be downloaded."""

    root: Path
    split: str
    download: bool


def named_set(source: str) -> str | None:
    """The name of the known set that `source` means; None for a path.  Raises UserError for an unknown name."""
    name = source.lower().removeprefix(PREFIX).replace("-", "_")
    if not source.lower().startswith(PREFIX) and (name not in NAMES or Path(source).exists()):
        return None
    if name not in NAMES:
        raise UserError(f"There is no known data set '{name}'.", nearest(name, NAMES))
    return name


def load_torchvision() -> ModuleType:
    """torchvision.datasets.  Raises UserError when it is not installed, or does not fit the torch that is."""
    try:
        return _import_datasets()
    except ModuleNotFoundError as error:
        raise UserError(f"Known data sets need a package that is not installed: {error.name}.", INSTALL) from error
    except Exception as error:  # a torchvision for another torch fails in many ways
        raise UserError(
            f"torchvision can't be imported: {error}.", "Install the torchvision that belongs to this torch."
        ) from error


def _import_datasets() -> ModuleType:
    import torch

    try:
        import torchvision.datasets
    except RuntimeError:
        # The wheels of PyPI have their operators (non-maximum suppression of boxes) compiled for CUDA.  Beside a torch
        # without CUDA these can't be loaded, and torchvision stops at declaring their shapes.  Data sets need none of
        # them, so they are declared here and stay without an implementation.
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        _declared.append(torch.library.Library("torchvision", "FRAGMENT"))  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            _declared[-1].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision.datasets
    datasets: ModuleType = torchvision.datasets
    return datasets


_declared: list[Any] = []  # declarations last as long as their library object


@lru_cache(maxsize=2)  # once per process
def _opened(name: str, root: Path, split: str, download: bool) -> Any:
    datasets = load_torchvision()
    train = split == "train"
    if name == "celeba":
        return datasets.CelebA(root, split, target_type="identity", download=download)
    if name == "lfw":  # no longer downloadable
        return datasets.LFWPeople(root, "10fold" if split == "all" else split, "funneled")
    if name == "lsun":
        # It keeps an index of keys in the working directory, in a format that can run code: not read from there.
        with TemporaryDirectory() as empty, chdir(empty):
            return datasets.LSUN(root, split.split(",") if "_" in split else split)
    kind = {"cifar10": datasets.CIFAR10, "mnist": datasets.MNIST, "fashion_mnist": datasets.FashionMNIST}[name]
    return kind(root, train=train, download=download)


def open_named(name: str, wanted: NamedSet) -> "NamedSource":
    """A known set, downloaded first where that is needed and possible.  Raises UserError."""
    if name == "lsun" and find_spec("lmdb") is None:
        raise UserError("LSUN needs a package that is not installed: lmdb.", INSTALL)
    root = wanted.root.absolute()
    root.mkdir(parents=True, exist_ok=True)
    try:
        dataset = _opened(name, root, wanted.split, wanted.download)
    except UserError:
        raise
    except Exception as error:  # no network, wrong checksums, an unknown split: torchvision's own messages
        raise UserError(
            f"{name} can't be opened in {wanted.root}: {error}", "See the torchvision page of this data set."
        ) from error
    return NamedSource(name, wanted._replace(root=root), dataset)


class NamedImage(NamedTuple):
    """One image of a known set that is not a file of its own."""

    name: str
    wanted: NamedSet
    number: int
    path: Path

    def open(self) -> BinaryIO:
        """Its content: the stored file, or its pixels as a NumPy file."""
        dataset = _opened(self.name, self.wanted.root, self.wanted.split, False)
        if self.name == "lsun":
            number = self.number
            for database in dataset.dbs:
                if number < len(database):
                    with database.env.begin() as transaction:
                        return BytesIO(transaction.get(database.keys[number]))
                number -= len(database)
        return array_file(np.asarray(dataset.data[self.number]))


class NamedSource(Source):
    """The images of a known set, in its order."""

    def __init__(self, name: str, wanted: NamedSet, dataset: Any) -> None:
        self._name = name
        self._wanted = wanted
        self._dataset = dataset
        self.description = {"kind": "torchvision", "name": name, "split": wanted.split}

    def entries(self) -> list[Entry]:
        """All images, in the order of the set."""
        if self._name in ("celeba", "lfw"):
            root = self._wanted.root
            return [
                DiskFile(path, root).entry(path.relative_to(root).as_posix(), label)
                if path.exists()
                else Entry(
                    path.relative_to(root).as_posix(), "missing", 0, DiskFile(path, root), "listed, but missing", label
                )
                for path, label in zip(*self._files(), strict=True)
            ]
        labels = self._labels()
        return [
            Entry(
                f"{index:08d}",
                f"{self._name}-{self._wanted.split}-{len(labels)}-{index}",
                0 if self._name == "lsun" else int(np.prod(self._dataset.data[index].shape)),
                NamedImage(self._name, self._wanted, index, Path(self._name, f"{index:08d}")),
                label=label,
            )
            for index, label in enumerate(labels)
        ]

    def _files(self) -> tuple[list[Path], list[str]]:
        """The paths of a set whose images are files, and the label of each."""
        if self._name == "lfw":
            paths = [Path(path) for path in self._dataset.data]
            return paths, [path.parent.name for path in paths]
        folder = Path(self._dataset.root, self._dataset.base_folder, "img_align_celeba")
        identities = self._dataset.identity[:, 0].tolist()
        return [folder / name for name in self._dataset.filename], [str(identity) for identity in identities]

    def _labels(self) -> Sequence[str]:
        """The label of every image, for a set whose images are not files."""
        dataset = self._dataset
        if self._name == "lsun":
            return [name for name, part in zip(dataset.classes, dataset.dbs, strict=True) for _ in range(len(part))]
        return [dataset.classes[int(target)] for target in dataset.targets]
