"""`pggan bench`: throughput of the training step per resolution, on random images, nothing else in the loop."""

import json
import platform
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from pggan.bench_data import decoding_table, loading_table, measure_decoding, measure_loading
from pggan.compute import Compute
from pggan.config import BenchConfig, OptimizerConfig
from pggan.data.loader import budget_bytes
from pggan.data.pyramid import ImagePyramid
from pggan.device import choose_device
from pggan.draws import Draws
from pggan.errors import UserError
from pggan.files import whole_file
from pggan.losses import build_loss
from pggan.losses.base import Loss, Reals
from pggan.report import memory_bytes
from pggan.run_dir import versions
from pggan.schedule import Phase, table_at
from pggan.state import State, new_state
from pggan.step import train_step
from pggan.values import table as per_level

ADAM = OptimizerConfig(beta1=0.0, beta2=0.99, epsilon=1e-8, reset_at_phase=True)


def run(config: BenchConfig) -> int:
    """Measure every stage with the networks of the highest one, and print what came out."""
    device, loss = choose_device(config.devices), build_loss(config.loss)
    if config.data.path is not None:
        return run_data(config, device, loss, ImagePyramid(Path(config.data.path)))
    stages = config.stages if isinstance(config.stages, list) else [config.stages]
    batches = per_level("batch", config.batch, min(stages), least=1, whole=True)
    architecture = config.model.architecture(max(stages), channels=3, labels=0)
    state = new_state(architecture, ADAM, seed=0, device=device)
    rows = []
    for stage in stages:
        phase = bench_phase(stage, int(table_at(batches, stage)))
        seconds = time_steps(state, phase, loss, device, config)
        rows.append(
            {
                "resolution": stage,
                "batch": phase.batch,
                "milliseconds_per_step": seconds * 1000,
                "images_per_second": phase.batch / seconds,
                "peak_memory_bytes": memory_bytes(device),
            }
        )
        Console(stderr=True).print(f"{stage}x{stage}: {phase.batch / seconds:.2f} img/s")
    result = {"hardware": hardware(device), "versions": versions(), "loss": config.loss, "stages": rows}
    show(result, config, stage_table(rows))
    return 0


def run_data(config: BenchConfig, device: torch.device, loss: Loss, pyramid: ImagePyramid) -> int:
    """Measure how fast every level of `pyramid` arrives, beside the training step of that level."""
    wanted = config.stages if isinstance(config.stages, list) else [config.stages]
    stages = [stage for stage in wanted if stage in pyramid.resolutions]
    if not stages:
        raise UserError(
            f"{pyramid.path} has none of the stages {wanted}.", f"It has levels from 4 to {pyramid.resolution}."
        )
    batches = per_level("batch", config.batch, min(stages), least=1, whole=True)
    architecture = config.model.architecture(max(stages), pyramid.channels, labels=0)
    state = new_state(architecture, ADAM, seed=0, device=device)
    rows = []
    for stage in stages:
        phase = bench_phase(stage, int(table_at(batches, stage)))
        budget = budget_bytes(config.data.device_budget_mib, device)
        row = measure_loading(pyramid, phase, device, config.data.batches, budget)
        row["step_images_per_second"] = phase.batch / time_steps(state, phase, loss, device, config)
        row["ratio"] = row["ready_images_per_second"] / row["step_images_per_second"]
        rows.append({"resolution": stage, "batch": phase.batch, **row})
        Console(stderr=True).print(f"{stage}x{stage}: {row['ratio']:.0f} times what the step takes")
    facts = {"images": pyramid.images, "channels": pyramid.channels, "resolution": pyramid.resolution}
    decoding = measure_decoding(pyramid)
    result = {"hardware": hardware(device), "versions": versions(), "data": facts, "loss": config.loss}
    show(result | {"stages": rows, "decoding": decoding}, config, loading_table(rows), decoding_table(decoding))
    return 0


def bench_phase(resolution: int, batch: int) -> Phase:
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


def time_steps(state: State, phase: Phase, loss: Loss, device: torch.device, config: BenchConfig) -> float:
    """Median seconds of one training step."""
    state.reset_optimizers()
    shape = (phase.batch, state.average.architecture.channels, phase.resolution, phase.resolution)
    images = torch.rand(shape, device=device) * 2 - 1
    seconds = []
    for step in range(config.warmup + config.steps):
        start = time.perf_counter()
        draws = Draws(0, step * phase.batch, device)
        watched = train_step(state, phase, Reals(images, None, None), loss, draws, decay=0.999, compute=Compute())
        watched["G/loss"].item()  # waits for the device
        seconds.append(time.perf_counter() - start)
    return median(seconds[config.warmup :])


def hardware(device: torch.device) -> dict[str, Any]:
    """What the figures were measured on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": str(device),
        "name": name,
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
    }


def show(result: dict[str, Any], config: BenchConfig, *tables: Table) -> None:
    """Print the result as tables or as JSON, and write it to `out`."""
    text = json.dumps(result, indent=1)
    if config.out is not None:
        Path(config.out).parent.mkdir(parents=True, exist_ok=True)
        with whole_file(Path(config.out)) as temporary:
            temporary.write_text(text)
    if config.json:
        print(text)
        return
    for table in tables:
        Console().print(table)


def stage_table(rows: list[dict[str, Any]]) -> Table:
    """The training step per resolution."""
    table = Table("resolution", "batch", "ms/step", "img/s", "peak memory")
    for row in rows:
        table.add_row(
            str(row["resolution"]),
            str(row["batch"]),
            f"{row['milliseconds_per_step']:.1f}",
            f"{row['images_per_second']:.2f}",
            f"{row['peak_memory_bytes'] / 2**20:.0f} MiB",
        )
    return table
