"""Throughput of the training step per resolution, several ways of calculating it side by side."""

import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from pggan.bench.reference_step import Textbook
from pggan.bench.variants import ADAM, DECAY, TEXTBOOK, TextbookWay, Way, make_ways
from pggan.config import BenchConfig
from pggan.core.rng import Draws
from pggan.core.schedule import Phase, Schedule
from pggan.distributed.devices import set_float32
from pggan.losses.base import Loss, Reals
from pggan.training.cost.device_rates import Rates, measured_rates
from pggan.training.cost.fake_step import Imagined
from pggan.training.cost.op_counter import Meter


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
    """The ways of taking a step that are compared, and what is known of the device."""

    def __init__(
        self, config: BenchConfig, loss: Loss, device: torch.device, *, channels: int, notice: Callable[[str], None]
    ) -> None:
        """Raises UserError, before anything is made, for a way that `device` can't go.

        Args: notice: is told when a way could not be gone as asked for.
        """
        stages = config.stages if isinstance(config.stages, list) else [config.stages]
        architecture = config.model.architecture(max(stages), channels, labels=0)
        self.device, self.loss, self.channels = device, loss, channels
        self.ways = make_ways(config, architecture, loss, device, notice)
        self.imagined = Imagined(architecture, ADAM, device, half=False)
        with self.imagined.mode, warnings.catch_warnings(action="ignore"):
            self.imagined_textbook = Textbook(architecture, ADAM, 0, device)

    def rates(self) -> dict[str, Rates]:
        """The rates of the device in the precision of every way."""
        kinds = {name: (way.precision, way.compute.dtype or torch.float32) for name, way in self.ways.items()}
        found = {kind: measured_rates(self.device, *kind) for kind in dict.fromkeys(kinds.values())}
        return {name: found[kind] for name, kind in kinds.items()}

    def measure(self, phase: Phase, steps: int, warmup: int) -> dict[str, float]:
        """Seconds per update of every way: medians of rounds in which all take their turn.

        A round is one update, or as many as `loss.interval`: then every round has one with penalties.
        """
        for way in self.ways.values():
            with way.memory.counted():
                way.begin()
        images = torch.rand(phase.batch, self.channels, phase.resolution, phase.resolution, device=self.device) * 2 - 1
        seconds: dict[str, list[float]] = {name: [] for name in self.ways}
        before = max(warmup, *(way.warmup for way in self.ways.values()))
        for number in range(before + steps):
            for name, way in self.ways.items():
                if number < 2:  # the first round tries kernels, which takes memory that is not needed later
                    way.memory.peak = 0
                seconds[name].append(self._timed(way, phase, images, number))
        return {name: median(all_of[before:]) for name, all_of in seconds.items()}

    def _timed(self, way: Way, phase: Phase, images: torch.Tensor, number: int) -> float:
        set_float32(self.device, way.precision)
        interval = self.loss.interval
        images = images.contiguous(memory_format=way.layout)
        self._wait()
        with way.memory.counted():
            start = time.perf_counter()
            for update in range(number * interval, (number + 1) * interval):
                way.step(phase, Reals(images, None, None), Draws(0, update * phase.batch, self.device))
            self._wait()
            return (time.perf_counter() - start) / interval

    def row(self, phase: Phase, seconds: dict[str, float], rates: dict[str, Rates]) -> dict[str, Any]:
        """What came out for one stage: the figures of the first way, and those of all ways."""
        ways = {name: self._figures(name, phase, taken, rates[name]) for name, taken in seconds.items()}
        first = next(iter(ways))
        row = {"resolution": phase.resolution, "batch": phase.batch, **ways[first]}
        if TEXTBOOK in seconds:
            for name, taken in seconds.items():
                ways[name]["ratio"] = seconds[TEXTBOOK] / taken
            row["ratio"] = ways[first]["ratio"]
        return {**row, "ways": ways}

    def _figures(self, name: str, phase: Phase, taken: float, rates: Rates) -> dict[str, Any]:
        way = self.ways[name]
        cost = self.imagined.cost(phase, self.loss, way.compute)
        peak = self._imagined_textbook_peak(phase) if isinstance(way, TextbookWay) else cost.peak_bytes
        return {
            "milliseconds_per_step": 1000 * taken,
            "images_per_second": phase.batch / taken,
            "teraflop_per_second": cost.flops / taken / 1e12,
            "share_of_matmul_rate": cost.flops / taken / rates.multiplying,
            "floor_milliseconds_per_step": 1000 * rates.floor(cost),
            "roofline_percent": 100 * rates.floor(cost) / taken,
            "peak_memory_bytes": way.memory.peak if self.device.type == "cuda" else peak,
            "flops_per_image": cost.flops // phase.batch,
            "moved_bytes_per_image": cost.moved_bytes // phase.batch,
            "operations": None if isinstance(way, TextbookWay) else cost.operations,
            "notices": list(way.notices),
        }

    def _imagined_textbook_peak(self, phase: Phase) -> int:
        """Bytes of all tensors of the textbook at the worst moment of a step; a process does not tell ways apart."""
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

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()


def projected_hours(schedule: Schedule, rows: list[dict[str, Any]]) -> float | None:
    """Hours of a whole schedule at the measured rates; None where a resolution was not measured."""
    rates = {row["resolution"]: row["images_per_second"] for row in rows}
    if not {phase.resolution for phase in schedule.phases} <= set(rates):
        return None
    shown = ((phase, min(phase.end, schedule.total) - phase.start) for phase in schedule.phases)
    return sum(max(images, 0) / rates[phase.resolution] for phase, images in shown) / 3600  # type: ignore[no-any-return]


def stage_table(rows: list[dict[str, Any]]) -> Table:
    """The rows for people: a line per resolution and way."""
    numbers = ("ms/step", "img/s", "TFLOP/s", "roof", "ratio", "MiB")
    narrow = [Column(name, no_wrap=True, justify="right") for name in numbers]
    table = Table("side", "batch", "way", *narrow, box=SIMPLE_HEAD)
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
                f"{way['roofline_percent']:.0f}%",
                f"{way['ratio']:.2f}" if "ratio" in way else "",
                f"{way['peak_memory_bytes'] / 2**20:.0f}",
            )
    return table
