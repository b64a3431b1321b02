"""Graphics cards whose steps can be predicted without having one: what their data sheets say.

Rates are those of dense products with sums in float32: for bf16, fp16 and tf32 of tensor cores, for fp32 of CUDA cores.
Data sheets that count zeros as work (sparsity) give twice as much.
Sources: NVIDIA's data sheets of the H200, H100 (SXM), A100 80 GB (SXM), L4 and T4; for the RTX 4090 the white paper on
the Ada architecture, appendix A.  Memory: as nvidia-smi shows it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from pggan.config import Precision
from pggan.core.errors import UserError, nearest

FP32, TF32, BF16, FP16 = Precision.fp32, Precision.tf32, Precision.bf16, Precision.fp16


class DeviceSpec(NamedTuple):
    """A graphics card."""

    name: str  # as PyTorch gives it
    bytes_per_second: float
    memory_bytes: int
    flops_per_second: Mapping[Precision, float]  # of the precisions that it has

    def precision(self, asked: Precision) -> Precision:
        """`asked`, or for auto what a run takes on this card; raises UserError where there are no units for it."""
        if asked is Precision.auto:
            return BF16 if BF16 in self.flops_per_second else FP16
        if asked not in self.flops_per_second:
            known = ", ".join(self.flops_per_second)
            raise UserError(f"A {self.name} has no units for precision={asked}.", f"Use auto, or one of {known}.")
        return asked


DEVICE_SPECS = {
    "h200": DeviceSpec("NVIDIA H200", 4.8e12, 143_771 * 2**20, {BF16: 989e12, FP16: 989e12, TF32: 494e12, FP32: 67e12}),
    "h100": DeviceSpec("NVIDIA H100", 3.35e12, 81_559 * 2**20, {BF16: 989e12, FP16: 989e12, TF32: 494e12, FP32: 67e12}),
    "a100": DeviceSpec(
        "NVIDIA A100", 2.039e12, 81_920 * 2**20, {BF16: 312e12, FP16: 312e12, TF32: 156e12, FP32: 19.5e12}
    ),
    "l4": DeviceSpec("NVIDIA L4", 300e9, 23_034 * 2**20, {BF16: 121e12, FP16: 121e12, TF32: 60e12, FP32: 30.3e12}),
    "4090": DeviceSpec(
        "NVIDIA GeForce RTX 4090", 1008e9, 24_564 * 2**20, {BF16: 165e12, FP16: 165e12, TF32: 82.6e12, FP32: 82.6e12}
    ),
    "t4": DeviceSpec("Tesla T4", 320e9, 15_360 * 2**20, {FP16: 65e12, FP32: 8.1e12}),
}


def device_spec(name: str) -> DeviceSpec:
    """The card called `name`, in letters of any case; raises UserError with the nearest name, or all names."""
    if name.lower() in DEVICE_SPECS:
        return DEVICE_SPECS[name.lower()]
    raise UserError(f"device={name}: its figures are not known.", nearest(name.lower(), DEVICE_SPECS))
