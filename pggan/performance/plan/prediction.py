"""How long the steps of a run take on a card that is not here, by what their kernels read, write and calculate.

A kernel takes as long as its bytes or its operations need, whichever is longer, and a start.  In a CUDA graph, that is
all; eagerly, the host has to start every kernel, and the device waits where it is faster than the host.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import fsum
from typing import Any, NamedTuple

from pggan.config import PlanConfig, Precision
from pggan.performance.plan.calibration import PREDICTED, Timing
from pggan.performance.plan.device_table import DeviceSpec
from pggan.performance.plan.evaluations import evaluation_share
from pggan.performance.plan.phases import USABLE, PhaseCost, usable_share
from pggan.performance.plan.run_time import NO_OVERHEAD, RunTime
from pggan.training.inputs import mean_over_interval
from pggan.training.kernel_counter import Kernel, KernelKind


@dataclass(frozen=True)
class Assumptions:
    """Shares of a data sheet's figures that kernels reach, and the time of launching one.

    Sources: the first two were measured on an H200 (a copy at 4.3 of 4.8 TB/s, a matmul of 8192x8192 in bfloat16 at 790
    of 989 TFLOP/s).  The others up to the reductions are those with which nine stages of the paper's networks, captured
    on one H100 in bf16, are within 9 % of the prediction (docs/performance.md).  The times of launches are estimates.
    """

    copy_rate: float = 4.3 / 4.8  # of the bandwidth, by a large copy
    matmul_rate: float = 790 / 989  # of the tensor cores' rate, by a large matmul
    convolution_of_matmul_rate: float = 0.95
    convolution_of_copy_rate: float = 0.35  # those of few channels, at high resolutions
    elementwise_of_copy_rate: float = 0.7
    broadcast_of_copy_rate: float = 0.475
    reduction_of_copy_rate: float = 0.37
    graph_launch_seconds: float = 1.6e-6  # of a kernel in a CUDA graph
    host_launch_seconds: float = 13e-6  # of a kernel launched by Python, autograd included


ASSUMPTIONS = Assumptions()


class StepTime(NamedTuple):
    """One step, by what takes its time; in seconds."""

    launches: float
    matmul_bytes: float
    other_bytes: float
    matmul: float  # and convolutions
    other: float  # all that memory limits alone
    launching: float  # kernels in a CUDA graph
    host: float  # for launching all kernels eagerly

    @property
    def captured(self) -> float:
        """The time as a CUDA graph."""
        return self.matmul + self.other + self.launching

    @property
    def eager(self) -> float:
        """The time without CUDA graphs."""
        return max(self.captured, self.host)


def kernel_seconds(kernel: Kernel, card: DeviceSpec, precision: Precision) -> float:
    """The time of a kernel on `card` after its launch."""
    a, copying = ASSUMPTIONS, card.bytes_per_second * ASSUMPTIONS.copy_rate
    if kernel.kind is not KernelKind.matmul:
        shares = {
            KernelKind.elementwise: a.elementwise_of_copy_rate,
            KernelKind.broadcast: a.broadcast_of_copy_rate,
            KernelKind.reduction: a.reduction_of_copy_rate,
        }
        return kernel.bytes / (copying * shares[kernel.kind])
    multiplying = card.flops_per_second[precision] * a.matmul_rate * a.convolution_of_matmul_rate
    return max(kernel.bytes / (copying * a.convolution_of_copy_rate), kernel.flops / multiplying)


def step_time(kernels: Mapping[Kernel, int], card: DeviceSpec, precision: Precision) -> StepTime:
    """The time of the step that launches `kernels`."""
    sums: dict[bool, tuple[float, float]] = {}  # bytes and seconds, of matmul and of all else
    for matmul in (True, False):
        found = [(kernel, n) for kernel, n in kernels.items() if (kernel.kind is KernelKind.matmul) == matmul]
        seconds = fsum(n * kernel_seconds(kernel, card, precision) for kernel, n in found)
        sums[matmul] = (sum(n * kernel.bytes for kernel, n in found), seconds)
    launches = sum(n * kernel.launches for kernel, n in kernels.items())
    launching, host = launches * ASSUMPTIONS.graph_launch_seconds, launches * ASSUMPTIONS.host_launch_seconds
    return StepTime(launches, sums[True][0], sums[False][0], sums[True][1], sums[False][1], launching, host)


def mean_time(cost: PhaseCost, card: DeviceSpec, precision: Precision, reg_interval: int) -> StepTime:
    """The time of a step of a phase, mean over the interval of lazy penalties."""
    assert cost.kernels is not None, "counted where a card is named"
    due = step_time(cost.kernels.with_penalties, card, precision)
    rest = step_time(cost.kernels.without, card, precision)
    return StepTime(*(mean_over_interval(*both, reg_interval) for both in zip(due, rest, strict=True)))


def predicted_time(
    config: PlanConfig, costs: list[PhaseCost], card: DeviceSpec, precision: Precision, *, captured: bool
) -> tuple[RunTime, dict[str, Any]]:
    """The time of every step on `card`, and the figures behind it as plain values.

    Args: captured: steps are replayed as CUDA graphs, where these fit into the memory.
    """
    interval = config.loss.reg_interval
    times = [mean_time(cost, card, precision, interval) for cost in costs]
    room = usable_share(capture=True) * card.memory_bytes  # a phase that needs more is trained without CUDA graphs
    timings = [
        Timing(time.captured, time.captured, time.launching, PREDICTED)
        if captured and cost.peak_bytes <= room
        else Timing(time.eager, time.eager, time.host, PREDICTED)
        for cost, time in zip(costs, times, strict=True)
    ]
    rows = [phase_row(cost, time, card) for cost, time in zip(costs, times, strict=True)]
    mode = "replayed as CUDA graphs" if captured else "without CUDA graphs"
    note = f"Time: predicted for one {card.name}, steps in {precision}, {mode}; without the start, grids, ticks, "
    note += f"checkpoints and {evaluation_share(config)}."
    return RunTime(timings, NO_OVERHEAD, 1, note), {
        "name": card.name,
        "precision": precision,
        "captured": captured,
        "bytes_per_second": card.bytes_per_second,
        "flops_per_second": card.flops_per_second[precision],
        "memory_bytes": card.memory_bytes,
        "assumptions": asdict(ASSUMPTIONS),
        "phases": rows,
        "hours": {mode: fsum(row[f"{mode}_hours"] for row in rows) for mode in ("captured", "eager")},
    }


def phase_row(cost: PhaseCost, time: StepTime, card: DeviceSpec) -> dict[str, Any]:
    """The figures of one phase."""
    row = {
        "phase": cost.phase.name,
        "resolution": cost.phase.resolution,
        "fading": cost.phase.fading,
        "launches": time.launches,
        "matmul_bytes": time.matmul_bytes,
        "other_bytes": time.other_bytes,
        "matmul_milliseconds": 1000 * time.matmul,
        "other_milliseconds": 1000 * time.other,
        "launch_milliseconds": 1000 * time.launching,
        "host_milliseconds": 1000 * time.host,
        "peak_memory_bytes": cost.peak_bytes,
        "share_of_memory": cost.peak_bytes / card.memory_bytes,
        "micro_batch_size": cost.micro_batch_size,
    }
    for mode, seconds in (("captured", time.captured), ("eager", time.eager)):
        row[f"{mode}_milliseconds"] = 1000 * seconds
        row[f"{mode}_images_per_second"] = cost.phase.batch / seconds
        row[f"{mode}_hours"] = cost.steps * seconds / 3600
    return row


def prediction_notes(prediction: dict[str, Any]) -> list[str]:
    """Assumptions of a prediction, and what it found about memory, in sentences."""
    a = ASSUMPTIONS
    bandwidth, rate = prediction["bytes_per_second"] / 1e9, prediction["flops_per_second"] / 1e12
    notes = [
        f"Prediction: {bandwidth:,.0f} GB/s and {rate:g} TFLOP/s in {prediction['precision']} by the data sheet, of "
        f"which a copy reaches {a.copy_rate:.0%} and a large matmul {a.matmul_rate:.0%}, as on an H200. Of "
        f"these rates, convolutions reach {a.convolution_of_matmul_rate:.0%} of the matmul's or "
        f"{a.convolution_of_copy_rate:.0%} of the copy's; elementwise kernels {a.elementwise_of_copy_rate:.0%}, "
        f"broadcasts {a.broadcast_of_copy_rate:.1%} and reductions {a.reduction_of_copy_rate:.0%} of the copy's. "
        f"Launching a kernel takes {1e6 * a.graph_launch_seconds:g} µs in a CUDA graph, and "
        f"{1e6 * a.host_launch_seconds:g} µs of the host without one. With these shares, captured steps of the paper's "
        "networks on one H100 are within 9 % of the prediction, narrower ones up to a third slower; on other cards "
        "expect ±25 %."
    ]
    split = [row for row in prediction["phases"] if row["micro_batch_size"] is not None]
    if split:
        parts = (f"{row['phase']} in {row['micro_batch_size']}" for row in split)
        notes.append(f"Micro-batches, in images: {', '.join(parts)}.")
    if large := [row["phase"] for row in prediction["phases"] if row["share_of_memory"] > USABLE]:
        notes.append(f"The memory of the card does not suffice for {', '.join(large)}.")
    return notes
