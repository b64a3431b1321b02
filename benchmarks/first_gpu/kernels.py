"""Part 9: the kernels of a step by name, their launches and times."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.first_gpu.context import Context, Item, Judgement
from benchmarks.first_gpu.expected import STAGES
from benchmarks.first_gpu.record import Figures
from benchmarks.first_gpu.stages import config, steps_of
from pggan.core.batch import Reals
from pggan.core.devices import synchronize
from pggan.core.rng import StepRng
from pggan.performance.bench.steps import phase_of

STEPS = 3
LISTED = 40
# Parts of the names of kernels that convolve and multiply, of cuDNN, cuBLAS and CUTLASS, and of the CPU's operations.
MATMUL = ("conv", "gemm", "nvjet", "cutlass", "cudnn", "xmma", "wgrad", "dgrad", "fprop", "::mm", "::addmm", "::bmm")
MORE_LAUNCHES = 1.25  # cuDNN adds some of its own; without fused kernels there are 1.4 to 1.9 times as many
SHARE_TOLERANCE = 0.1


def items(context: Context) -> Iterator[Item]:
    """Eager steps of two stages."""
    yield from ((str(side), partial(measure, context, side)) for side in ((8,) if context.small else (64, 1024)))


def measure(context: Context, side: int) -> Figures:
    """The kernels of a step that take longest."""
    steps = steps_of(context.device, small=context.small, mode="eager")
    (variant,) = steps.variants.values()
    phase = phase_of(side, dict(config(small=context.small, mode="eager").batches())[side])
    images = torch.rand(phase.batch, 3, side, side, device=context.device) * 2 - 1
    images = images.contiguous(memory_format=variant.layout)

    def step(number: int) -> None:
        variant.step(phase, Reals(images, None, None), StepRng(0, number * phase.batch, context.device))

    variant.begin(phase)
    step(0)  # chooses kernels
    step(1)
    synchronize(context.device)
    activity = ProfilerActivity.CUDA if context.on_cuda else ProfilerActivity.CPU
    with profile(activities=[activity], acc_events=True) as profiler:
        for number in range(STEPS):
            step(number + 2)
        synchronize(context.device)
    return summary(kernels_of(profiler.key_averages(), on_cuda=context.on_cuda))


def kernels_of(events: Iterable[Any], *, on_cuda: bool) -> list[tuple[str, int, float]]:
    """Names, numbers and microseconds of kernels, or on a CPU of operations; not of copies.

    A profile of CUDA has what the host does to launch them, too.
    """
    if not on_cuda:
        return [(event.key, event.count, event.self_cpu_time_total) for event in events]
    return [
        (event.key, event.count, event.self_device_time_total)
        for event in events
        if event.device_type.name == "CUDA" and not event.key.startswith(("Memcpy", "Memset"))
    ]


def summary(kernels: list[tuple[str, int, float]]) -> Figures:
    """Launches and milliseconds of one step, and its longest kernels."""
    whole = sum(taken for _, _, taken in kernels)
    matmul = sum(taken for name, _, taken in kernels if any(part in name.lower() for part in MATMUL))
    longest = sorted(kernels, key=lambda event: -event[2])[:LISTED]
    return {
        "launches": round(sum(count for _, count, _ in kernels) / STEPS),
        "milliseconds": whole / 1000 / STEPS,
        "share_of_matmul": matmul / whole if whole else None,
        "kernels": [
            {"name": name[:150], "launches": count / STEPS, "milliseconds": taken / 1000 / STEPS}
            for name, count, taken in longest
        ],
    }


def judge(context: Context, found: dict[str, Figures]) -> Judgement:
    """Launches are not more than counted, and convolutions take the predicted share of the time."""
    words, good = [], True
    for side, one in found.items():
        share = one["share_of_matmul"]
        words.append(f"{side}: {one['launches']} launches, {one['milliseconds']:.3g} ms, matmul {share or 0:.0%}")
        if context.on_h200:
            stage = STAGES[int(side)]
            good &= one["launches"] <= MORE_LAUNCHES * stage.kernels
            good &= share is not None and abs(share - stage.convolutions / stage.graph) <= SHARE_TOLERANCE
    if not context.on_h200:
        return Judgement("; ".join(words))
    expected = [
        f"{side}: at most {MORE_LAUNCHES * STAGES[int(side)].kernels:.0f} launches, matmul "
        f"{STAGES[int(side)].convolutions / STAGES[int(side)].graph:.0%}"
        for side in found
    ]
    return Judgement("; ".join(words), "; ".join(expected), good)
