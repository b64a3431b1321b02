"""Throughput of the training step per resolution, several variants of it side by side."""

import time
from dataclasses import replace
from math import ceil
from statistics import median
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from pggan.config import BenchConfig
from pggan.core.batch import Reals
from pggan.core.devices import synchronize
from pggan.core.formatting import Log
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase, Schedule
from pggan.losses import build_loss
from pggan.performance.bench.variants import REFERENCE, Variant, make_variants
from pggan.training.compute_options import set_float32
from pggan.training.device_rates import Rates, measured_rates
from pggan.training.step_cost import StepCost, StepCostEstimator

# Updates between two waits for a device that works by itself: the wait, and the host's time to fill the empty queue
# again, come once in so many.
QUEUED_UPDATES = 10


def phase_of(resolution: int, batch: int) -> Phase:
    """A stable phase at `resolution`, with the paper's learning rate."""
    rates = {"learning_rate_g": 0.001, "learning_rate_d": 0.001}
    return Phase(0, resolution, fading=False, alpha=1.0, start=0, end=1, batch=batch, missing_levels=0, **rates)


class Steps:
    """The variants of the step that are compared, and what is known of the device."""

    def __init__(self, config: BenchConfig, device: torch.device, channels: int, log: Log) -> None:
        """Raises UserError, before anything is made, for what `device` can't do; `log` is told what fails later."""
        architecture = config.model.architecture(max(config.batches())[0], channels, num_classes=0)
        self.device, self.loss, self.channels = device, build_loss(vars(config.loss)), channels
        self.variants = make_variants(config, architecture, device, log)
        self.architecture = architecture

    def rates(self) -> dict[str, Rates]:
        """The rates of the device in the precision of every variant."""
        used = {name: (v.precision, v.factory.options.dtype or torch.float32) for name, v in self.variants.items()}
        found = {both: measured_rates(self.device, *both) for both in dict.fromkeys(used.values())}
        return {name: found[both] for name, both in used.items()}

    def measure(self, phase: Phase, steps: int, warmup: int) -> dict[str, float]:
        """Seconds per update of every variant: medians of `steps` rounds in which all take their turn.

        A round is `loss.reg_interval` updates, on a GPU at least ten: all rounds have as many with penalties.
        """
        for variant in self.variants.values():
            with variant.counted():
                variant.begin(phase)
        images = torch.rand(phase.batch, self.channels, phase.resolution, phase.resolution, device=self.device) * 2 - 1
        seconds: dict[str, list[float]] = {name: [] for name in self.variants}
        before = max(warmup, *(ceil(variant.warmup / self.round) for variant in self.variants.values()))
        for number in range(before + steps):
            for name, variant in self.variants.items():
                if number < 2:  # the first round tries kernels, which takes memory that is not needed later
                    variant.peak = 0
                seconds[name].append(self._timed(variant, phase, images, number))
        return {name: median(all_of[before:]) for name, all_of in seconds.items()}

    @property
    def round(self) -> int:
        """Updates of one round: whole intervals of the loss."""
        interval = self.loss.reg_interval
        return interval if self.device.type == "cpu" else interval * ceil(QUEUED_UPDATES / interval)

    def _timed(self, variant: Variant, phase: Phase, images: torch.Tensor, number: int) -> float:
        set_float32(self.device, variant.precision)
        images, count = images.contiguous(memory_format=variant.layout), self.round
        synchronize(self.device)
        with variant.counted():
            start = time.perf_counter()
            for update in range(number * count, (number + 1) * count):
                variant.step(phase, Reals(images, None, None), StepRng(0, update * phase.batch, self.device))
            synchronize(self.device)
            return (time.perf_counter() - start) / count

    def costs(self, phase: Phase) -> dict[str, StepCost]:
        """The cost of a step of every variant, each way to calculate it counted once."""
        eager = {name: replace(one.factory, capture=False) for name, one in self.variants.items()}
        found = {
            factory: StepCostEstimator(self.architecture, factory, self.device).cost(phase)
            for factory in set(eager.values())
        }
        return {name: found[factory] for name, factory in eager.items()}

    def row(
        self, phase: Phase, seconds: dict[str, float], costs: dict[str, StepCost], rates: dict[str, Rates]
    ) -> dict[str, Any]:
        """The result of one stage: the figures of the first variant, and those of all variants."""
        variants = {
            name: self._figures(self.variants[name], phase, taken, costs[name], rates[name])
            for name, taken in seconds.items()
        }
        if REFERENCE in seconds:
            for name, taken in seconds.items():
                variants[name]["ratio"] = seconds[REFERENCE] / taken
        first = next(iter(variants.values()))
        return {"resolution": phase.resolution, "batch": phase.batch, **first, "variants": variants}

    def _figures(self, variant: Variant, phase: Phase, taken: float, cost: StepCost, rates: Rates) -> dict[str, Any]:
        return {
            "milliseconds_per_step": 1000 * taken,
            "images_per_second": phase.batch / taken,
            "teraflop_per_second": cost.flops / taken / 1e12,
            "share_of_matmul_rate": cost.flops / taken / rates.flops_per_second,
            "floor_milliseconds_per_step": 1000 * rates.roofline_seconds(cost),
            "roofline_percent": 100 * rates.roofline_seconds(cost) / taken,
            "peak_memory_bytes": variant.peak if self.device.type == "cuda" else cost.peak_bytes,
            "flops_per_image": cost.flops // phase.batch,
            "moved_bytes_per_image": cost.moved_bytes // phase.batch,
            "operations": cost.operations,
            "notices": list(variant.notices),
        }


def estimated_hours(schedule: Schedule, rows: list[dict[str, Any]]) -> float | None:
    """Hours of a whole schedule at the measured rates; None where a resolution was not measured."""
    rates = {row["resolution"]: row["images_per_second"] for row in rows}
    if not {phase.resolution for phase in schedule.phases} <= set(rates):
        return None
    shown = ((phase, min(phase.end, schedule.total) - phase.start) for phase in schedule.phases)
    return sum(max(images, 0) / rates[phase.resolution] for phase, images in shown) / 3600  # type: ignore[no-any-return]


def stage_table(rows: list[dict[str, Any]]) -> Table:
    """A row per resolution and variant."""
    numbers = ("ms/step", "img/s", "TFLOP/s", "roof", "ratio", "MiB")
    right = (Column(name, no_wrap=True, justify="right") for name in numbers)
    table = Table("side", "batch", "variant", *right, box=SIMPLE_HEAD)
    for row in rows:
        stage = str(row["resolution"]), str(row["batch"])
        for name, variant in row["variants"].items():
            figures = (
                f"{variant['milliseconds_per_step']:.1f}",
                f"{variant['images_per_second']:.2f}",
                f"{variant['teraflop_per_second']:.3f}",
                f"{variant['roofline_percent']:.0f}%",
                f"{variant['ratio']:.2f}" if "ratio" in variant else "",
                f"{variant['peak_memory_bytes'] / 2**20:.0f}",
            )
            table.add_row(*stage, name, *figures)
            stage = "", ""
    return table
