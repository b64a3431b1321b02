"""The precision of arithmetic, and the settings of a process for a device."""

import os

import torch

from pggan.core.architecture import Precision
from pggan.core.devices import set_threads
from pggan.core.process import keep_freed_memory

DTYPES = {Precision.bf16: torch.bfloat16, Precision.fp16: torch.float16}


def configure_process(
    device: torch.device, threads: int | None = None, *, one_thread: bool = False, deterministic: bool = False
) -> None:
    """Configure this process for `device`: cuDNN, threads, memory.

    Args: threads: for arithmetic on the CPU; one_thread: one is the default, not one per core; deterministic: the same
    step has the same bits on CUDA in every process, as it has on a CPU.
    """
    set_threads(threads, one=one_thread)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # float32 is float32
        torch.backends.cudnn.benchmark = not deterministic  # shapes stay the same for hours
        if deterministic:  # https://docs.pytorch.org/docs/stable/notes/randomness.html
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before the first product
            torch.use_deterministic_algorithms(True, warn_only=True)  # an operation that has none is named
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # no step reads it
    if device.type == "cpu":
        keep_freed_memory()


def precision_on(device: torch.device, precision: Precision) -> Precision:
    """The precision that `auto` stands for on `device`, the current one of its type; any other precision as it is."""
    if precision is not Precision.auto:
        return precision
    if device.type != "cuda":
        return Precision.fp32
    # PyTorch emulates bf16 before compute capability 8.0, which is slow.
    return Precision.bf16 if torch.cuda.is_bf16_supported(including_emulation=False) else Precision.fp16
