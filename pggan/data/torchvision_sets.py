"""Known data sets through torchvision, whose own code downloads and reads them; imported only when one is asked for."""

from contextlib import chdir
from difflib import get_close_matches
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple

from pggan.core.errors import UserError, nearest
from pggan.data.image_file import ImageFile, png_file
from pggan.data.source import Entry, Source, disk_entry

PREFIX = "torchvision:"
CLASSES = {"cifar10": "CIFAR10", "mnist": "MNIST", "fashion_mnist": "FashionMNIST"}
NAMES = ("celeba", "lsun", *CLASSES)


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


@lru_cache(maxsize=2)  # once per process
def _opened(name: str, wanted: NamedSet) -> Any:
    from torchvision import datasets

    root, split, download = wanted
    if name == "celeba":
        return datasets.CelebA(root, split, target_type="identity", download=download)
    if name == "lsun":
        # It keeps an index of keys in the working directory, in a format that can run code: not read from there.
        with TemporaryDirectory() as empty, chdir(empty):
            return datasets.LSUN(root, split.split(",") if "_" in split else split)
    return getattr(datasets, CLASSES[name])(root, train=split == "train", download=download)


def _open_image(name: str, wanted: NamedSet, number: int) -> BinaryIO:
    """Image `number` of a set as a PNG file."""
    return png_file(_opened(name, wanted)[number][0])


class NamedSource(Source):
    """The images of a known set, in its order."""

    def __init__(self, name: str, wanted: NamedSet) -> None:
        """The set is downloaded first where that is needed and possible.  Raises UserError."""
        here = wanted._replace(root=wanted.root.absolute())
        here.root.mkdir(parents=True, exist_ok=True)
        try:
            self._dataset = _opened(name, here)
        except Exception as error:  # no network, wrong checksums, an unknown split, no lmdb: torchvision's own messages
            raise UserError(
                f"{name} can't be opened in {wanted.root}: {error}",
                'See the torchvision page of this data set; CelebA and LSUN need pip install "pggan[datasets]", too.',
            ) from error
        self._name = name
        self._wanted = here._replace(download=False)  # it is there now
        self.description = {"kind": "torchvision", "name": name, "split": wanted.split}

    def entries(self) -> list[Entry]:
        """All images, in the order of the set."""
        name, wanted, dataset = self._name, self._wanted, self._dataset
        if name == "celeba":  # as files, which are checked more strictly than torchvision does
            folder = Path(dataset.root, dataset.base_folder, "img_align_celeba")
            people = zip(dataset.filename, dataset.identity[:, 0].tolist(), strict=True)
            return [disk_entry(folder / file, folder, file, str(person)) for file, person in people]
        if name == "lsun":
            labels = [label for label, part in zip(dataset.classes, dataset.dbs, strict=True) for _ in range(len(part))]
        else:
            labels = [dataset.classes[int(target)] for target in dataset.targets]
        return [
            Entry(
                f"{number:08d}",
                f"{name}-{wanted.split}-{len(labels)}-{number}",
                0,
                ImageFile(Path(name, f"{number:08d}"), partial(_open_image, name, wanted, number)),
                label=label,
            )
            for number, label in enumerate(labels)
        ]
