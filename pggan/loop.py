"""`pggan train`: build, restore, repeat the step, and do what is due in between."""

from pathlib import Path

import torch

from pggan.architecture import Architecture
from pggan.checkpoint import Checkpoint, differences, newest_checkpoint, open_checkpoint, save_checkpoint
from pggan.compute import Compute
from pggan.config import AverageConfig, TrainConfig, parse_grid
from pggan.data.loader import budget_bytes
from pggan.data.open import open_data
from pggan.data.pyramid import ImagePyramid
from pggan.device import choose_device
from pggan.draws import Draws
from pggan.errors import UserError
from pggan.interruption import Interruption
from pggan.latents import seed_latents
from pggan.losses import build_loss
from pggan.losses.base import Loss
from pggan.networks import count_parameters
from pggan.pictures import Pixels, enlarge, grid, save_png, to_bytes
from pggan.reals import RealStream
from pggan.report import Report
from pggan.run_dir import changes, choose_run_dir, create_run_dir, describe, write_config
from pggan.schedule import Phase
from pggan.state import State, new_state
from pggan.step import train_step

EXIT_INTERRUPTED = 75  # the same command goes on

SMALLEST_TILE = 128  # pixels: grids of early levels are enlarged to min(final resolution, this)


def run(config: TrainConfig) -> int:
    """Train to the end of the schedule, or go on with it; returns the exit code."""
    device = choose_device(config.devices)
    schedule, loss = config.schedule.build(), build_loss(config.loss)
    largest_batch = max(phase.batch for phase in schedule.phases)
    pyramid = open_data(config.data, schedule.final_resolution, largest_batch)
    labels = len(pyramid.class_names or ()) if config.data.labels else 0
    architecture = config.model.architecture(schedule.final_resolution, pyramid.channels, labels)
    run_dir = choose_run_dir(config)
    checkpoint, broken = find_checkpoint(config.resume, run_dir)
    if checkpoint is not None:
        check_same_networks(checkpoint, architecture)

    create_run_dir(run_dir)
    write_config(run_dir, describe(config))
    state = new_state(architecture, config.optimizer, config.seed, device)
    with Report(run_dir, schedule, architecture, device) as report, Interruption() as interruption:
        for problem in broken:
            report.line(f"Passed over a broken checkpoint: {problem}")
        introduce(report, state, pyramid, config)
        if checkpoint is not None:
            checkpoint.restore(state)
            report.line(f"Going on from {state.images:,} images ({checkpoint.directory}).")
            for change in changes(checkpoint.header["config"], describe(config)):
                report.line(f"Changed since then: {change}")
        report.begin(state.images)
        trainer = Trainer(config, loss, pyramid, state, report)
        return trainer.train(interruption)


def find_checkpoint(resume: str, run_dir: Path) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint that `resume` asks for: auto, never, or the path of a run or checkpoint."""
    if resume == "never":
        if any((run_dir / "checkpoints").glob("[0-9]*")):
            raise UserError(f"resume=never, but {run_dir} holds a run.", "Choose another run_dir=, or resume=auto.")
        return None, []
    if resume == "auto":
        return newest_checkpoint(run_dir)
    path = Path(resume)
    if (path / "state.json").is_file():
        return open_checkpoint(path), []
    checkpoint, broken = newest_checkpoint(path)
    if checkpoint is None:
        raise UserError(
            f"resume={resume}: there is no checkpoint.", "Give a run directory or its checkpoints/<images>."
        )
    return checkpoint, broken


def check_same_networks(checkpoint: Checkpoint, architecture: Architecture) -> None:
    found = list(differences(architecture, checkpoint.architecture))
    if found:
        raise UserError(
            f"{checkpoint.directory} holds other networks than this configuration asks for ({'; '.join(found)}).",
            "Give the same model, data and schedule.final_resolution as before, or a new run_dir=.",
        )


def introduce(report: Report, state: State, pyramid: ImagePyramid, config: TrainConfig) -> None:
    """Say what is about to happen."""
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
    report.line(f"Watch          tensorboard --logdir {report.run_dir}")


class Trainer:
    """One run in progress."""

    def __init__(self, config: TrainConfig, loss: Loss, pyramid: ImagePyramid, state: State, report: Report) -> None:
        self.config = config
        self.schedule = report.schedule
        self.loss = loss
        self.state = state
        self.report = report
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
        self.saved_at = state.images if state.images else -1

    def train(self, interruption: Interruption) -> int:
        """Repeat the step to the end of the schedule; returns the exit code."""
        state, report, schedule = self.state, self.report, self.schedule
        if state.images == 0:
            self.show_reals()
            self.show_fakes(schedule.at(0))
        while state.images < schedule.total and not interruption.wanted:
            before, phase = state.images, schedule.at(state.images)
            if phase.index != state.phase_index:
                report.line(f"Phase {phase.index + 1} of {len(schedule.phases)}: {phase.name}, batch {phase.batch}")
                if self.config.optimizer.reset_at_phase:
                    state.reset_optimizers()
            draws = Draws(self.config.seed, before, report.device)
            decay = average_decay(self.config.average, before, phase.batch)
            watched = train_step(
                state, phase, self.stream.batch(phase, draws), self.loss, draws, decay=decay, compute=Compute()
            )
            report.averages.add(watched)
            report.progress(state.images, phase)
            self.do_what_is_due(before, phase)
        if self.saved_at != state.images:
            self.save()
        if state.images >= schedule.total:
            report.line(f"Done: {state.images:,} images. Sample: pggan sample run={report.run_dir} seeds=0-63")
            return 0
        report.line(
            f"Interrupted at {state.images:,} images; all is saved. The same command with "
            f"run_dir={report.run_dir} goes on."
        )
        return EXIT_INTERRUPTED

    def do_what_is_due(self, before: int, phase: Phase) -> None:
        """Tick, grid and checkpoint, each when its interval of images has been passed, and at the end."""
        images, last = self.state.images, self.state.images >= self.schedule.total

        def due(every: int) -> bool:
            return last or images // every > before // every

        if due(self.config.monitor.tick_images):
            self.report.tick(images, phase)
        if due(self.config.monitor.grid_images):
            self.show_fakes(phase)
        if due(self.config.checkpoint.every_images):
            self.save()

    def save(self) -> None:
        """Write a checkpoint; its stage is that of the last image shown."""
        phase = self.schedule.at(max(self.state.images - 1, 0))
        save_checkpoint(self.report.run_dir, self.state, phase, describe(self.config), self.config.checkpoint.keep)
        self.saved_at = self.state.images

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
        tile = min(self.schedule.final_resolution, SMALLEST_TILE)
        picture = grid(enlarge(images, max(tile // images.shape[1], 1)), self.columns)
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
