"""How fast a device multiplies and copies, and how fast a training step could be at most by that."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from pggan.config import Precision
from pggan.core.cpu import processor_facts
from pggan.core.devices import synchronize
from pggan.training.compute_options import set_float32
from pggan.training.step_cost import StepCost

ROUNDS = 6  # the first one is not counted
REPEATS = 10  # beside which launching the first and waiting for the last take next to no time


@dataclass(frozen=True)
class Rates:
    """The measured speed of a device."""

    flops_per_second: float  # floating-point operations per second of a large matrix product
    bytes_per_second: float  # bytes per second, read and written, of a large copy

    def roofline_seconds(self, cost: StepCost) -> float:
        """Seconds that a step of fused kernels takes at least."""
        return max(cost.flops / self.flops_per_second, cost.moved_bytes / self.bytes_per_second)


def measured_rates(device: torch.device, precision: Precision, dtype: torch.dtype) -> Rates:
    """The rates of `device` now, for products of `dtype` in `precision`."""
    side, numbers = (1024, 2**25) if device.type == "cpu" else (8192, 2**28)
    return Rates(matmul_rate(device, precision, dtype, side), copy_rate(device, numbers))


def copy_rate(device: torch.device, numbers: int) -> float:
    """Bytes per second, read and written, of a copy of so many float32 numbers."""
    source = torch.ones(numbers, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), device)


def matmul_rate(device: torch.device, precision: Precision, dtype: torch.dtype, side: int) -> float:
    """Floating-point operations per second of a product of `dtype` in `precision`, of matrices of `side` rows."""
    set_float32(device, precision)
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2 * side**3 / seconds(lambda: a @ b, device)


def seconds(work: Callable[[], torch.Tensor], device: torch.device) -> float:
    """The median time of `work`; a device of its own does it several times without a break."""
    times, repeats = [], 1 if device.type == "cpu" else REPEATS
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        synchronize(device)
        times.append((time.perf_counter() - start) / repeats)
    return median(times[1:])


def hardware(device: torch.device) -> dict[str, Any]:
    """The device and the system that figures are measured on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_facts()["model name"]
    return {"device": str(device), "name": name, "threads": torch.get_num_threads(), "system": platform.platform()}
