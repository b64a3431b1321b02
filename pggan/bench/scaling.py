"""`pggan bench scaling`: how much faster several processes are than one, and what a step spends its time on.

All processes run throughout; for each number of them, in turn, the first so many take a step together.
"""

import os
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile, record_function

from pggan.bench.command import hardware, require_places, show
from pggan.bench.steps import phase_of
from pggan.bench.variants import ADAM, DECAY
from pggan.config import ComputeConfig, ConvolutionMethod, PenaltyPath, ScalingConfig, Switch
from pggan.config.notation import table as per_level
from pggan.core.errors import UserError
from pggan.core.rng import Draws
from pggan.core.schedule import table_at
from pggan.data.stream.to_float import mirrored, to_float
from pggan.distributed.agent import run_workers
from pggan.distributed.devices import choose_compute, choose_device, count_devices, device_of, set_up
from pggan.distributed.membership import take_part
from pggan.distributed.process_group import World, launched
from pggan.losses import build_loss
from pggan.losses.base import Reals
from pggan.plan.tables import new_table, three_digits
from pggan.run.run_dir import plain, versions
from pggan.training.gradients.batch_partition import Division
from pggan.training.gradients.build import build_exchange, compresses
from pggan.training.gradients.reducer import Arrival, Exchange
from pggan.training.state import Player, new_state
from pggan.training.step_runner import Stepper

AS_TRAINED = ComputeConfig(
    convolution=ConvolutionMethod.auto,
    penalty=PenaltyPath.auto,
    micro_batch=None,
    recompute=False,
    compile=False,
    cuda_graphs=Switch.off,
)
LONG_AFTER = 10**9  # images since the phase began: compression has warmed up
PARTS = ("compute", "communication", "idle", "data")


def run(config: ScalingConfig) -> int:
    """Measure every stage with every number of processes, and print what came out."""
    place = launched()
    largest = max(config.processes)
    if place is not None:
        return take_part(place, partial(device_of, place, config.devices), config.workers, partial(measure, config))
    build_loss(config.loss)
    check_batches(config)
    require_places(config.out, config.trace)
    kind, there = count_devices(config.devices)
    if config.devices == "auto" and there < largest:
        kind = "cpu"
    if kind != "cpu" and there < largest:
        raise UserError(f"processes={config.processes}: there are {there} devices.", "Take fewer, or devices=cpu.")
    if largest == 1:
        return measure(config, World.alone(choose_device(kind)))
    values = {**plain(config), "devices": kind}
    count = -(-largest // config.workers.nodes)
    return run_workers("bench scaling", values, count, config.workers, threads=1, say=print)


def check_batches(config: ScalingConfig) -> None:
    """Raise UserError unless every number of processes can share its batches."""
    batches = per_level("batch", config.batch, min(config.stages), least=1, whole=True)
    for stage in config.stages:
        for size in config.processes:
            division = Division(0, size, config.model.stddev_group, config.elastic, None, config.workers.shards)
            division.require_enough("batch times processes", int(table_at(batches, stage)) * size)


class Timed(Exchange):
    """Another exchange, with the seconds that this process waited: for the others to come, and for the numbers."""

    def __init__(self, inner: Exchange, world: World) -> None:
        super().__init__()
        self.inner = inner
        self.prepare = inner.prepare  # type: ignore[method-assign]
        self.world = world
        self.seconds = {"idle": 0.0, "communication": 0.0}

    def add(self, player: Player, loss: torch.Tensor, batch: int) -> None:
        self.inner.add(player, loss, batch)

    def send(self, player: Player, batch: int) -> Arrival:
        with record_function("send gradients"):
            arrive = self.inner.send(player, batch)

        def arrival() -> torch.Tensor:
            finish(self.world.device)
            start = time.perf_counter()
            with record_function("wait for the others"):
                self.world.wait_for_all()
            met = time.perf_counter()
            with record_function("wait for gradients"):
                loss = arrive()
                finish(self.world.device)
            self.seconds["idle"] += met - start
            self.seconds["communication"] += time.perf_counter() - met
            return loss

        return arrival


class Runner:
    """Steps of the first `size` processes, seen from one of them."""

    def __init__(self, config: ScalingConfig, world: World, stage: int, batch: int) -> None:
        self.world = world
        device = world.device
        self.phase = phase_of(stage, batch * world.size)
        division = Division(
            world.rank, world.size, config.model.stddev_group, config.elastic, None, config.workers.shards
        )
        architecture = config.model.architecture(max(config.stages), 3, labels=0)
        compute = choose_compute(config.precision, AS_TRAINED, device)
        rows = torch.from_numpy(division.rows(self.phase.batch)).to(device)
        size = division.pass_size(self.phase.batch)
        sparse = compresses(config.gradients, world)
        state = new_state(architecture, ADAM, 0, device, half=compute.dtype is torch.float16, sparse=sparse)
        state.images = LONG_AFTER
        self.stepper = Stepper(
            state,
            build_loss(config.loss),
            compute,
            record=False,
            notice=print,
            micro_batches={(stage, self.phase.batch): size} if size else None,
            exchange=build_exchange(config.gradients, state, ADAM, world=world, division=division),
            rows=lambda _: rows,
        )
        generator = torch.Generator(device).manual_seed(world.rank)
        self.stored = torch.randint(
            256, (len(rows), stage, stage, 3), dtype=torch.uint8, device=device, generator=generator
        )

    def step(self) -> float:
        """Take a step; returns the seconds of its data, from bytes on the device to floats."""
        start = time.perf_counter()
        with record_function("data"):
            images = to_float(mirrored(self.stored, torch.arange(len(self.stored), device=self.world.device) % 2 == 0))
            finish(self.world.device)
        data = time.perf_counter() - start
        draws = Draws(0, self.stepper.state.images, self.world.device)
        self.stepper.step(self.phase, Reals(images, None, None), draws, DECAY)
        finish(self.world.device)
        return data

    def seconds(self) -> float:
        """How long a step takes."""
        self.world.wait_for_all()
        start = time.perf_counter()
        self.step()
        return time.perf_counter() - start

    def parts(self) -> dict[str, float]:
        """What a step spends its time on, in seconds.  Nothing is hidden behind anything else while it is measured."""
        exchange = self.stepper.exchange
        timed = self.stepper.exchange = Timed(exchange, self.world)
        self.world.wait_for_all()
        start = time.perf_counter()
        data = self.step()
        whole = time.perf_counter() - start
        self.stepper.exchange = exchange
        waited = sum(timed.seconds.values())
        return {"compute": whole - data - waited, **timed.seconds, "data": data}

    def trace(self, path: Path) -> None:
        """Write a trace of one step."""
        exchange, self.stepper.exchange = self.stepper.exchange, Timed(self.stepper.exchange, self.world)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.world.device.type == "cuda" else [])]
        with profile(activities=activities) as profiler:
            self.step()
        profiler.export_chrome_trace(str(path))
        self.stepper.exchange = exchange


def measure(config: ScalingConfig, world: World) -> int:
    """All stages, in one process; the first one prints."""
    set_up(world.device, config.precision)
    if world.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # as each of several processes has
    console = Console(stderr=True, highlight=False)
    worlds = {size: world.of_first(size) for size in config.processes}
    batches = per_level("batch", config.batch, min(config.stages), least=1, whole=True)
    rows: list[dict[str, Any]] = []
    for stage in config.stages:
        batch = int(table_at(batches, stage))
        runners = {size: Runner(config, part, stage, batch) for size, part in worlds.items() if part is not None}
        seconds: dict[int, list[float]] = {size: [] for size in runners}
        parts: dict[int, list[dict[str, float]]] = {size: [] for size in runners}
        for round_number in range(config.warmup + config.steps):
            for size in config.processes:
                world.wait_for_all()
                if size in runners and round_number < config.warmup:
                    runners[size].step()
                elif size in runners:
                    seconds[size].append(runners[size].seconds())
                    parts[size].append(runners[size].parts())
        world.wait_for_all()
        if config.trace is not None and (largest := max(config.processes)) in runners:
            Path(config.trace).mkdir(parents=True, exist_ok=True)  # it may be another machine's
            runners[largest].trace(Path(config.trace) / f"{stage}x{stage}-process{world.rank}.json")
        if world.is_first:
            rows += rows_of(stage, batch, seconds, parts)
            console.print(f"{stage}x{stage}: {rows[-1]['speedup']:.2f} times one process with {rows[-1]['processes']}")
    world.wait_for_all()
    if world.is_first:
        facts = {"hardware": hardware(world.device), "versions": versions(), "gradients": config.gradients}
        show(facts | {"loss": config.loss, "elastic": config.elastic, "stages": rows}, config, scaling_table(rows))
    return 0


def rows_of(
    stage: int, batch: int, seconds: dict[int, list[float]], parts: dict[int, list[dict[str, float]]]
) -> list[dict[str, Any]]:
    """The figures of one stage, one row per number of processes."""
    rates = {size: size * batch / median(taken) for size, taken in seconds.items()}
    least = min(rates)
    return [
        {
            "resolution": stage,
            "batch_per_process": batch,
            "processes": size,
            "milliseconds_per_step": 1000 * median(seconds[size]),
            "images_per_second": rate,
            "speedup": rate / rates[least] * least,
            "efficiency": rate / rates[least] * least / size,
            "milliseconds": {part: 1000 * median(of[part] for of in parts[size]) for part in PARTS},
        }
        for size, rate in rates.items()
    ]


def scaling_table(rows: list[dict[str, Any]]) -> Table:
    """The rows for people."""
    names = ("processes", "img/s", "times", "ms/step", "compute", "exchange", "idle", "data")
    table = new_table("Last four columns: ms of a step in which nothing is hidden behind anything else", "side", *names)
    for row in rows:
        milliseconds = (row["milliseconds_per_step"], *(row["milliseconds"][part] for part in PARTS))
        table.add_row(
            str(row["resolution"]),
            str(row["processes"]),
            three_digits(row["images_per_second"]),
            f"{row['speedup']:.2f}",
            *map(three_digits, milliseconds),
        )
    return table


def finish(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
