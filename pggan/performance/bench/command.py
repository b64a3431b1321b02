"""`pggan bench`: throughput of the training step per resolution on random images, or of loading beside it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from rich.console import Console
from rich.table import Table

from pggan.config import BenchConfig, BenchScalingConfig
from pggan.config.describe import versions
from pggan.core.atomic_io import atomic_write
from pggan.core.devices import choose_device
from pggan.core.errors import UserError
from pggan.core.next_command import next_command
from pggan.core.schedule import Phase
from pggan.data.loader import budget_bytes
from pggan.data.pyramid import ImagePyramid
from pggan.performance.bench.loading import decoding_table, loading_table, measure_decoding, measure_loading
from pggan.performance.bench.steps import Steps, estimated_hours, phase_of, stage_table
from pggan.training.compute_options import configure_process
from pggan.training.device_rates import hardware


def run(config: BenchConfig) -> int:
    """Measure every stage with the networks of the highest one, and print the result.  Returns the exit code."""
    device = choose_device(config.device, "device")
    require_places(config.out)
    configure_process(device, config.precisions[0], config.threads)
    pyramid = None if config.data.path is None else ImagePyramid(Path(config.data.path))
    stages = config.batches()
    phases = [phase_of(side, batch) for side, batch in stages if pyramid is None or side in pyramid.resolutions]
    if pyramid is not None and not phases:
        problem = f"{pyramid.path} has none of the stages {config.stages}."
        raise UserError(problem, f"It has levels from 4 to {pyramid.resolution}.")
    errors = Console(stderr=True, highlight=False)
    steps = Steps(config, device, 3 if pyramid is None else pyramid.channels, errors.print)
    about = {"hardware": hardware(device), "versions": versions(), "loss": vars(config.loss)}
    if pyramid is None:
        found, tables = measure_steps(config, steps, phases, errors), step_tables
    else:
        found, tables = measure_data(config, steps, phases, errors, pyramid), data_tables
    with shown_at_the_end(config, tables) as keep:
        for result in found:
            keep(about | result)
    if not config.json and pyramid is None:
        print(next_command("plan", "experiment=demo", "calibrate=true"))
    elif not config.json:
        print(next_command("train", "hours=2", **{"data.path": config.data.path}))
    return 0


def measure_steps(config: BenchConfig, steps: Steps, phases: list[Phase], errors: Console) -> Iterator[dict[str, Any]]:
    """After every stage: the throughput of all so far, the rates of the device, and the hours of the schedule."""
    rates, rows = steps.rates(), []
    for phase in phases:
        costs = steps.costs(phase)  # before steps are timed, or a run that is cut off here would lose their times
        row = steps.row(phase, steps.measure(phase, config.steps, config.warmup), costs, rates)
        rows.append(row)
        beside = f", {row['ratio']:.2f} times the reference step" if config.against else ""
        errors.print(f"{phase.resolution}x{phase.resolution}: {row['images_per_second']:.2f} img/s{beside}")
        yield {
            "matmul_teraflop_per_second": {name: rate.flops_per_second / 1e12 for name, rate in rates.items()},
            "copy_gigabyte_per_second": {name: rate.bytes_per_second / 1e9 for name, rate in rates.items()},
            "estimated_hours": estimated_hours(config.schedule.build(), rows),
            "stages": [*rows],
            "missing_stages": missing_stages(phases, rows),
        }


def measure_data(
    config: BenchConfig, steps: Steps, phases: list[Phase], errors: Console, pyramid: ImagePyramid
) -> Iterator[dict[str, Any]]:
    """After every level: how fast those so far are loaded, beside the training step of each."""
    facts = {"images": pyramid.images, "channels": pyramid.channels, "resolution": pyramid.resolution}
    rows, decoding = [], measure_decoding(pyramid)
    for phase in phases:
        budget = budget_bytes(config.data.device_budget_mib, steps.device)
        row = measure_loading(pyramid, phase, steps.device, config.data.batches, budget)
        name, seconds = next(iter(steps.measure(phase, config.steps, config.warmup).items()))
        row["step_images_per_second"], row["notices"] = phase.batch / seconds, list(steps.variants[name].notices)
        least = min(row["ready_images_per_second"], row["fading_images_per_second"])
        row["ratio"] = least / row["step_images_per_second"]
        rows.append({"resolution": phase.resolution, "batch": phase.batch, **row})
        errors.print(f"{phase.resolution}x{phase.resolution}: {row['ratio']:.0f} times what the step takes")
        yield {"data": facts, "stages": [*rows], "missing_stages": missing_stages(phases, rows), "decoding": decoding}


def missing_stages(phases: list[Phase], rows: list[dict[str, Any]]) -> list[int]:
    """The resolutions that are still to be measured: none in a result that is complete."""
    return [phase.resolution for phase in phases[len(rows) :]]


def step_tables(result: dict[str, Any]) -> list[Table]:
    """The tables of `measure_steps`."""
    return [stage_table(result["stages"])]


def data_tables(result: dict[str, Any]) -> list[Table]:
    """The tables of `measure_data`."""
    return [loading_table(result["stages"]), decoding_table(result["decoding"])]


def require_places(out: str | None, trace: str | None = None) -> None:
    """Raise UserError unless the result can be written to `out` and traces to `trace`; makes the folders."""
    folders = {"out": out and Path(out).parent, "trace": trace and Path(trace)}
    for key, folder in folders.items():
        if not folder:
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=folder).close()
        except OSError as error:
            problem = f"{key}: nothing can be written to {folder}: {error.strerror}."
            raise UserError(problem, "Name another place.") from error
    if out is not None and Path(out).is_dir():
        raise UserError(f"out={out} is a folder.", "Name a file, for example out=result.json.")


@contextmanager
def shown_at_the_end(
    config: BenchConfig | BenchScalingConfig, tables: Callable[[dict[str, Any]], list[Table]]
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Gives a function that keeps a result in `out`; the last one is printed, however the block ends.

    So Ctrl-C, an error or a kill costs the stage that is being measured, and none before it.
    """
    results: list[dict[str, Any]] = []

    def keep(result: dict[str, Any]) -> None:
        results[:] = [result]
        if config.out is not None:
            with atomic_write(Path(config.out)) as temporary:
                temporary.write_text(json.dumps(result, indent=1))

    try:
        yield keep
    finally:
        for result in results:
            print(json.dumps(result, indent=1)) if config.json else Console().print(*tables(result))
