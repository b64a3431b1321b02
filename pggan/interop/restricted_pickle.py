"""Files of other programs, read without running or importing anything that they name.

A pickle is a small program: it may call any function that it can name.  Here the names on a list stand for classes and
functions of this file, which only keep what they are given; every other name is refused.  NumPy's own classes are not
on the list: a pickle can give them a type whose bytes are taken for addresses in memory.  Files of PyTorch are read by
PyTorch's own reader of weights.
"""

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

NUMBERS = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}  # the types that arrays may have


class Instance:
    """Stands for an object of a class of the other program: its state alone."""

    state: Any = None

    def __init__(self, *arguments: object) -> None:
        """Args: arguments: whatever they are, they are kept."""
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        """Args: state: whatever it is, it is kept."""
        self.state = state


class PickledNetwork(Instance):
    """Stands for the network of the official implementation, whose state holds source code: text, here."""


class PickledType(Instance):
    """Stands for a NumPy type."""

    def of(self, content: bytes | str, shape: tuple[int, ...] = (), order: Any = "C") -> npt.NDArray[Any]:
        """The numbers in `content`; raises ValueError unless they are plain numbers, and enough of them."""
        code = self.arguments[0]
        if code not in NUMBERS:
            raise ValueError(f"it has an array of {code!r}, which are no numbers")
        kind = np.dtype(code).newbyteorder(self.state[1] if self.state else "=")
        raw = content if isinstance(content, bytes) else content.encode("latin1")  # Python 2 writes text
        return np.ndarray(shape, kind, raw, order=order)


class PickledArray(Instance):
    """Stands for a NumPy array; NumPy takes it for one."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        _, shape, kind, is_transposed, content = self.state
        if not isinstance(kind, PickledType):
            raise ValueError("it has an array without a type")
        return np.array(kind.of(content, shape, "F" if is_transposed else "C"), dtype)


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"it has text in {encoding!r}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


def _scalar(kind: PickledType, content: bytes | str) -> Any:
    return kind.of(content)[()]


ALLOWED: dict[tuple[str, str], object] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,  # as Python 3 writes b"" for Python 2
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): PickledType,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): PickledArray for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    ("tfutil", "Network"): PickledNetwork,
}


class RestrictedUnpickler(pickle.Unpickler):
    """Reads one pickle; names are looked up in ALLOWED alone."""

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for a name; raises ValueError unless it is on the list."""
        if (module, name) not in ALLOWED:
            raise ValueError(f"it asks for {module}.{name}, which is not on the list of harmless names")
        return ALLOWED[module, name]


def read_foreign_file(path: Path) -> Any:
    """The content of a pickle, or of a file of PyTorch with its tensors; raises ValueError unless it is harmless."""
    try:
        # pytorch_GAN_zoo keeps its configuration beside the weights.
        with torch.serialization.safe_globals([(Instance, "models.utils.config.BaseConfig")]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as of_torch:  # damaged ones raise anything
        try:
            with path.open("rb") as file:
                return RestrictedUnpickler(file, encoding="latin1").load()
        except Exception as error:
            problem = str(error) or type(error).__name__
            raise ValueError(f"{problem}; PyTorch says {str(of_torch).partition(chr(10))[0]}") from error
