"""`pggan bench`: throughput of the training step per resolution on random images, or of loading beside it."""

import json
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from rich.console import Console
from rich.table import Table

from pggan.bench.loading import decoding_table, loading_table, measure_decoding, measure_loading
from pggan.bench.steps import Steps, phase_of, projected_hours, stage_table
from pggan.config import BenchConfig, BenchScalingConfig
from pggan.config.describe import versions
from pggan.core.atomic_io import atomic_write
from pggan.core.devices import choose_device
from pggan.core.errors import UserError
from pggan.core.schedule import Phase
from pggan.data.format.pyramid import ImagePyramid
from pggan.data.stream.loader import budget_bytes
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
    about = {"hardware": hardware(device), "versions": versions(), "loss": config.loss}
    if pyramid is None:
        result = measure_steps(config, steps, phases, errors)
        show(about | result, config, stage_table(result["stages"]))
    else:
        result = measure_data(config, steps, phases, errors, pyramid)
        show(about | result, config, loading_table(result["stages"]), decoding_table(result["decoding"]))
    return 0


def measure_steps(config: BenchConfig, steps: Steps, phases: list[Phase], errors: Console) -> dict[str, Any]:
    """The throughput of every stage, the rates of the device, and the hours of the schedule."""
    rates, rows = steps.rates(), []
    for phase in phases:
        row = steps.row(phase, steps.measure(phase, config.steps, config.warmup), rates)
        rows.append(row)
        beside = f", {row['ratio']:.2f} times the reference step" if config.against else ""
        errors.print(f"{phase.resolution}x{phase.resolution}: {row['images_per_second']:.2f} img/s{beside}")
    return {
        "matmul_teraflop_per_second": {name: rate.multiplying / 1e12 for name, rate in rates.items()},
        "copy_gigabyte_per_second": {name: rate.copying / 1e9 for name, rate in rates.items()},
        "projected_hours": projected_hours(config.schedule.build(), rows),
        "stages": rows,
    }


def measure_data(
    config: BenchConfig, steps: Steps, phases: list[Phase], errors: Console, pyramid: ImagePyramid
) -> dict[str, Any]:
    """How fast the levels of `pyramid` are loaded, beside the training step of each level."""
    rows = []
    for phase in phases:
        budget = budget_bytes(config.data.device_budget_mib, steps.device)
        row = measure_loading(pyramid, phase, steps.device, config.data.batches, budget)
        name, seconds = next(iter(steps.measure(phase, config.steps, config.warmup).items()))
        row["step_images_per_second"], row["notices"] = phase.batch / seconds, list(steps.variants[name].notices)
        least = min(row["ready_images_per_second"], row["fading_images_per_second"])
        row["ratio"] = least / row["step_images_per_second"]
        rows.append({"resolution": phase.resolution, "batch": phase.batch, **row})
        errors.print(f"{phase.resolution}x{phase.resolution}: {row['ratio']:.0f} times what the step takes")
    facts = {"images": pyramid.images, "channels": pyramid.channels, "resolution": pyramid.resolution}
    return {"data": facts, "stages": rows, "decoding": measure_decoding(pyramid)}


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


def show(result: dict[str, Any], config: BenchConfig | BenchScalingConfig, *tables: Table) -> None:
    """Print the result as tables or as JSON, and write it to `out`."""
    text = json.dumps(result, indent=1)
    if config.out is not None:
        with atomic_write(Path(config.out)) as temporary:
            temporary.write_text(text)
    if config.json:
        print(text)
    else:
        Console().print(*tables)
