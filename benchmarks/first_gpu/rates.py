"""Part 1: what the machine is, and how fast it copies and multiplies."""

from collections.abc import Iterator

import torch

from benchmarks.first_gpu.context import Context, Item, Judgement
from benchmarks.first_gpu.expected import BF16_OPERATIONS_PER_SECOND, COPY_BYTES_PER_SECOND
from benchmarks.first_gpu.record import Figures
from pggan.config import Precision
from pggan.core.formatting import three_digits
from pggan.performance.doctor.command import checks
from pggan.training.compute_options import DTYPES
from pggan.training.device_rates import measured_rates


def items(context: Context) -> Iterator[Item]:
    """What `pggan doctor` finds, and the rates in bf16."""
    yield "doctor", lambda: {check.name: check.finding(context.device)._asdict() for check in checks(context.device)}
    yield "rates", lambda: rates(context.device)


def rates(device: torch.device) -> Figures:
    """The rates of the device."""
    found = measured_rates(device, Precision.bf16, DTYPES[Precision.bf16])
    return {"copy_bytes_per_second": found.bytes_per_second, "bf16_operations_per_second": found.flops_per_second}


def judge(context: Context, found: dict[str, Figures]) -> Judgement:
    """Both rates reach nine tenths of what others have measured."""
    copied, multiplied = (found["rates"][key] for key in ("copy_bytes_per_second", "bf16_operations_per_second"))
    measured = f"copies {three_digits(copied / 1e9)} GB/s, bf16 products {three_digits(multiplied / 1e12)} TFLOP/s"
    if not context.on_h200:
        return Judgement(measured)
    expected = f"{COPY_BYTES_PER_SECOND / 1e9:.0f} GB/s, {BF16_OPERATIONS_PER_SECOND / 1e12:.0f} TFLOP/s"
    good = copied >= COPY_BYTES_PER_SECOND and multiplied >= BF16_OPERATIONS_PER_SECOND
    return Judgement(measured, expected, good)
