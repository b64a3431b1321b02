"""Parts 8 and 12: the step of every stage: captured, eager, the reference's, and compiled."""

import time
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch

from benchmarks.first_gpu.context import Context, Item, Judgement
from benchmarks.first_gpu.expected import COMPILED_MILLISECONDS, ORDER, STAGES, TOLERANCE
from benchmarks.first_gpu.parity import Case, errors_of, largest
from benchmarks.first_gpu.record import VERDICTS, Figures
from pggan.cli.compose import compose
from pggan.config import BenchConfig, Precision
from pggan.core.batch import Reals
from pggan.core.devices import synchronize
from pggan.core.rng import StepRng
from pggan.core.validation import validated
from pggan.networks import fused
from pggan.performance.bench.steps import Steps, estimated_hours, phase_of
from pggan.performance.bench.variants import REFERENCE

ROUNDS = 3  # of ten updates on a GPU
MAX_FIRST_STEP = 20  # seconds
MAX_RESERVED = 8 * 2**30  # bytes at 1024x1024, besides the workspaces of cuDNN
PARITY_LAYERS = {"D": 8, "G": 16}


def items(context: Context) -> Iterator[Item]:
    """Captured steps from the most telling stage on, then some eager ones and the reference's."""
    if context.small:
        mode = "graph" if context.on_cuda else "eager"
        yield from ((f"{mode} {side}", partial(measure, context, mode, side)) for side in (8, 4))
        return
    yield from ((f"graph {side}", partial(measure, context, "graph", side)) for side in ORDER)
    yield from ((f"eager {side}", partial(measure, context, "eager", side)) for side in (4, 64, 1024))
    yield f"{REFERENCE} 1024", partial(measure, context, REFERENCE, 1024)


def compiled_items(context: Context) -> Iterator[Item]:
    """Compiled and captured steps, and the gradients of compiled passes."""
    for side in (8,) if context.small else (1024, 64):
        yield str(side), partial(measure, context, "compiled_graph", side)
    yield "gradients", partial(compiled_gradients, context)


@cache
def config(*, small: bool, mode: str) -> BenchConfig:
    """The configuration of `pggan bench` with the official batches."""
    overrides = ["batch=null", *(["stages=[4,8]", "model.fmap_max=8", "schedule.batch=4"] if small else [])]
    overrides.append("precisions=[fp32]" if mode == REFERENCE else "precisions=[auto]")
    overrides += ["modes=[eager]", "against=true"] if mode == REFERENCE else [f"modes=[{mode}]"]
    return validated(BenchConfig, compose("bench", overrides))


@cache
def steps_of(device: torch.device, *, small: bool, mode: str) -> Steps:
    """The step in one mode, with the networks of the highest resolution."""
    steps = Steps(config(small=small, mode=mode), device, 3, print)
    if mode == REFERENCE:
        steps.variants = {REFERENCE: steps.variants[REFERENCE]}
    return steps


def measure(context: Context, mode: str, side: int) -> Figures:
    """Milliseconds of a step, and the seconds of the first one, which chooses kernels and compiles."""
    steps = steps_of(context.device, small=context.small, mode=mode)
    ((name, variant),) = steps.variants.items()
    phase = phase_of(side, dict(config(small=context.small, mode=mode).batches())[side])
    with variant.counted():
        variant.begin(phase)
        start = time.perf_counter()
        images = torch.rand(phase.batch, 3, side, side, device=context.device) * 2 - 1
        images = images.contiguous(memory_format=variant.layout)
        variant.step(phase, Reals(images, None, None), StepRng(0, 0, context.device))
        synchronize(context.device)
        first = time.perf_counter() - start
    taken = steps.measure(phase, ROUNDS, 1)[name]
    return {
        "resolution": side,
        "batch": phase.batch,
        "milliseconds": 1000 * taken,
        "images_per_second": phase.batch / taken,
        "first_step_seconds": first,
        "reserved_bytes": torch.cuda.memory_reserved(context.device) if context.on_cuda else None,
        "fused_kernels": fused.KERNELS.working if context.on_cuda else None,
        "notices": list(variant.notices),
    }


def judge(context: Context, found: dict[str, Figures]) -> Judgement:
    """The milliseconds of captured steps beside those predicted, and the hours of the official schedule."""
    by_mode: dict[str, dict[int, Figures]] = {}
    for name, one in found.items():
        by_mode.setdefault(name.split()[0], {})[one["resolution"]] = one
    graphs = by_mode.get("graph", by_mode.get("eager", {}))
    notices = sorted({notice for one in found.values() for notice in one["notices"]})
    hours = estimated_hours(config(small=context.small, mode="graph").schedule.build(), list(graphs.values()))
    words = [f"{side} {one['milliseconds']:.3g}" for side, one in graphs.items()]
    measured = "; ".join(
        [f"ms per step: {', '.join(words)}", *[f"{hours:.1f} h" for hours in [hours] if hours], *notices]
    )
    if not context.on_h200:
        return Judgement(measured)
    outside = [side for side, one in graphs.items() if not as_predicted(side, one)]
    slow = [name for name, one in found.items() if one["first_step_seconds"] > MAX_FIRST_STEP]
    reserved = graphs.get(1024, {}).get("reserved_bytes", 0)
    expected = ", ".join(f"{side} {STAGES[side].graph:g}" for side in graphs)
    good = not (outside or slow or notices) and reserved <= MAX_RESERVED
    return Judgement(measured, f"{expected} (within {TOLERANCE:.0%})", good)


def as_predicted(side: int, one: Figures) -> bool:
    """Whether a captured step takes at most so much longer or shorter than predicted."""
    stage = STAGES[side]
    predicted = stage.graph if one["fused_kernels"] else stage.plain_graph
    return bool(abs(one["milliseconds"] / predicted - 1) <= TOLERANCE)


def compiled_gradients(context: Context) -> Figures:
    """The errors of compiled passes in bf16, as in part 2."""
    width = 8 if context.small else 64
    case = Case("wgan_gp", True, False, False, False)
    errors = errors_of(context.device, Precision.bf16, case, width, compiled=True)
    good = all(errors[part] <= largest(layers, 2**-8) for part, layers in PARITY_LAYERS.items())
    return {"errors": errors, "good": good}


def judge_compiled(context: Context, found: dict[str, Figures]) -> Judgement:
    """The milliseconds of compiled steps."""
    steps: dict[str, Any] = {name: one for name, one in found.items() if name != "gradients"}
    words = [
        f"{name}: {one['milliseconds']:.3g} ms after {one['first_step_seconds']:.0f} s" for name, one in steps.items()
    ]
    exact = found.get("gradients", {}).get("good")
    notices = [notice for one in steps.values() for notice in one["notices"]]
    measured = "; ".join([", ".join([*words, f"gradients {VERDICTS[exact]}"]), *notices])
    if not context.on_h200:
        return Judgement(measured)
    limits = COMPILED_MILLISECONDS.items()
    fast = all(steps[str(side)]["milliseconds"] <= limit for side, limit in limits if str(side) in steps)
    good = exact is True and fast and not notices
    return Judgement(measured, ", ".join(f"{side} at most {limit:g} ms" for side, limit in limits), good)
