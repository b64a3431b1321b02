"""Throughput of the training step per resolution, several ways of calculating it side by side."""

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
from rich.table import Table

from pggan.architecture import Architecture
from pggan.compute import Compute
from pggan.config import BenchConfig, OptimizerConfig, Precision
from pggan.cost import Imagined
from pggan.device import choose_compute
from pggan.draws import Draws
from pggan.losses.base import Loss, Reals
from pggan.meter import Meter
from pggan.schedule import Phase, Schedule
from pggan.state import new_state
from pggan.stepper import Stepper
from pggan.textbook import Textbook

ADAM = OptimizerConfig(beta1=0.0, beta2=0.99, epsilon=1e-8, reset_at_phase=True)
TEXTBOOK = "textbook"
DECAY = 0.999

Step = Callable[[Phase, Reals, Draws], object]


def phase_of(resolution: int, batch: int) -> Phase:
    """A stable phase at `resolution`, with the paper's learning rate."""
    return Phase(
        index=0,
        resolution=resolution,
        fading=False,
        alpha=1.0,
        start=0,
        end=1,
        batch=batch,
        learning_rate_g=0.001,
        learning_rate_d=0.001,
        missing_levels=0,
    )


class Steps:
    """The ways of taking a step that are compared, each with a state of its own."""

    def __init__(self, config: BenchConfig, loss: Loss, device: torch.device, *, channels: int) -> None:
        stages = config.stages if isinstance(config.stages, list) else [config.stages]
        architecture = config.model.architecture(max(stages), channels, labels=0)
        self.device, self.loss, self.channels = device, loss, channels
        self.compute: dict[str, Compute] = {}
        self.ways: dict[str, Step] = {}
        self.fresh: list[Callable[[], None]] = []
        for precision in config.precisions:
            for mode in config.modes:
                self._add(config, Precision(precision), mode, architecture)
        if config.against:
            textbook = Textbook(architecture, ADAM, 0, device)
            self.ways[TEXTBOOK] = lambda phase, reals, draws: textbook.step(phase, reals, loss, draws, decay=DECAY)
            self.fresh += [textbook.adam_g.state.clear, textbook.adam_d.state.clear]
        self.imagined = Imagined(architecture, ADAM, device, half=False)
        with self.imagined.mode, warnings.catch_warnings(action="ignore"):
            self.imagined_textbook = Textbook(architecture, ADAM, 0, device)

    def _add(self, config: BenchConfig, precision: Precision, mode: str, architecture: Architecture) -> None:
        name = f"{precision.value} {mode}"
        options = replace(config.compute, compile="compiled" in mode)
        compute = choose_compute(precision, options, self.device)
        state = new_state(architecture, ADAM, 0, self.device, half=precision is Precision.fp16)
        stepper = Stepper(state, self.loss, compute, record="graph" in mode, notice=lambda text: None)

        def reset() -> None:
            state.reset_optimizers()
            stepper.forget()

        self.compute[name] = compute
        self.ways[name] = lambda phase, reals, draws: stepper.step(phase, reals, draws, DECAY)
        self.fresh.append(reset)

    def measure(self, phase: Phase, steps: int, warmup: int) -> dict[str, Any]:
        """One row: the first way, the others beside it, all measured in turn."""
        for reset in self.fresh:
            reset()
        images = torch.rand(phase.batch, self.channels, phase.resolution, phase.resolution, device=self.device) * 2 - 1
        seconds: dict[str, list[float]] = {name: [] for name in self.ways}
        memory = {name: self._imagined_peak(name, phase) for name in self.ways}
        for number in range(warmup + steps):
            for name, step in self.ways.items():
                draws = Draws(0, number * phase.batch, self.device)
                self._wait(reset_peak=True)
                start = time.perf_counter()
                step(phase, Reals(images, None, None), draws)
                self._wait()
                seconds[name].append(time.perf_counter() - start)
                if self.device.type == "cuda":
                    memory[name] = torch.cuda.max_memory_allocated(self.device)
        return self._row(phase, {name: median(all_of[warmup:]) for name, all_of in seconds.items()}, memory)

    def _row(self, phase: Phase, seconds: dict[str, float], memory: dict[str, int]) -> dict[str, Any]:
        first = next(iter(self.ways))
        cost = self.imagined.cost(phase, self.loss, self.compute[first])
        ways = {
            name: {
                "milliseconds_per_step": 1000 * taken,
                "images_per_second": phase.batch / taken,
                "teraflop_per_second": cost.flops / taken / 1e12,
                "peak_memory_bytes": memory[name],
            }
            for name, taken in seconds.items()
        }
        row = {"resolution": phase.resolution, "batch": phase.batch, **ways[first]}
        row["flops_per_image"] = cost.flops // phase.batch
        row["operations"] = cost.operations
        if TEXTBOOK in seconds:
            row["ratio"] = seconds[TEXTBOOK] / seconds[first]
        return {**row, "ways": ways}

    def _imagined_peak(self, name: str, phase: Phase) -> int:
        """Bytes of all tensors of one way at the worst moment of a step; a process does not tell them apart."""
        if name != TEXTBOOK:
            return self.imagined.peak_bytes(phase, self.loss, self.compute[name])
        textbook = self.imagined_textbook
        with self.imagined.mode:
            images = torch.empty(phase.batch, self.channels, phase.resolution, phase.resolution, device=self.device)
            step = partial(textbook.step, phase, Reals(images, None, None), self.loss, decay=DECAY)
            textbook.adam_g.state.clear()
            textbook.adam_d.state.clear()
            step(Draws(0, 0, self.device))
            meter = Meter(textbook.tensors())
            with meter:
                step(Draws(0, 0, self.device))
        return meter.peak

    def _wait(self, *, reset_peak: bool = False) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            if reset_peak:
                torch.cuda.reset_peak_memory_stats(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a large matrix product: what the step's rate is held against."""
    side = 1024 if device.type == "cpu" else 8192
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(6):
        start = time.perf_counter()
        (a @ b)[0, 0].item()  # waits for the device
        seconds.append(time.perf_counter() - start)
    return 2 * side**3 / median(seconds[1:])


def projected_hours(schedule: Schedule, rows: list[dict[str, Any]]) -> float | None:
    """Hours of a whole schedule at the measured rates; None where a resolution was not measured."""
    rates = {row["resolution"]: row["images_per_second"] for row in rows}
    if not {phase.resolution for phase in schedule.phases} <= set(rates):
        return None
    shown = ((phase, min(phase.end, schedule.total) - phase.start) for phase in schedule.phases)
    return sum(max(images, 0) / rates[phase.resolution] for phase, images in shown) / 3600  # type: ignore[no-any-return]


def stage_table(rows: list[dict[str, Any]]) -> Table:
    """The rows for people: a line per resolution and way."""
    table = Table("side", "batch", "way", "ms/step", "img/s", "TFLOP/s", "matmul", "ratio", "MiB")
    for row in rows:
        for name, way in row["ways"].items():
            first = name == next(iter(row["ways"]))
            table.add_row(
                str(row["resolution"]) if first else "",
                str(row["batch"]) if first else "",
                name,
                f"{way['milliseconds_per_step']:.1f}",
                f"{way['images_per_second']:.2f}",
                f"{way['teraflop_per_second']:.3f}",
                f"{100 * way['share_of_matmul_rate']:.0f} %",
                f"{way['ratio']:.2f}" if "ratio" in way else "",
                f"{way['peak_memory_bytes'] / 2**20:.0f}",
            )
    return table
