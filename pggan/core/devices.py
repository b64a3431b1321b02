"""Choose and configure devices (CPU, CUDA, MPS), and read their free and used memory."""

import os
import re
import resource
import sys
from functools import cache

import torch

from pggan.core.architecture import Precision
from pggan.core.errors import UserError
from pggan.core.process import available_cores, keep_freed_memory

DTYPES = {Precision.bf16: torch.bfloat16, Precision.fp16: torch.float16}
first_threads = cache(torch.get_num_threads)  # the number of CPU threads before the first job of Hydra's --multirun


def choose_device(devices: str, key: str = "devices") -> torch.device:
    """The torch device for auto (CUDA, else MPS, else CPU), cpu, cuda or mps; raises UserError for a missing device."""
    usable = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    found = [name for name in usable if usable[name]]
    if devices not in ("auto", *found):
        remedy = f"Use auto, or one of {', '.join(found)}. To train on N ranks, use devices=N (CUDA) or devices=cpu:N."
        raise UserError(f"{key}={devices}: PyTorch finds no such device.", remedy)
    return torch.device(found[0] if devices == "auto" else devices)


def count_devices(devices: str) -> tuple[str, int]:
    """The device type and the number of ranks that `devices` asks for; raises UserError for too few CUDA devices.

    `auto` means all CUDA devices, else MPS, else the CPU; N means N CUDA devices; cpu:N means N ranks on the CPU.
    """
    numbered = re.fullmatch(r"(cpu:)?([1-9]\d*)", devices)
    if numbered is None:
        chosen = choose_device(devices).type
        return chosen, torch.cuda.device_count() if devices == "auto" and chosen == "cuda" else 1
    kind, count = "cpu" if numbered[1] else "cuda", int(numbered[2])
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and count > found:
        problem = f"devices={devices}: this machine has {found} CUDA devices."
        raise UserError(problem, f"Ask for fewer devices, or train with several CPU ranks: devices=cpu:{devices}.")
    return kind, count


def device_of_rank(devices: str, local_rank: int) -> torch.device:
    """The device of the rank with number `local_rank` on this machine; a CUDA device becomes PyTorch's default."""
    if (kind := count_devices(devices)[0]) != "cuda":
        return torch.device(kind)
    index = 0 if torch.cuda.device_count() == 1 else local_rank  # Slurm may show each rank only one GPU, with index 0
    if index >= torch.cuda.device_count():
        raise UserError(f"Rank {index} of this machine has no CUDA device.", "Start at most one rank per CUDA device.")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def set_threads(threads: int | None, *, one: bool = False) -> None:
    """Set PyTorch's number of CPU threads; None means OMP_NUM_THREADS if set, else 1 if `one`, else one per core."""
    most = 1 if one else available_cores()  # obeys a container's CPU limit, which PyTorch's default ignores
    default = first_threads() if "OMP_NUM_THREADS" in os.environ else min(first_threads(), most)
    if (threads or default) != torch.get_num_threads():
        torch.set_num_threads(threads or default)


def configure_process(
    device: torch.device, threads: int | None = None, *, one_thread: bool = False, deterministic: bool = False
) -> None:
    """Configure PyTorch for `device`; if `deterministic`, steps on CUDA are reproducible bit for bit, as on a CPU."""
    set_threads(threads, one=one_thread)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # TF32 would lose precision
        torch.backends.cudnn.benchmark = not deterministic
        if deterministic:  # https://docs.pytorch.org/docs/stable/notes/randomness.html
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads this variable once
            torch.use_deterministic_algorithms(True, warn_only=True)
            # Don't fill new tensors with NaN: it takes time, and no training step reads uninitialized memory.
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if device.type == "cpu":
        keep_freed_memory()


def precision_on(device: torch.device, precision: Precision) -> Precision:
    """Replace precision `auto` by the best precision that `device` supports; keep other values."""
    if precision is not Precision.auto:
        return precision
    if device.type != "cuda":
        return Precision.fp32
    # On GPUs with a compute capability below 8.0, PyTorch only emulates bf16, which is slow.
    return Precision.bf16 if torch.cuda.is_bf16_supported(including_emulation=False) else Precision.fp16


def synchronize(device: torch.device) -> None:
    """Wait until `device` has finished its queued work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def free_memory(device: torch.device) -> int | None:
    """The free memory of a CUDA device in bytes; None for other types of devices."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def peak_memory(device: torch.device) -> int:
    """The peak memory use so far in bytes: by PyTorch's allocator on CUDA, by this process on other devices."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
