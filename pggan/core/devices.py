"""The devices of this machine: which there are, their memory, and waiting for their work."""

import ctypes
import os
import resource
import sys
from pathlib import Path

import torch

from pggan.core.errors import UserError

# Of glibc's mallopt: how much free memory is kept at the top, and how many blocks are mapped one by one.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def choose_device(devices: str, key: str = "devices") -> torch.device:
    """The one device that `devices`, from `key`, names: auto (CUDA, else MPS, else CPU), cpu, cuda or mps.

    Raises UserError when it is not there.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if devices == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if there[name]))
    if devices not in there:
        raise UserError(f"{key}={devices} is not a device.", f"Take auto, {', '.join(there)}.")
    if not there[devices]:
        found = ", ".join(name for name, is_there in there.items() if is_there)
        raise UserError(f"{key}={devices}: there is none that PyTorch can use.", f"Found here: {found}.")
    return torch.device(devices)


def count_devices(devices: str) -> tuple[str, int]:
    """Kind and number of the devices of this machine that `devices` asks for, one rank each.

    auto: all CUDA devices, else one of MPS or CPU; N: that many CUDA devices; cpu:N: that many ranks on the CPU.
    Raises UserError when they are not there.
    """
    if devices.isdecimal() and int(devices) > 0:
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(devices) > found:
            raise UserError(
                f"devices={devices}: this machine has {found} CUDA devices.",
                f"Take at most {found}, or devices=cpu:{devices} for ranks on the CPU."
                if found
                else f"Take devices=cpu:{devices} for as many ranks on the CPU.",
            )
        return "cuda", int(devices)
    kind, _, number = devices.partition(":")
    if kind == "cpu" and number.isdecimal() and int(number) > 0:
        return "cpu", int(number)
    if number or devices.isdecimal():
        raise UserError(
            f"devices={devices} is not a choice of devices.", "Take auto, cpu, cuda, mps, N (CUDA devices) or cpu:N."
        )
    chosen = choose_device(devices).type
    return chosen, torch.cuda.device_count() if devices == "auto" and chosen == "cuda" else 1


def device_of_rank(devices: str, local_rank: int, local_world_size: int) -> torch.device:
    """The device of one of several ranks; raises UserError when there are more ranks than `devices` says."""
    kind, count = count_devices(devices)
    asked = devices != "auto" and devices not in ("cpu", "cuda", "mps")
    there = torch.cuda.device_count() if kind == "cuda" else local_world_size
    if (asked and count != local_world_size) or there < local_world_size:
        raise UserError(
            f"{local_world_size} ranks were started on this machine for {count} devices (devices={devices}).",
            "Start one rank per device; devices=cpu shares the CPU among any number.",
        )
    if kind != "cuda":
        return torch.device(kind)
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def use_one_thread() -> None:
    """Calculate in one thread, unless OMP_NUM_THREADS says otherwise."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def keep_freed_memory() -> None:
    """Let the C library of this process keep freed memory, where it can.

    Large blocks otherwise go back to the system at once and come back page by page, each cleared: a map of 35 MB then
    costs 14 ms to allocate, more than most operations on it.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc alone
        if mallopt is not None:
            mallopt(M_MMAP_MAX, 0)
            mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def synchronize(device: torch.device) -> None:
    """Return when `device` has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def free_memory(device: torch.device, processes: int = 1) -> int | None:
    """Bytes that a new computation can have on `device`; None where the system does not say.

    `processes` share the memory of one machine's CPUs.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 // processes for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None


def peak_memory(device: torch.device) -> int:
    """The most bytes held so far: by the device's allocator on CUDA, by this process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
