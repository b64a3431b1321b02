"""Operations of the networks, called like functions: fast ones, and beside each its plain twin.

Inside `implementation(reference=True)`, every operation is its twin: PyTorch's operations in the fewest words, with
PyTorch's own derivatives.  `pggan bench against=true` measures a step against that, and tests compare both.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

_reference = False  # global, and read in forward passes only: autograd runs backward passes in threads of its own


@contextmanager
def implementation(*, reference: bool) -> Iterator[None]:
    """Inside, operations are the plain twins if `reference`, else the fast ones."""
    global _reference  # noqa: PLW0603
    before, _reference = _reference, reference
    try:
        yield
    finally:
        _reference = before


def is_reference() -> bool:
    """Whether operations are the plain twins."""
    return _reference


def to_float32(x: Tensor) -> Tensor:
    """`x` in float32; unchanged in float32 and float64."""
    return x.float() if x.dtype.itemsize < 4 else x
