"""Builds a training run from its configuration: finds images and checkpoint, and creates networks and reporters."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pggan.checkpoints.generator_file import CLASS_NAMES, generator_path
from pggan.checkpoints.read import Checkpoint, has_checkpoints, run_of
from pggan.checkpoints.resume import broadcast_state, check_networks, check_resumable, find_resume_point, transfer
from pggan.checkpoints.write import CheckpointWriter, refused_by_disk
from pggan.config.train import TrainConfig, parse_grid
from pggan.config.values import changes, command_seconds, describe, flatten
from pggan.core.architecture import Architecture
from pggan.core.atomic_io import clean_partials
from pggan.core.devices import configure_process, free_memory
from pggan.core.errors import REFUSED_WRITES, UserError
from pggan.core.process import StopSignal
from pggan.core.schedule import Course, Schedule
from pggan.core.text import command_line
from pggan.data.pyramid import ImagePyramid, open_pyramid
from pggan.data.reals import RealBatches
from pggan.distributed.process_group import ProcessGroup
from pggan.metrics import Evaluator
from pggan.networks.networks import count_parameters
from pggan.optim.state import State
from pggan.run.eta import Eta, TimeLimit, until, with_plan
from pggan.run.evaluation import TrainingEvaluator
from pggan.run.health import MAX_SIGN, Alarms
from pggan.run.loop import SPENT, Run
from pggan.run.pictures import Pictures
from pggan.run.report import NullReporter, Reporter
from pggan.run.run_dir import choose_run_dir, lock_run_dir, next_start, write_config
from pggan.sampling.images import FOLDER
from pggan.training.build import build_trainer, missing
from pggan.training.timing import StepTimes
from pggan.training.trainer import Trainer

FindImages = Callable[[int], Path]  # a function from the final resolution to the path of the prepared images


@dataclass(frozen=True)
class Source:
    """The schedule, training images, architecture and checkpoint that a run starts with."""

    schedule: Schedule
    pyramid: ImagePyramid
    architecture: Architecture
    checkpoint: Checkpoint | None  # rank 0: the checkpoint to resume from, or None for a new run; other ranks: None
    spent: float  # seconds of training before the checkpoint
    notes: list[str]  # lines that the run logs at its start


@contextmanager
def open_run(
    config: TrainConfig, find_images: FindImages, group: ProcessGroup, began: float | None = None
) -> Iterator[Run]:
    """Build the training run on this rank, and load the checkpoint to resume from, if there is one.

    Raises UserError for every mistake that can be found before the first step.
    """
    device, description, schedule = group.device, describe(config), config.schedule.build()
    settings, spent = config.trainer_settings(), command_seconds()
    same = {"versions": {name: description["versions"][name] for name in ("pggan", "code", "torch")}, "run_dir": None}
    group.require_same(dict(flatten(description | same)))
    exact, keys = config.compute.deterministic, config.checkpoint
    configure_process(device, config.threads, one_thread=config.elastic, deterministic=exact)
    with group.collective_errors():
        batches = (phase.batch for phase in schedule.phases)
        partition = settings.partition(config.model.stddev_group, batches, group.world_size, group.rank)
        wanted = config.evaluation
        metrics = Evaluator(wanted.metrics, wanted.extractor, device, count=wanted.count)
    run_dir = Path(group.broadcast_object(group.on_main(lambda: str(choose_run_dir(config.run_dir, config.name)))))

    with ExitStack() as stack:
        interruption = stack.enter_context(StopSignal(at_once=True, then=partial(next_start, run_dir)))
        group.on_main(lambda: stack.enter_context(lock_run_dir(run_dir)))
        source = find_source(config, description, run_dir, find_images, group)
        pyramid, course = source.pyramid, Course(source.schedule)
        description["versions"] |= {"cpu_threads": torch.get_num_threads(), "images": pyramid.images}

        trainer = build_trainer(settings, source.architecture, source.schedule.phases, group)
        stack.callback(trainer.release_graphs)  # destroy_process_group hangs if CUDA graphs still hold NCCL kernels
        restore(config, source, trainer, group)
        state, images = trainer.state, trainer.state.images
        stack.enter_context(disk_errors(run_dir, group))

        reporter: Reporter | NullReporter = NullReporter()
        pictures: Pictures | None = None
        limit: TimeLimit | None = None
        if began is None:  # after a rollback to a checkpoint, `began` is not None, and the run keeps its start time
            began = time.monotonic() - spent - source.spent
        if group.is_main:
            write_config(run_dir, description)
            times = StepTimes(settings, source.architecture, device)
            of_phases = times.of_phases(source.schedule, partition.largest_local_batch, images=images)
            eta = Eta(course, of_phases, images, time.monotonic(), wanted.max_share)
            limit = None if config.hours is None else TimeLimit(config.hours, eta, began, schedule)
            alarms = Alarms(trainer.loss.mean_sign(MAX_SIGN))
            marks = config.monitor.marks
            reporter = Reporter(run_dir, course, eta, alarms, images=images, began=began, marks=marks)
            stack.enter_context(reporter)
            source.notes.append(times.larger_batches(source.schedule.phases[-1], free_memory(device)))
            introduce(reporter, source, description, state, limit)
            layout, distance = parse_grid(config.monitor.grid, "monitor.grid"), config.monitor.grid_images
            pictures = Pictures(run_dir, source.schedule, state, pyramid, reporter, layout=layout, grid_images=distance)
        every, share, data = config.evaluation.interval_images, config.evaluation.max_share, config.data
        evaluator = TrainingEvaluator(metrics, pyramid, group, reporter, run_dir, every, share, images)
        stream = RealBatches(pyramid, config.seed, device, data.mirror, data.labels, partition.indices)
        names = {CLASS_NAMES: pyramid.class_names} if data.labels else {}
        run = Run(
            run_dir,
            trainer,
            stream,
            course,
            group,
            reporter,
            evaluator,
            interruption,
            writer=stack.enter_context(CheckpointWriter(run_dir, keys.keep, keys.every_images, keys.every_minutes)),
            metadata={"config": description, "data": pyramid.fingerprint, **names},
            pictures=pictures,
            tick_images=config.monitor.tick_images,
            most_skipped=keys.roll_back_after,
            began=began,
            limit=limit,
        )
        interruption.at_once = False
        yield run


def find_source(
    config: TrainConfig, description: dict[str, Any], run_dir: Path, find_images: FindImages, group: ProcessGroup
) -> Source:
    """Find the training images and the checkpoint; raises UserError if these do not match the configuration."""
    schedule = config.schedule.build()

    def find_checkpoint() -> tuple[Checkpoint | None, list[str]]:
        for directory in (run_dir / "checkpoints", run_dir / "samples" / FOLDER):  # only this run writes into both
            clean_partials(directory)
        found, notes = find_resume_point(config.resume, run_dir)
        if found is not None:  # wrong settings raise an error here, before the slow preparation of images
            theirs = found.architecture
            ours = config.model.architecture(schedule.final_resolution, theirs.channels, theirs.num_classes)
            check_networks(found, ours)
        elif config.init_from is not None and not has_checkpoints(Path(config.init_from)):
            generator_path(config.init_from, "init_from")  # a wrong path raises an error before images are prepared
        return found, notes

    checkpoint, notes = group.on_main(find_checkpoint) or (None, [])
    header: dict[str, Any] = group.broadcast_object({} if checkpoint is None else checkpoint.header)
    pyramid = open_everywhere(config, find_images, schedule, group)
    num_classes = len(pyramid.class_names or ()) if config.data.labels else 0
    architecture = config.model.architecture(schedule.final_resolution, pyramid.channels, num_classes)
    found = changes(header.get("config", description), description)
    changed = {key: line for key, line in found if key not in ("resume", "run_dir")}
    growth = ("schedule.first_resolution", "schedule.stable_images", "schedule.fade_images")
    if config.hours is not None or not any(key.startswith(growth) for key in changed):
        # Image counts that hours= has changed come from the checkpoint, except schedule keys that the user has changed.
        schedule = with_plan(schedule, {key: header[key] for key in header if f"schedule.{key}" not in changed})
    with group.collective_errors():
        if checkpoint is not None:
            check_networks(checkpoint, architecture)
            prints = (pyramid.fingerprint, *pyramid.former_fingerprints)
            notes += check_resumable(checkpoint, changed, config.allow_changes, schedule, prints)
            if checkpoint.images >= schedule.total and run_of(checkpoint.directory) != run_dir:
                shown, end = f"{checkpoint.images:,} images", f"{schedule.total:,}"
                remedy = f"Set a larger schedule.total_images=, or start a new run: grow={config.resume} hours=1."
                raise UserError(f"resume={config.resume} has shown {shown}, and this run ends at {end}.", remedy)
    return Source(schedule, pyramid, architecture, checkpoint, header.get(SPENT, 0.0), notes)


def restore(config: TrainConfig, source: Source, trainer: Trainer, group: ProcessGroup) -> None:
    """On all ranks, load the checkpoint to resume from, else the init_from= weights; log lines go to `source.notes`."""
    checkpoint, state, notes = source.checkpoint, trainer.state, source.notes
    with group.collective_errors():
        if checkpoint is not None:
            checkpoint.restore(state)
            notes.insert(0, f"Resuming from {state.images:,} images ({checkpoint.directory}).")
        elif config.init_from is not None and group.is_main:
            notes += transfer(config.init_from, state)
    broadcast_state(state, trainer.reducer, checkpoint, group)


def open_everywhere(
    config: TrainConfig, find_images: FindImages, schedule: Schedule, group: ProcessGroup
) -> ImagePyramid:
    """Prepare the training images, if necessary, and open them on every rank."""
    final, place = schedule.final_resolution, None
    # Rank 0 prepares the images first, then one rank of each machine, because machines may have separate disks.
    for is_mine in (group.is_main, group.local_rank == 0, True):
        with group.collective_errors():
            if is_mine and place is None:
                place = find_images(final)
    assert place is not None, "every rank has called `find_images`"
    batch, data, verify = max(phase.batch for phase in schedule.phases), config.data, group.local_rank == 0
    with group.collective_errors():
        pyramid = open_pyramid(place, final, batch, channels=data.channels, labels=data.labels, verify=verify)
    group.require_same({"set of images (fingerprint)": pyramid.fingerprint})
    return pyramid


@contextmanager
def disk_errors(run_dir: Path, group: ProcessGroup) -> Iterator[None]:
    """On rank 0, turn an OSError about a full or read-only disk, or about a file in `run_dir`, into a UserError."""
    try:
        yield
    except OSError as error:
        ours = error.filename is not None and Path(str(error.filename)).is_relative_to(run_dir)
        if group.is_main and (error.errno in REFUSED_WRITES or ours):
            raise refused_by_disk(run_dir, error) from error
        raise


def introduce(
    reporter: Reporter, source: Source, description: dict[str, Any], state: State, limit: TimeLimit | None
) -> None:
    """Log a summary of the run and `source.notes`, and write the configuration to TensorBoard."""
    schedule, pyramid, run_dir = source.schedule, source.pyramid, reporter.run_dir
    g, d = count_parameters(state.g.network), count_parameters(state.d.network)
    first, final, side = schedule.first_resolution, schedule.final_resolution, pyramid.resolution
    seconds = reporter.eta.seconds_between(state.images, schedule.total)
    if limit is not None:
        seconds = max(3600 * (limit.hours - reporter.hours), 0.0)
    reporter.console.end = time.monotonic() + seconds
    growth = f"{first}x{first} to {final}x{final}" if first < final else f"{final}x{final} from the start"
    classes = f", {len(pyramid.class_names or ())} classes, which training ignores unless data.labels=true"
    unused = classes if pyramid.class_names and not description["data"]["labels"] else ""
    for line in (
        f"Run directory  {run_dir}",
        f"Training set   {pyramid.images:,} images, {pyramid.channels} channels, up to {side}x{side}{unused}",
        f"Parameters     G {g:,}  D {d:,}",
        f"Resolutions    {growth}, {schedule.total:,} images",
        f"Training time  {until(seconds, datetime.now())}",
        f"Watch it with  {command_line('monitor', run=run_dir)}",
        *filter(None, source.notes),
    ):
        reporter.line(line)
    for sentence in missing(state.g_ema.weights[0].device):
        reporter.warn(sentence)
    reporter.describe(description)
