"""How to make tensors that are cached for the whole process."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def disable_fake_tensors() -> Iterator[None]:
    """Switch PyTorch's dispatch modes (FakeTensorMode) and the transforms of `torch.func` off.

    So tensors made inside have memory, and can be cached for the whole process.
    """
    with _disable_current_modes(), torch._C._DisableFuncTorch():
        yield
