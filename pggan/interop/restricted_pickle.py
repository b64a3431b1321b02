"""Reads pickles of other programs without running or importing anything that the pickles name.

A pickle may call any function by name; this module refuses every name that is not in ALLOWED.  Classes of this
module replace NumPy's, because a pickled array of dtype `object` could make NumPy use any bytes as memory addresses.
"""

import pickle
import re
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

NUMBERS = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}  # allowed dtypes of arrays


class Instance:
    """Replaces a pickled object of another program: keeps constructor arguments and state, and runs no code."""

    state: Any = None

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        self.state = state


class PickledNetwork(Instance):
    """Replaces a pickled network of the official progressive GAN; the source code in the pickle is never run."""


class PickledType(Instance):
    """Replaces a pickled NumPy dtype."""

    def of(self, content: bytes | str, shape: tuple[int, ...] = (), order: Any = "C") -> npt.NDArray[Any]:
        """Decode `content` as an array; raises ValueError if the dtype is not in NUMBERS."""
        code = self.arguments[0]
        if code not in NUMBERS:
            raise ValueError(f"the file has an array of dtype {code!r}, which does not hold numbers")
        kind = np.dtype(code).newbyteorder(self.state[1] if self.state else "=")
        raw = content if isinstance(content, bytes) else content.encode("latin1")  # Python 2's bytes are loaded as str.
        return np.ndarray(shape, kind, raw, order=order)


class PickledArray(Instance):
    """Replaces a pickled NumPy array; `np.asarray` converts this object to the array."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        _, shape, kind, is_transposed, content = self.state
        if not isinstance(kind, PickledType):
            raise ValueError("the file has an array without a dtype")
        return np.array(kind.of(content, shape, "F" if is_transposed else "C"), dtype)


ALLOWED: dict[tuple[str, str], object] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): lambda text, _: text.encode("latin1"),  # Pickle protocol 2 stores bytes as latin1 text.
    ("__builtin__", "bytes"): lambda: b"",  # Pickles of protocol 2 store b"" as a call of `bytes`.
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): PickledType,
    ("numpy.core.multiarray", "_reconstruct"): PickledArray,
    ("numpy.core.multiarray", "scalar"): lambda kind, content: kind.of(content)[()],
    ("tfutil", "Network"): PickledNetwork,
}


class RestrictedUnpickler(pickle.Unpickler):
    """An unpickler that loads only the classes and functions in ALLOWED, so that a pickle can't run code."""

    def find_class(self, module: str, name: str) -> Any:
        known = module.replace("numpy._core", "numpy.core"), name  # NumPy 2 renamed the module.
        if known not in ALLOWED:
            raise ValueError(f"it asks to run {module}.{name}")
        return ALLOWED[known]


def read_foreign_file(path: Path) -> Any:
    """Return the content of a pickle or a PyTorch file; raises ValueError if the file is damaged or may run code."""
    try:
        # A file of pytorch_GAN_zoo may hold a BaseConfig object; PyTorch makes an object of our class Instance instead.
        with torch.serialization.safe_globals([(Instance, "models.utils.config.BaseConfig")]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as of_torch:  # PyTorch may raise any exception for a damaged file
        content: Any = 0
        with suppress(EOFError, LookupError, MemoryError, pickle.UnpicklingError), path.open("rb") as file:
            content = RestrictedUnpickler(file, encoding="latin1").load()
        if not isinstance(content, int):  # old versions of torch.save begin a file with an int, not with a network
            return content
        asked = re.search(r"GLOBAL (\S+)", str(of_torch))
        problem = f"it asks to run {asked[1]}" if asked else "it is empty or damaged: download it again"
        raise ValueError(problem) from of_torch
