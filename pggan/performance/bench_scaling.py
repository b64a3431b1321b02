"""`pggan bench scaling`: how much faster several ranks are than one, and what a step spends its time on.

All ranks run throughout; for each number of them, in turn, the first so many take a step together.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile, record_function

from pggan.config import Switch, TrainerConfig
from pggan.config.commands import BenchScalingConfig, default_trainer
from pggan.config.values import to_plain, versions
from pggan.core.devices import choose_device, count_devices, synchronize
from pggan.core.errors import UserError
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.core.text import new_table, next_command, three_digits
from pggan.data.reals import mirrored, to_float
from pggan.distributed.launch import launch
from pggan.distributed.process_group import ProcessGroup, rank_from_environment, run_distributed
from pggan.losses.base import Reals
from pggan.optim.reducer import GradientReducer, Handle
from pggan.optim.state import Trainable
from pggan.performance.bench import hardware, phase_of
from pggan.training.build import build_partition, build_trainer
from pggan.training.precision import configure_process
from pggan.training.timing import EMA_DECAY

LONG_AFTER = 10**9  # images since the phase began: compression has warmed up
PARTS = ("compute", "communication", "idle", "data")
Times = list[tuple[float, dict[str, float]]]  # of steps: the seconds of one, and of the parts of another


def run(config: BenchScalingConfig) -> int:
    """Measure every stage with every number of ranks, and print the result.  Returns the exit code."""
    info, largest = rank_from_environment(), max(config.processes)
    if info is not None:
        return run_distributed(info, config.devices, partial(measure, config))
    for size, (_, batch) in product(config.processes, config.batches()):
        build_partition(trainer_config(config), [batch * size], size, key="batch times ranks")
    kind, there = count_devices(config.devices)
    if config.devices == "auto" and there < largest:
        kind = "cpu"
    if kind != "cpu" and there < largest:
        problem = f"processes={config.processes}: there are {there} devices, one for each rank."
        raise UserError(problem, "Use fewer ranks, or devices=cpu.")
    if largest == 1:
        return measure(config, ProcessGroup.single_process(choose_device(kind)))
    values, count = {**to_plain(config), "devices": kind}, -(-largest // config.distributed.nnodes)
    return launch("bench scaling", values, count, **config.distributed.launcher, threads=config.threads or 1)


def trainer_config(config: BenchScalingConfig) -> TrainerConfig:
    """The trainer that is measured, with defaults for what is not configured."""
    keys = ("model", "loss", "precision", "elastic", "distributed", "gradients")
    compute = replace(default_trainer().compute, cuda_graphs=Switch.off)
    return replace(default_trainer(), **{key: getattr(config, key) for key in keys}, compute=compute)


class TimedReducer(GradientReducer):
    """Another reducer, with the seconds that this rank waited: for the other ranks, and for their gradients."""

    def __init__(self, inner: GradientReducer, group: ProcessGroup) -> None:
        super().__init__()
        self.inner, self.group = inner, group
        self.seconds = {"idle": 0.0, "communication": 0.0}

    def begin_step(self, phase: Phase, images: int) -> None:
        self.inner.begin_step(phase, images)

    def accumulate(self, trainable: Trainable, sums: torch.Tensor, batch: int) -> None:
        self.inner.accumulate(trainable, sums, batch)

    def start_all_reduce(self, trainable: Trainable, batch: int) -> Handle:
        with record_function("begin all-reduce"):
            wait = self.inner.start_all_reduce(trainable, batch)

        def timed_wait() -> torch.Tensor:
            synchronize(self.group.device)
            start = time.perf_counter()
            with record_function("wait for the other ranks"):
                self.group.barrier()
            met = time.perf_counter()
            with record_function("wait for gradients"):
                sums = wait()
                synchronize(self.group.device)
            self.seconds["idle"] += met - start
            self.seconds["communication"] += time.perf_counter() - met
            return sums

        return timed_wait


class Runner:
    """Steps of the first `size` ranks, seen from one of them."""

    def __init__(self, config: BenchScalingConfig, group: ProcessGroup, stage: int, batch: int) -> None:
        self.group, self.phase = group, phase_of(stage, batch * group.world_size)
        architecture = config.model.architecture(max(config.batches())[0], 3, num_classes=0)
        trained = trainer_config(config)
        self.trainer = build_trainer(trained, architecture, [self.phase], group)
        self.trainer.state.images = LONG_AFTER
        indices = self.trainer.indices(self.phase.batch)
        count = self.phase.batch if indices is None else len(indices)
        self.stored = torch.randint(256, (count, stage, stage, 3), dtype=torch.uint8, device=group.device)

    def step(self) -> tuple[float, float]:
        """Take a step; returns its seconds, and those of its data alone, from bytes on the device to floats."""
        self.group.barrier()
        start = time.perf_counter()
        with record_function("data"):
            images = to_float(mirrored(self.stored, torch.arange(len(self.stored), device=self.group.device) % 2 == 0))
            synchronize(self.group.device)
        data = time.perf_counter() - start
        rng = StepRng(0, self.trainer.state.images, self.group.device)
        self.trainer.step(self.phase, Reals(images, None, None), rng, EMA_DECAY)
        synchronize(self.group.device)
        return time.perf_counter() - start, data

    def parts(self) -> dict[str, float]:
        """The seconds of each part of a step, in which nothing overlaps anything else."""
        with self.timed() as reducer:
            whole, data = self.step()
        return {"compute": whole - data - sum(reducer.seconds.values()), **reducer.seconds, "data": data}

    def trace(self, path: Path) -> None:
        """Write a trace of one step."""
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] * (self.group.device.type == "cuda"))]
        with self.timed(), profile(activities=activities) as profiler:
            self.step()
        profiler.export_chrome_trace(str(path))

    @contextmanager
    def timed(self) -> Iterator[TimedReducer]:
        """Inside, the trainer's reducer is timed."""
        self.trainer.reducer = timed = TimedReducer(self.trainer.reducer, self.group)
        yield timed
        self.trainer.reducer = timed.inner


def measure(config: BenchScalingConfig, group: ProcessGroup) -> int:
    """Measure all stages, on one of the ranks; rank 0 prints.  Returns the exit code."""
    configure_process(group.device, config.precision, config.threads, one_thread=True)
    console = Console(stderr=True, highlight=False)
    groups = {size: group.subgroup(size) for size in config.processes}
    about: dict[str, Any] = {
        "hardware": hardware(group.device),
        "versions": versions(),
        "gradients": vars(config.gradients),
    }
    about |= {"loss": vars(config.loss), "elastic": config.elastic}
    stages = config.batches()
    rows: list[dict[str, Any]] = []
    for stage, batch in stages:
        times = measure_stage(config, group, groups, stage, batch)
        if group.is_main:
            rows += rows_of(stage, batch, times)
            console.print(f"{stage}x{stage}: {rows[-1]['speedup']:.2f} times one rank with {rows[-1]['ranks']}")
    group.barrier()
    if group.is_main and config.json:
        print(json.dumps({**about, "stages": rows}, indent=1))
    elif group.is_main:
        Console().print(scaling_table(rows))
        count = max(config.processes)
        print(next_command("train", "hours=2", devices=f"cpu:{count}" if group.device.type == "cpu" else count))
    return 0


def measure_stage(
    config: BenchScalingConfig, group: ProcessGroup, groups: dict[int, ProcessGroup | None], stage: int, batch: int
) -> dict[int, Times]:
    """The times of one stage with every number of ranks that this rank is one of."""
    runners = {size: Runner(config, part, stage, batch) for size, part in groups.items() if part is not None}
    times: dict[int, Times] = {size: [] for size in runners}
    for round_number in range(config.warmup + config.steps):
        for size in config.processes:
            group.barrier()
            if size in runners and round_number < config.warmup:
                runners[size].step()
            elif size in runners:
                times[size].append((runners[size].step()[0], runners[size].parts()))
    group.barrier()
    if config.trace is not None and (largest := max(config.processes)) in runners:
        Path(config.trace).mkdir(parents=True, exist_ok=True)  # it may be another machine's
        runners[largest].trace(Path(config.trace) / f"{stage}x{stage}-rank{group.rank}.json")
    return times


def rows_of(stage: int, batch: int, times: dict[int, Times]) -> list[dict[str, Any]]:
    """The figures of one stage: a row per number of ranks."""
    seconds = {size: median(whole for whole, _ in steps) for size, steps in times.items()}
    rates = {size: size * batch / seconds[size] for size in times}
    least = min(rates)
    return [
        {
            "resolution": stage,
            "local_batch": batch,
            "ranks": size,
            "milliseconds_per_step": 1000 * seconds[size],
            "images_per_second": rate,
            "speedup": rate / rates[least] * least,
            "efficiency": rate / rates[least] * least / size,
            "milliseconds": {part: 1000 * median(parts[part] for _, parts in times[size]) for part in PARTS},
        }
        for size, rate in rates.items()
    ]


def scaling_table(rows: list[dict[str, Any]]) -> Table:
    """A row per resolution and number of ranks."""
    names = ("ranks", "img/s", "times", "ms/step", "compute", "all-reduce", "idle", "data")
    table = new_table("Last four columns: ms of a step in which nothing overlaps anything else", "side", *names)
    for row in rows:
        milliseconds = (row["milliseconds_per_step"], *(row["milliseconds"][part] for part in PARTS))
        table.add_row(
            str(row["resolution"]),
            str(row["ranks"]),
            three_digits(row["images_per_second"]),
            f"{row['speedup']:.2f}",
            *map(three_digits, milliseconds),
        )
    return table
