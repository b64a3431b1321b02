"""`pggan train`: build, restore, repeat the step, and do what is due in between."""

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pggan.config import AverageConfig, TrainConfig
from pggan.data.loader import budget_bytes
from pggan.data.open import open_data
from pggan.data.pyramid import ImagePyramid
from pggan.device import choose_compute, choose_device, records, set_up
from pggan.draws import Draws
from pggan.files import sweep
from pggan.fitting import fit, free_bytes
from pggan.interruption import Interruption
from pggan.latents import seed_latents
from pggan.losses import build_loss
from pggan.losses.base import Loss
from pggan.networks import count_parameters
from pggan.pictures import Pixels, contact_sheet, save_png, to_bytes
from pggan.preflight import disk_need, require_disk
from pggan.reals import RealStream
from pggan.report import Report
from pggan.resuming import check_changes, check_networks, find_start, transfer
from pggan.rollback import Rollback
from pggan.run_dir import choose_run_dir, create_run_dir, describe, write_config
from pggan.run_lock import claimed
from pggan.saving import NotFinite, Saver, Snapshot, prune, refused_by_disk, take_snapshot
from pggan.schedule import Phase
from pggan.state import State, new_state
from pggan.stepper import Stepper
from pggan.values import parse_grid

EXIT_INTERRUPTED = 75  # the same command goes on

# What the system says when it no longer takes what is written.
REFUSED_WRITES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def run(config: TrainConfig) -> int:
    """Train to the end of the schedule, or go on with it; returns the exit code."""
    device, loss = choose_device(config.devices), build_loss(config.loss)
    set_up(device, config.precision)
    run_dir = choose_run_dir(config)
    with Interruption(at_once=True) as interruption, claimed(run_dir):
        return run_in(run_dir, config, loss, device, interruption)


def run_in(run_dir: Path, config: TrainConfig, loss: Loss, device: torch.device, interruption: Interruption) -> int:
    """`run`, in a directory that is this process's own."""
    for directory in (run_dir, run_dir / "checkpoints", run_dir / "samples"):
        sweep(directory)
    start = find_start(config.resume, run_dir)
    schedule = config.schedule.build()
    largest_batch = max(phase.batch for phase in schedule.phases)
    pyramid = open_data(config.data, schedule.final_resolution, largest_batch)
    labels = len(pyramid.class_names or ()) if config.data.labels else 0
    architecture = config.model.architecture(schedule.final_resolution, pyramid.channels, labels)
    description = describe(config)
    remarks = [*start.remarks]
    if start.checkpoint is not None:
        check_networks(start.checkpoint, architecture)
        remarks += check_changes(
            start.checkpoint, description, pyramid.fingerprint, schedule, allowed=config.allow_changes
        )
    compute, record = choose_compute(config.precision, config.compute, device), records(config.compute, device)
    memory, micro_batches = fit(
        architecture,
        schedule,
        loss,
        optimizer=config.optimizer,
        compute=compute,
        device=device,
        free=free_bytes(device),
    )
    half = compute.dtype is torch.float16
    state = new_state(architecture, config.optimizer, config.seed, device, half=half)
    if start.checkpoint is not None:
        start.checkpoint.restore(state)
        remarks.insert(0, f"Going on from {state.images:,} images ({start.checkpoint.directory}).")
        if config.init_from is not None:
            remarks.append("init_from= was for the beginning of this run, and is not looked at again.")
    elif config.init_from is not None:
        remarks += transfer(config.init_from, state)
    need = disk_need(
        schedule,
        checkpoints=config.checkpoint,
        monitor=config.monitor,
        state=state,
        pyramid=pyramid,
        description=description,
    )

    with writing_to(run_dir, need.checkpoint):
        disk = require_disk(run_dir, need)
        create_run_dir(run_dir)
        write_config(run_dir, description)
        with Report(run_dir, schedule, architecture, device) as report, Saver(run_dir, config.checkpoint.keep) as saver:
            introduce(report, state, pyramid, config, {"Disk": disk, "Memory": memory})
            for remark in remarks:
                report.line(remark)
            report.begin(state.images)
            interruption.at_once = False
            notes = {"config": description, "data": pyramid.fingerprint}
            stepper = Stepper(
                state,
                loss,
                compute,
                record=record,
                notice=report.line,
                micro_batches=micro_batches,
                rehearse=device.type == "cuda",
            )
            return Trainer(config, stepper, pyramid, report, saver=saver, notes=notes).train(interruption)


@contextmanager
def writing_to(run_dir: Path, checkpoint_bytes: int) -> Iterator[None]:
    """Turn the system's refusal to write into `run_dir` into a UserError."""
    try:
        yield
    except OSError as error:
        ours = error.filename is not None and Path(str(error.filename)).is_relative_to(run_dir)
        if error.errno in REFUSED_WRITES or ours:
            raise refused_by_disk(run_dir, error, checkpoint_bytes) from error
        raise


def introduce(report: Report, state: State, pyramid: ImagePyramid, config: TrainConfig, needs: dict[str, str]) -> None:
    """Say what is about to happen, and what it needs."""
    schedule = report.schedule
    report.line(f"Run directory  {report.run_dir}")
    report.line(
        f"Data           {pyramid.images:,} images, {pyramid.channels} channels, up to {pyramid.resolution}x"
        f"{pyramid.resolution}"
    )
    report.line(
        f"Networks       G {count_parameters(state.g.network):,}  D {count_parameters(state.d.network):,} "
        f"parameters, {config.loss['name']}, {report.device}"
    )
    report.line(
        f"Schedule       {schedule.first_resolution}x{schedule.first_resolution} to {schedule.final_resolution}x"
        f"{schedule.final_resolution}, {len(schedule.phases)} phases, {schedule.total:,} images"
    )
    for name, need in needs.items():
        report.line(f"{name:<14} {need}")
    report.line(f"Watch          tensorboard --logdir {report.run_dir}")


class Trainer:
    """One run in progress."""

    def __init__(
        self,
        config: TrainConfig,
        stepper: Stepper,
        pyramid: ImagePyramid,
        report: Report,
        *,
        saver: Saver,
        notes: dict[str, Any],
    ) -> None:
        """Args: notes: what every checkpoint is to say besides."""
        self.config = config
        self.schedule = report.schedule
        self.stepper = stepper
        self.state = stepper.state
        self.report = report
        self.saver = saver
        self.notes = notes
        self.stream = RealStream(
            pyramid,
            config.seed,
            report.device,
            config.data.mirror,
            config.data.labels,
            budget=budget_bytes(config.data.device_budget_mib, report.device),
            phase_at=self.schedule.at,
        )
        self.columns, self.rows = parse_grid(config.monitor.grid, "monitor.grid")
        self.rollback = Rollback(report.run_dir, config.checkpoint.roll_back_after)
        self.saved_at = self.state.images or -1
        self.saved_time = time.monotonic()  # not the system clock, which may jump
        self.save_wanted = False
        self.is_milestone = False
        self.snapshot: Snapshot | None = None  # the last one taken

    def train(self, interruption: Interruption) -> int:
        """Repeat the step to the end of the schedule; returns the exit code."""
        state, report, schedule = self.state, self.report, self.schedule
        if state.images == 0:
            self.show_reals()
            self.show_fakes(schedule.at(0))
        while not self.arrives(interruption):
            pass
        if state.images >= schedule.total:
            report.line(f"Done: {state.images:,} images. Sample: pggan sample run={report.run_dir} seeds=0-63")
            return 0
        report.line(
            f"Interrupted at {state.images:,} images; all is saved. The same command with "
            f"run_dir={report.run_dir} goes on."
        )
        return EXIT_INTERRUPTED

    def arrives(self, interruption: Interruption) -> bool:
        """Train until the end or an interruption, and save; False if that went wrong and training has gone back."""
        state = self.state
        try:
            while state.images < self.schedule.total and not interruption.wanted:
                before, phase = state.images, self.schedule.at(state.images)
                self.step(phase)
                self.do_what_is_due(before, phase)
            if self.saved_at != state.images:
                self.save()
            self.saver.wait()
            prune(self.report.run_dir, state.images, self.config.checkpoint.keep)  # a kill may have come in between
        except NotFinite as problem:
            self.report.line(self.rollback.go_back(state, problem))
            self.report.begin(state.images)
            self.saved_at, self.save_wanted = state.images, False
            self.stepper.forget()
            return False
        return True

    def step(self, phase: Phase) -> None:
        """Show the next images to both players."""
        state, report = self.state, self.report
        if phase.index != state.phase_index:
            report.line(f"Phase {phase.index + 1} of {len(self.schedule.phases)}: {phase.name}, batch {phase.batch}")
            if self.config.optimizer.reset_at_phase:
                state.reset_optimizers()
            self.stepper.forget()
        draws = Draws(self.config.seed, state.images, report.device)
        decay = average_decay(self.config.average, state.images, phase.batch)
        watched = self.stepper.step(phase, self.stream.batch(phase, draws), draws, decay)
        report.averages.add(watched)
        report.progress(state.images, phase)

    def do_what_is_due(self, before: int, phase: Phase) -> None:
        """Tick, grid and checkpoint, each when its interval has been passed, and at the end.

        Raises NotFinite when the state is no longer worth going on from, UserError when it can't be saved.
        """
        images, last = self.state.images, self.state.images >= self.schedule.total
        keep, minutes = self.config.checkpoint, self.config.checkpoint.every_minutes

        def due(every: int) -> bool:
            return last or images // every > before // every

        self.saver.poll()
        ticking = due(self.config.monitor.tick_images)
        if ticking:
            self.report.tick(images, phase)
            self.rollback.check(self.state)
        if due(self.config.monitor.grid_images):
            self.show_fakes(phase)
        late = minutes is not None and time.monotonic() - self.saved_time > 60 * minutes
        self.is_milestone |= keep.is_milestone(self.schedule, before, images)
        saving = due(keep.every_images) or late or self.is_milestone
        # While updates are being skipped, a checkpoint would be no place to go back to: it waits for the next tick.
        if (saving or (ticking and self.save_wanted)) and not last:
            self.save_wanted = not self.rollback.check(self.state)
            if not self.save_wanted:
                self.save()

    def save(self) -> None:
        """Begin to write a checkpoint; its stage is that of the last image shown."""
        phase = self.schedule.at(max(self.state.images - 1, 0))
        self.report.flush()
        self.saver.wait()
        notes = {**self.notes, "milestone": self.is_milestone}
        self.snapshot = take_snapshot(self.state, phase, notes, self.snapshot)
        self.saver.save(self.snapshot)
        self.saved_at, self.saved_time, self.is_milestone = self.state.images, time.monotonic(), False

    def show_reals(self) -> None:
        """samples/reals.png: the first images that are shown, as they are at the final resolution."""
        last = self.schedule.phases[-1]
        count = min(self.columns * self.rows, self.stream.pyramid.images)
        indices = torch.arange(count).numpy()
        self.show("reals", self.stream.pyramid.read(last.resolution, indices), "reals.png")

    def show_fakes(self, phase: Phase) -> None:
        """samples/fakes-<images>.png: the averaged generator's faces of seeds 0, 1, 2 …, the same ones every time."""
        average, device = self.state.average, self.report.device
        latents = seed_latents(list(range(self.columns * self.rows)), average.architecture.latent_size).to(device)
        labels = None
        if average.architecture.labels:
            classes = torch.arange(len(latents), device=device) % average.architecture.labels
            labels = torch.nn.functional.one_hot(classes, average.architecture.labels).float()
        with torch.no_grad():
            images = average(latents, labels, phase.resolution, phase.alpha)
        self.show("fakes", to_bytes(images), f"fakes-{self.state.images:09d}.png")

    def show(self, tag: str, images: Pixels, file: str) -> None:
        picture = contact_sheet(images, self.columns, self.schedule.final_resolution)
        save_png(picture, self.report.run_dir / "samples" / file)
        self.report.picture(tag, picture, self.state.images)


def average_decay(config: AverageConfig, images: int, batch: int) -> float:
    """The averaged generator's decay for one step of `batch` images after `images`.

    By half-life: the weight of an old value halves every `half_life_images`; with `ramp_up`, the half-life is at most
    that share of the images shown, so that the average follows quickly at first.
    Source: per-step 0.999 is the paper's; half-life and ramp-up are Karras et al. 2020's.
    """
    if config.decay_per_step is not None:
        return config.decay_per_step
    assert config.half_life_images is not None, "checked by AverageConfig"
    half_life = config.half_life_images
    if config.ramp_up is not None:
        half_life = min(half_life, images * config.ramp_up)
    return float(0.5 ** (batch / max(half_life, 1e-8)))
