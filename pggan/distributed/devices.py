"""Where the arithmetic happens, and how."""

import ctypes
import os
import sys
from pathlib import Path

import torch

from pggan.config import ComputeConfig, ConvolutionMethod, PenaltyPath, Precision, Switch
from pggan.core.errors import UserError
from pggan.distributed.process_group import Place
from pggan.networks.convolution import COLUMNS, DIRECT, NATIVE, WINOGRAD
from pggan.networks.numerics import Compute

METHODS = {
    ConvolutionMethod.auto: None,
    ConvolutionMethod.native: NATIVE,
    ConvolutionMethod.direct: DIRECT,
    ConvolutionMethod.columns: COLUMNS,
    ConvolutionMethod.winograd: WINOGRAD,
}
COMPILED = Path.home() / ".cache" / "pggan" / "compiled"

# Of glibc's mallopt: how much free memory is kept at the top, and how many blocks are mapped one by one.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def choose_device(devices: str) -> torch.device:
    """The one device named by `devices`: auto (CUDA, else MPS, else CPU), cpu, cuda or mps.

    Raises UserError when it is not there.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if devices == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if there[name]))
    if devices not in there:
        raise UserError(f"devices={devices} is not a device.", f"Take auto, {', '.join(there)}.")
    if not there[devices]:
        found = ", ".join(name for name, is_there in there.items() if is_there)
        raise UserError(f"devices={devices}: there is none that PyTorch can use.", f"Found here: {found}.")
    return torch.device(devices)


def count_devices(devices: str) -> tuple[str, int]:
    """Kind and number of the devices of this machine that `devices` asks for, one process each.

    auto: all CUDA devices, else one of MPS or CPU; N: that many CUDA devices; cpu:N: that many processes on the CPU.
    Raises UserError when they are not there.
    """
    if devices.isdecimal() and int(devices) > 0:
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(devices) > found:
            raise UserError(
                f"devices={devices}: this machine has {found} CUDA devices.",
                f"Take at most {found}, or devices=cpu:{devices} for processes on the CPU."
                if found
                else f"Take devices=cpu:{devices} for as many processes on the CPU.",
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


def available_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_of_each(processes: int, *, elastic: bool) -> int:
    """Of `processes` of one run on this machine, for arithmetic on the CPU."""
    return 1 if elastic else max(1, available_cores() // processes)  # more would add up in another order


def device_of(place: Place, devices: str) -> torch.device:
    """The device of one of several processes; raises UserError when there are more processes than `devices` says."""
    kind, count = count_devices(devices)
    asked = devices != "auto" and devices not in ("cpu", "cuda", "mps")
    there = torch.cuda.device_count() if kind == "cuda" else place.local_size
    if (asked and count != place.local_size) or there < place.local_size:
        raise UserError(
            f"{place.local_size} processes were started on this machine for {count} devices (devices={devices}).",
            "Start one process per device; devices=cpu shares the CPU among any number.",
        )
    if kind != "cuda":
        return torch.device(kind)
    torch.cuda.set_device(place.local_rank)
    return torch.device("cuda", place.local_rank)


def set_up(device: torch.device, precision: Precision) -> None:
    """Settings of the whole process that suit `device`."""
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True  # shapes stay the same for hours
    set_float32(device, precision)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(COMPILED))
    if device.type == "cpu" and sys.platform == "linux":
        # Large blocks otherwise go back to the system at once and come back page by page, each cleared: a map of
        # 35 MB then costs 14 ms to allocate, more than most operations on it.
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc alone
        if mallopt is not None:
            mallopt(M_MMAP_MAX, 0)
            mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def set_float32(device: torch.device, precision: Precision) -> None:
    """How this process multiplies float32 numbers on `device` from now on: in TF32, or in full."""
    if device.type == "cuda":
        short = "tf32" if precision is Precision.tf32 else "ieee"
        torch.backends.cuda.matmul.fp32_precision = short
        torch.backends.cudnn.conv.fp32_precision = short  # type: ignore[attr-defined]


def choose_compute(precision: Precision, config: ComputeConfig, device: torch.device) -> Compute:
    """How steps are calculated on `device`; raises UserError for what it can't do."""
    if config.convolution is ConvolutionMethod.winograd and (device.type != "cpu" or is_short(precision, device)):
        raise UserError(
            "compute.convolution=winograd is for float32 on CPUs.", "Take compute.convolution=auto, or precision=fp32."
        )
    if precision is Precision.tf32 and device.type != "cuda":
        raise UserError(f"precision=tf32 does not exist on {device.type}.", "Take precision=fp32 or auto.")
    if precision is Precision.auto:
        precision = Precision.bf16 if device.type == "cuda" else Precision.fp32
    tangent = config.penalty is PenaltyPath.tangent or (config.penalty is PenaltyPath.auto and config.compile)
    return Compute(
        dtype={Precision.bf16: torch.bfloat16, Precision.fp16: torch.float16}.get(precision),
        method=METHODS[config.convolution],
        tangent=tangent,
        micro_batch=config.micro_batch,
        recompute=config.recompute,
        compiled=config.compile,
    )


def is_short(precision: Precision, device: torch.device) -> bool:
    """Whether activations have 16 bits."""
    return precision in (Precision.bf16, Precision.fp16) or (precision is Precision.auto and device.type == "cuda")


def records(config: ComputeConfig, device: torch.device) -> bool:
    """Whether steps are recorded as CUDA graphs; raises UserError where there are none."""
    wanted = config.cuda_graphs
    if wanted is Switch.on and device.type != "cuda":
        raise UserError(f"compute.cuda_graphs=on: there are none on {device.type}.", "Take auto or off.")
    return wanted is not Switch.off and device.type == "cuda"
