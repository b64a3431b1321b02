"""Files of other programs, read without running or importing anything that they name.

A pickle is a small program: it may call any function that it can name.  Here the names on a list stand for the arrays
of NumPy and for classes of this file, which only keep what they are given; every other name is refused.  Files of
PyTorch are read by PyTorch's own reader of weights.
"""

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch


class Instance:
    """Stands for an object of a class of the other program: its state alone."""

    state: Any = None

    def __setstate__(self, state: object) -> None:
        """Args: state: whatever it is, it is kept."""
        self.state = state


class PickledNetwork(Instance):
    """Stands for the network of the official implementation, whose state holds source code: text, here."""


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"it has text in {encoding!r}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


_multiarray = np.ndarray.__reduce__(np.empty(0))[0]  # NumPy's own function that begins an array
_scalar = np.float32(0).__reduce__()[0]  # … and that makes a number
ALLOWED: dict[tuple[str, str], object] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,  # as Python 3 writes b"" for Python 2
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _multiarray for core in ("core", "_core")},
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
