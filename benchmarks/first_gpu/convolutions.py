"""Part 7: the convolutions of two levels, forward and both gradients, beside the limits of the device."""

import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.first_gpu.context import Context, Item, Judgement, train_config
from benchmarks.first_gpu.record import Figures
from pggan.config import Precision
from pggan.core.architecture import Architecture, Rescaling
from pggan.core.devices import synchronize
from pggan.networks.convolution import DIRECT, POINTWISE, Method
from pggan.training.compute_options import DTYPES
from pggan.training.cuda_graphs import capture
from pggan.training.device_rates import Rates, measured_rates
from pggan.training.op_counter import OpCounter

LEVELS = {1024: 4, 64: 32}  # resolution and the official batch
SMALL_LEVELS = {16: 2}
REPEATS = 20
# Of what the measured rates of copies and products allow, by level: cuDNN needs many channels (an H100: 0.18, 0.40).
MIN_SHARES = {1024: 0.15, 64: 0.35}
MAX_MILLISECONDS = 0.5  # of a convolution from or to 3 channels


class Shape(NamedTuple):
    """A convolution of one level."""

    name: str
    x: tuple[int, int, int, int]
    kernel: tuple[int, ...]
    rescaling: Rescaling
    method: Method


def items(context: Context) -> Iterator[Item]:
    """Every shape, the largest level first."""
    for level, batch in (SMALL_LEVELS if context.small else LEVELS).items():
        overrides = ["schedule.final_resolution=1024", *["model.fmap_max=8"] * context.small]
        architecture = train_config(*overrides).model.architecture(1024, 3, 0)
        for shape in shapes(architecture, level, batch):
            yield shape.name, partial(measure, context, shape)


def shapes(architecture: Architecture, side: int, batch: int) -> list[Shape]:
    """The convolutions of the level `side`, and the plain one below it."""
    width, below = architecture.width(side), architecture.width(side // 2)
    half, channels = side // 2, architecture.channels
    return [
        Shape(f"{side} same", (batch, width, side, side), (width, width, 3, 3), Rescaling.same, DIRECT),
        Shape(f"{side} up", (batch, below, half, half), (width, below, 3, 3), Rescaling.up, DIRECT),
        Shape(f"{side} down", (batch, width, side, side), (below, width, 3, 3), Rescaling.down, DIRECT),
        Shape(f"{side} from RGB", (batch, channels, side, side), (width, channels, 1, 1), Rescaling.same, POINTWISE),
        Shape(f"{side} to RGB", (batch, width, side, side), (channels, width, 1, 1), Rescaling.same, POINTWISE),
        Shape(f"{half} same", (batch, below, half, half), (below, below, 3, 3), Rescaling.same, DIRECT),
    ]


@cache
def rates(device: torch.device) -> Rates:
    """The limits of the device."""
    return measured_rates(device, Precision.bf16, DTYPES[Precision.bf16])


def measure(context: Context, shape: Shape) -> Figures:
    """Milliseconds of the three functions, and their shares of what the device allows."""
    dtype, method = DTYPES[Precision.bf16], shape.method
    x = torch.randn(shape.x, device=context.device).to(dtype, memory_format=torch.channels_last)
    weight = torch.randn(shape.kernel, device=context.device).to(dtype, memory_format=torch.channels_last)
    kernel = method.transform(weight, shape.rescaling, 1.0)
    y = method.convolve(x, kernel, None, shape.rescaling)
    functions: dict[str, Callable[[], Tensor]] = {
        "forward": lambda: method.convolve(x, kernel, None, shape.rescaling),
        "grad_input": lambda: method.grad_input(y, kernel, shape.rescaling),
        "grad_weight": lambda: method.grad_weight(x, y, shape.rescaling),
    }
    limits, found = rates(context.device), {}
    for name, function in functions.items():
        with OpCounter() as counter:
            function()
        roofline_seconds = max(counter.flops / limits.flops_per_second, counter.moved / limits.bytes_per_second)
        taken = seconds(function, context.device)
        found[name] = {"milliseconds": 1000 * taken, "share_of_limit": roofline_seconds / taken}
    return found


def seconds(function: Callable[[], Tensor], device: torch.device) -> float:
    """Seconds of one call, of many that the device does without a break: the host may take longer to launch them."""

    def repeat() -> dict[str, Tensor]:
        for _ in range(REPEATS - 1):
            function()
        return {"last": function()}

    function()
    work = capture(repeat)[0] if device.type == "cuda" else repeat
    work()
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return (time.perf_counter() - start) / REPEATS


FUNCTIONS = ("forward", "grad_input", "grad_weight")


def judge(context: Context, found: dict[str, Figures]) -> Judgement:
    """The one that is furthest from the limit, and the slowest from or to 3 channels."""
    shares = {
        f"{name} {function}": one[function]["share_of_limit"] for name, one in found.items() for function in FUNCTIONS
    }
    times = [one[function]["milliseconds"] for name, one in found.items() if "RGB" in name for function in FUNCTIONS]
    worst = min(shares, key=lambda name: shares[name])
    measured = f"{median(shares.values()):.0%} of the limit at the median, at the least {shares[worst]:.0%} ({worst})"
    measured += f"; RGB at most {max(times):.2g} ms"
    if not context.on_h200:
        return Judgement(measured)
    good = max(times) <= MAX_MILLISECONDS
    for name, share in shares.items():
        level = next(level for level in MIN_SHARES if int(name.split()[0]) in (level, level // 2))
        good &= share >= MIN_SHARES[level]
    least = ", ".join(f"{share:.0%} at {level}" for level, share in MIN_SHARES.items())
    return Judgement(measured, f"each at least {least}; RGB at most {MAX_MILLISECONDS} ms", good)
