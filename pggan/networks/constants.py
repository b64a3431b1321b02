"""How to make tensors that are kept for the whole process."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Inside, new tensors are real ones, even in a step that runs on fake tensors or in one of `torch.func`'s."""
    with _disable_current_modes(), torch._C._DisableFuncTorch():
        yield
