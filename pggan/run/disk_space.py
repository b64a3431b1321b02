"""The disk space that a run needs, predicted before its first step."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import nn

from pggan.checkpoints.header import COMPONENTS
from pggan.checkpoints.interval import images_between
from pggan.checkpoints.shapes import meta_networks
from pggan.config import CheckpointConfig, ReportConfig
from pggan.core.architecture import Architecture
from pggan.core.atomic_io import directory_bytes
from pggan.core.disk import free_files, require_free_space
from pggan.core.errors import UserError
from pggan.core.intervals import multiples_between
from pggan.core.schedule import Schedule
from pggan.data.pyramid import ImagePyramid
from pggan.networks.features.discriminator import LAST_FEATURES
from pggan.run.grid_recorder import interval_of, layout
from pggan.run.previews import grid_shape
from pggan.run.projector import TILE, face_count
from pggan.run.run_dir import RunContext
from pggan.sampling.output.images import Pixels, contact_sheet, encode_png, grid, shrink

# What a tick writes into TensorBoard's file, metrics.jsonl and train.log together: about 35 numbers with their names,
# and three histograms.
TICK_BYTES = 5000
TEXT_BYTES = 10_000  # what a run says about itself in TensorBoard and train.log
NUMBER_BYTES = 8  # of a number as text, with what separates it from the next one
POINT_BYTES = 20  # the name of a point in the projector, its kind and score
# Generated images are never as flat as drawings, and compress like those with this much noise, in grey levels: measured
# on the demo, where the files of 32x32 came out 10 % larger than predicted, those of 16x16 as predicted.
GRAIN = 4
HEADER_BYTES = 80  # what a safetensors header says about one tensor, besides its name
OTHER_FILES = (
    17  # folders, config.yaml, logs, TensorBoard's files, the projector and what is written under other names first
)
MOMENT_NAMES = ("exp_avg", "exp_avg_sq", "step")  # what Adam keeps of a weight


@dataclass(frozen=True)
class DiskNeed:
    """Bytes and files of a run directory."""

    checkpoint: int  # bytes of one checkpoint
    final: int  # bytes of everything, at the end of the run
    peak: int  # bytes of everything while the last checkpoint replaces an older one, beside the best one
    files: int


def disk_need(run: RunContext, moments: int) -> DiskNeed:
    """The need of a run from its first to its last image, where `moments` ranks have optimizer moments of their own."""
    config, schedule, architecture = run.config, run.schedule, run.architecture
    generator, discriminator = map(_tensor_bytes, meta_networks(architecture))
    weights = 2 * generator + discriminator + len(json.dumps(run.description, indent=1))

    def checkpoint_bytes(resolution: int) -> int:
        trained = meta_networks(replace(architecture, resolution=resolution))
        return weights + moments * sum(map(_moment_bytes, trained))

    kept = _kept(schedule, config.checkpoint)
    pictures, picture_bytes = _pictures(schedule, config.monitor, run.pyramid)
    ticks = times_due(config.monitor.tick_images, 0, schedule.total, last=True)
    saved = sum(checkpoint_bytes(schedule.at(images - 1).resolution) for images in kept)
    texts = TEXT_BYTES + ticks * TICK_BYTES + _projector(architecture, schedule, run.pyramid)
    final = generator + saved + picture_bytes + texts
    largest = checkpoint_bytes(architecture.resolution)
    more = 1 + (config.evaluation.best_metric is not None)  # than in the end: the next one, and the best, if older
    files = (len(kept) + more) * (len(COMPONENTS) + 2) + pictures + OTHER_FILES
    return DiskNeed(checkpoint=largest, final=final, peak=final + more * largest + generator, files=files)


def times_due(every: int, before: int, after: int, *, last: bool) -> int:
    """The number of ticks, or grids, one at every multiple of `every` in (before, after], two image counts.

    Args: last: the run ends at `after`, where there is one in any case.
    """
    return multiples_between(every, before, after - last) + last


def _tensor_bytes(network: nn.Module) -> int:
    """A network's weights as a safetensors file."""
    return sum(weight.nbytes + len(name) + HEADER_BYTES for name, weight in network.state_dict().items())


def _moment_bytes(network: nn.Module) -> int:
    """Adam's state of a network as a safetensors file: for each weight two moments, and the step count."""
    each = 4 + sum(HEADER_BYTES + len(name) for name in MOMENT_NAMES)
    return sum(2 * weight.nbytes + len(MOMENT_NAMES) * len(name) + each for name, weight in network.named_parameters())


def _kept(schedule: Schedule, config: CheckpointConfig) -> list[int]:
    """Image counts of the checkpoints there are at the end, and of the milestones; every_minutes changes no number."""
    total, every = schedule.total, images_between(config)
    milestones = [count for count in config.milestone_images(schedule) if count <= total]
    last = range(multiples_between(every, 0, total) * every, 0, -every)[: config.keep + len(milestones)]
    return [*sorted({total, *last} - set(milestones))[-config.keep :], *milestones]


def _pictures(schedule: Schedule, monitor: ReportConfig, pyramid: ImagePyramid) -> tuple[int, int]:
    """The number of files of grids, and the bytes of all grids, those in TensorBoard too, as of noisy reals."""
    count, total, before = 1, 0, 0
    side_by_side, largest = layout(schedule.final_resolution)
    for phase in schedule.phases:
        columns, rows = grid_shape(monitor, phase.resolution, schedule.final_resolution)
        grainy = _grainy(pyramid, phase.resolution, columns * rows)
        start, end = min(phase.start, schedule.total), min(phase.end, schedule.total)
        first, last = phase.index == 0, phase.start < schedule.total <= phase.end
        fakes = times_due(monitor.grid_images, start, end, last=last) + first
        # Fakes in TensorBoard, averaged ones also as a file; reals once per level, the final ones twice more.
        grids = 3 * fakes + (phase.resolution != before) + 2 * last
        before = phase.resolution
        small = shrink(_grainy(pyramid, phase.resolution, side_by_side**2), max(phase.resolution // largest, 1))
        updates = -(-(end - start) // phase.batch)
        stored = min(times_due(interval_of(schedule), start, end, last=last), updates) + first
        count += fakes + stored
        total += grids * len(encode_png(contact_sheet(grainy, columns, schedule.final_resolution)))
        total += stored * len(encode_png(grid(small, side_by_side)))
    return count, total


def _projector(architecture: Architecture, schedule: Schedule, pyramid: ImagePyramid) -> int:
    """The bytes of the points in the projector, and of their pictures."""
    resolution = schedule.at(max(schedule.total - 1, 0)).resolution
    fakes = face_count(resolution, pyramid.images)
    both = 2 * fakes
    of_d = LAST_FEATURES if architecture.has_features(resolution) else architecture.width(2)
    numbers = fakes * architecture.latent_size + both * of_d
    images = shrink(_grainy(pyramid, resolution, both), max(resolution // TILE, 1))
    each = len(encode_png(grid(images, 8))) / len(images)
    return round(numbers * NUMBER_BYTES + (fakes + both) * (POINT_BYTES + each))


def _grainy(pyramid: ImagePyramid, resolution: int, count: int) -> Pixels:
    """The first images of a level, as many as there are up to `count`, with noise."""
    reals = pyramid.read(resolution, np.arange(min(count, pyramid.images)))
    noise = np.random.default_rng(0).integers(-GRAIN, GRAIN + 1, reals.shape)
    grainy: Pixels = (reals + noise).clip(0, 255).astype(np.uint8)
    return grainy


def require_disk(run_dir: Path, need: DiskNeed) -> str:
    """Raise a UserError, with the megabytes missing, unless the rest of `need` is free; returns a line about it."""
    remedy = "Make room there, choose another run_dir=, lower checkpoint.keep, or raise monitor.grid_images."
    free = require_free_space(run_dir, max(need.peak - directory_bytes(run_dir), 2 * need.checkpoint), remedy)
    free_inodes, more = free_files(run_dir), need.files - len(list(run_dir.rglob("*")))
    if free_inodes is not None and free_inodes < more:
        problem = f"{run_dir} needs about {more:,} more files; the disk has room for {free_inodes:,}."
        raise UserError(problem, remedy)
    return f"{need.final / 1e6:,.1f} MB in the end, {need.peak / 1e6:,.1f} MB at most; {free / 1e6:,.0f} MB are free"
