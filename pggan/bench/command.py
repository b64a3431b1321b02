"""`pggan bench`: throughput of the training step per resolution, on random images, nothing else in the loop."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from pggan.bench.loading import decoding_table, loading_table, measure_decoding, measure_loading
from pggan.bench.steps import Steps, phase_of, projected_hours, stage_table
from pggan.config import BenchConfig, BenchScalingConfig, Precision
from pggan.config.describe import versions
from pggan.config.notation import table as per_level
from pggan.core.atomic_io import atomic_write
from pggan.core.devices import choose_device
from pggan.core.errors import UserError
from pggan.core.schedule import Table as BatchTable
from pggan.core.schedule import table_at
from pggan.data.format.pyramid import ImagePyramid
from pggan.data.stream.loader import budget_bytes
from pggan.losses import build_loss
from pggan.losses.base import Loss
from pggan.training.compute_options import configure_process
from pggan.training.device_rates import hardware


def run(config: BenchConfig) -> int:
    """Measure every stage with the networks of the highest one, and print what came out."""
    device, loss = choose_device(config.device, "device"), build_loss(config.loss)
    require_places(config.out)
    configure_process(device, Precision(config.precisions[0]))
    if config.data.path is not None:
        return run_data(config, device, loss, ImagePyramid(Path(config.data.path)))
    stages = config.stages if isinstance(config.stages, list) else [config.stages]
    batches = batch_table(config, min(stages))
    errors = Console(stderr=True, highlight=False)
    steps, rows = Steps(config, loss, device, channels=3, log=errors.print), []
    rates = steps.rates()
    for stage in stages:
        phase = phase_of(stage, int(table_at(batches, stage)))
        row = steps.row(phase, steps.measure(phase, config.steps, config.warmup), rates)
        rows.append(row)
        beside = f", {row['ratio']:.2f} times the reference step" if config.against else ""
        errors.print(f"{stage}x{stage}: {row['images_per_second']:.2f} img/s{beside}")
    result: dict[str, Any] = {"hardware": hardware(device), "versions": versions(), "loss": config.loss}
    result["matmul_teraflop_per_second"] = {name: rate.multiplying / 1e12 for name, rate in rates.items()}
    result["copy_gigabyte_per_second"] = {name: rate.copying / 1e9 for name, rate in rates.items()}
    result["projected_hours"] = projected_hours(config.schedule.build(), rows)
    show(result | {"stages": rows}, config, stage_table(rows))
    return 0


def run_data(config: BenchConfig, device: torch.device, loss: Loss, pyramid: ImagePyramid) -> int:
    """Measure how fast every level of `pyramid` arrives, beside the training step of that level."""
    wanted = config.stages if isinstance(config.stages, list) else [config.stages]
    stages = [stage for stage in wanted if stage in pyramid.resolutions]
    if not stages:
        raise UserError(
            f"{pyramid.path} has none of the stages {wanted}.", f"It has levels from 4 to {pyramid.resolution}."
        )
    batches = batch_table(config, min(stages))
    errors = Console(stderr=True, highlight=False)
    steps, rows = Steps(config, loss, device, channels=pyramid.channels, log=errors.print), []
    for stage in stages:
        phase = phase_of(stage, int(table_at(batches, stage)))
        budget = budget_bytes(config.data.device_budget_mib, device)
        row = measure_loading(pyramid, phase, device, config.data.batches, budget)
        name, seconds = next(iter(steps.measure(phase, config.steps, config.warmup).items()))
        row["step_images_per_second"], row["notices"] = phase.batch / seconds, list(steps.variants[name].notices)
        least = min(row["ready_images_per_second"], row["fading_images_per_second"])
        row["ratio"] = least / row["step_images_per_second"]
        rows.append({"resolution": stage, "batch": phase.batch, **row})
        errors.print(f"{stage}x{stage}: {row['ratio']:.0f} times what the step takes")
    facts = {"images": pyramid.images, "channels": pyramid.channels, "resolution": pyramid.resolution}
    decoding = measure_decoding(pyramid)
    result = {"hardware": hardware(device), "versions": versions(), "data": facts, "loss": config.loss}
    show(result | {"stages": rows, "decoding": decoding}, config, loading_table(rows), decoding_table(decoding))
    return 0


def batch_table(config: BenchConfig, first: int) -> BatchTable:
    """Images per update and resolution: `batch`, or else the schedule's."""
    batch = config.schedule.batch if config.batch is None else config.batch
    return per_level("batch", batch, first, least=1, whole=True)


def require_places(out: str | None, trace: str | None = None) -> None:
    """Raise UserError unless what comes out can be written there, before anything is measured."""
    folders = {"out": None if out is None else Path(out).parent, "trace": None if trace is None else Path(trace)}
    for key, folder in folders.items():
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{key}: {folder} can't be a folder: {error.strerror}.", "Name another place.") from error
        if folder is not None and not os.access(folder, os.W_OK):
            raise UserError(f"{key}: nothing can be written to {folder}.", "Name another place.")
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
        return
    for table in tables:
        Console().print(table)
