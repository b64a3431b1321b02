"""Why a step failed, in a form that keeps nothing of the step alive."""

import re
from dataclasses import dataclass

import torch

# As PyTorch's allocators, CUDA, cuBLAS and cuDNN say it.
NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory|ALLOC_FAILED")


@dataclass(frozen=True)
class Failure:
    """Facts of an error, kept in its place: its traceback holds the tensors of the step."""

    reason: str  # one line
    out_of_memory: bool

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """The failure that `error` tells of: an error on leaving a context, or a wrapper, hides the first one."""
        first = error.__cause__
        if first is None and not error.__suppress_context__ and isinstance(error.__context__, RuntimeError):
            first = error.__context__
        first = first or error
        return cls(_first_line(first), NO_MEMORY.search(str(first)) is not None)


def _first_line(error: BaseException) -> str:
    """The first line of the message that says something: torch.compile's begins with a heading."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line and not line.endswith(":")), type(error).__name__)


def wait_for_autograd(device: torch.device) -> None:
    """Wait until autograd's thread for `device` has dropped the backward pass that failed, and with it its tensors.

    The error reaches the caller a moment before.  The thread takes one pass after another, so another one that needs no
    memory comes to its end only then.
    """
    empty = torch.empty(0, device=device, requires_grad=True)
    torch.autograd.backward(empty.clone(), empty.detach(), inputs=[empty])
