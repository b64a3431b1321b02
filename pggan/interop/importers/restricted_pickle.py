"""Pickles of other programs, read without running or importing anything that they name.

A pickle is a small program: it may call any function that it can name.  Here the names on a list stand for classes and
functions of this file, which only keep what they are given; every other name is refused.
"""

import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import IO, Any

import numpy as np
import numpy.typing as npt

NUMBERS = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"}  # of arrays; no objects


class NumberType:
    """Stands for numpy.dtype."""

    def __init__(self, code: str, *_: object) -> None:
        if code not in NUMBERS:
            raise ValueError(f"it has an array of type {code!r}")
        self.code, self.order = code, "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Args: state: a version, the order of bytes, and what only structures have."""
        self.order = ">" if state[1] == ">" else "<"

    def read(self, content: bytes) -> npt.NDArray[Any]:
        """The numbers in `content`."""
        return np.frombuffer(content, np.dtype(self.order + self.code))


class Array:
    """Stands for numpy.ndarray."""

    value: npt.NDArray[Any]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Args: state: a version, shape, type, whether columns are side by side in memory, and the content."""
        _, shape, kind, by_columns, content = state
        if not isinstance(kind, NumberType):
            raise ValueError("it has an array without a type")
        self.value = kind.read(content).reshape(shape, order="F" if by_columns else "C")


class Instance:
    """Stands for an object of a class of the other program: its state alone."""

    state: Any = None

    def __setstate__(self, state: object) -> None:
        """Args: state: whatever it is, it is kept."""
        self.state = state


class PickledNetwork(Instance):
    """Stands for the network of the official implementation, whose state holds source code: text, here."""


@dataclass(frozen=True)
class StorageType:
    """Stands for a class of torch such as FloatStorage."""

    number: str


@dataclass
class Storage:
    """Stands for the memory of tensors; its content follows the pickle."""

    kind: StorageType
    count: int
    content: bytes = b""


@dataclass(frozen=True)
class Tensor:
    """Stands for a tensor."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def value(self) -> npt.NDArray[Any]:
        """The tensor as an array; raises ValueError unless it lies inside its storage."""
        numbers = np.frombuffer(self.storage.content, np.dtype("<" + self.storage.kind.number))
        last = self.offset + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        sound = min((self.offset, *self.shape, *self.stride)) >= 0 and last < len(numbers)
        if not sound or prod(self.shape) > len(numbers):
            raise ValueError("a tensor lies outside its storage")
        steps = [step * numbers.itemsize for step in self.stride]
        return np.lib.stride_tricks.as_strided(numbers[self.offset :], self.shape, steps).copy()


def _new_array(*_: object) -> Array:
    return Array()


def _scalar(kind: NumberType, content: bytes) -> Any:
    return kind.read(content)[0]


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"it has text in {encoding!r}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


def _tensor(storage: Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: object) -> Tensor:
    return Tensor(storage, offset, tuple(shape), tuple(stride))


def _parameter(tensor: Tensor, *_: object) -> Tensor:
    return tensor


ALLOWED: dict[tuple[str, str], object] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,  # as Python 3 writes b"" for Python 2
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): NumberType,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _new_array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    ("tfutil", "Network"): PickledNetwork,
    ("models.utils.config", "BaseConfig"): Instance,  # of pytorch_GAN_zoo
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch", "FloatStorage"): StorageType("f4"),
    ("torch", "DoubleStorage"): StorageType("f8"),
    ("torch", "HalfStorage"): StorageType("f2"),
    ("torch", "LongStorage"): StorageType("i8"),
    ("torch", "IntStorage"): StorageType("i4"),
    ("torch", "ByteStorage"): StorageType("u1"),
    ("torch", "BoolStorage"): StorageType("b1"),
}


class RestrictedUnpickler(pickle.Unpickler):
    """Reads one pickle; names are looked up in ALLOWED alone."""

    def __init__(self, file: IO[bytes], storage_of: Callable[[str, StorageType, int], Storage] | None = None) -> None:
        """Args: storage_of: the storage of a key, a type and a count of numbers, in files of torch."""
        super().__init__(file, encoding="latin1")
        self.storage_of = storage_of

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for a name; raises ValueError unless it is on the list."""
        if (module, name) not in ALLOWED:
            raise ValueError(f"it asks for {module}.{name}, which is not on the list of harmless names")
        return ALLOWED[module, name]

    def persistent_load(self, identity: Any) -> Storage:
        """The storage that a file of torch refers to."""
        if self.storage_of is None or not isinstance(identity, tuple) or len(identity) < 5 or identity[0] != "storage":
            raise ValueError("it refers to something outside")
        kind, key, count = identity[1], identity[2], identity[4]
        if not isinstance(kind, StorageType) or not isinstance(count, int):
            raise ValueError("it has a storage without a type")
        return self.storage_of(str(key), kind, count)


def read_pickle(file: IO[bytes], storage_of: Callable[[str, StorageType, int], Storage] | None = None) -> Any:
    """The content of the next pickle in `file`, built of the classes above; raises ValueError unless it is harmless."""
    try:
        return RestrictedUnpickler(file, storage_of).load()
    except Exception as error:  # damaged ones raise anything
        raise ValueError(str(error) or type(error).__name__) from error
