"""The training loop: repeat the step, and do what is due in between."""

from typing import Any

import numpy as np
import torch

from pggan.checkpoints.interval import Pace
from pggan.checkpoints.rollback import Rollback
from pggan.checkpoints.write import NotFinite, Saver, Snapshot, prune, take_snapshot
from pggan.config import AverageConfig, TrainConfig
from pggan.config.notation import parse_grid
from pggan.core.errors import EXIT_INTERRUPTED
from pggan.core.rng import Draws
from pggan.core.schedule import Phase, Schedule
from pggan.core.signals import Interruption
from pggan.data.stream.reals import RealStream
from pggan.distributed.process_group import World
from pggan.distributed.watchdog import Watchdog
from pggan.run.metrics import Averages
from pggan.run.report import Silence
from pggan.sampling.images import Pixels, contact_sheet, save_png, to_bytes
from pggan.sampling.latents import seed_latents
from pggan.training.step_runner import Stepper

# What a process can wish for; all of them do it at the same step.
STOP, SAVE, GO_BACK = 1, 2, 4
FAKES_AT_ONCE = 8  # drawn for a picture: of 1024x1024, each takes hundreds of megabytes


class Trainer:
    """One run in progress, in one of its processes."""

    def __init__(
        self,
        config: TrainConfig,
        schedule: Schedule,
        stepper: Stepper,
        stream: RealStream,
        *,
        world: World,
        watchdog: Watchdog,
        report: Silence,
        saver: Saver,
        notes: dict[str, Any],
    ) -> None:
        """Args: notes: what every checkpoint is to say besides."""
        self.config = config
        self.schedule = schedule
        self.stepper = stepper
        self.state = stepper.state
        self.stream = stream
        self.world = world
        self.watchdog = watchdog
        self.report = report
        self.saver = saver
        self.notes = notes
        self.averages = Averages()
        self.columns, self.rows = parse_grid(config.monitor.grid, "monitor.grid")
        self.rollback = Rollback(saver.run_dir, config.checkpoint.roll_back_after, world)
        self.saved_at = self.state.images or -1
        self.pace = Pace(config.checkpoint, self.state.images)
        self.save_wanted = False
        self.is_milestone = False
        self.snapshot: Snapshot | None = None  # the last one taken
        self.problem: NotFinite | None = None  # of the last checkpoint, found while it was being written

    def train(self, interruption: Interruption) -> int:
        """Repeat the step to the end of the schedule; returns the exit code."""
        state, report, schedule = self.state, self.report, self.schedule
        self.watchdog.begin()
        if state.images == 0:
            self.show_reals()
            self.show_fakes(schedule.at(0))
        while not self.arrives(interruption):
            pass
        if state.images >= schedule.total:
            report.line(f"Done: {state.images:,} images. Sample: pggan sample run={self.saver.run_dir} seeds=0-63")
            return 0
        report.line(
            f"Interrupted at {state.images:,} images; all is saved. The same command with "
            f"run_dir={self.saver.run_dir} goes on."
        )
        return EXIT_INTERRUPTED

    def arrives(self, interruption: Interruption) -> bool:
        """Train until the end or an interruption, and save; False if that went wrong and training has gone back."""
        state = self.state
        try:
            while state.images < self.schedule.total:
                agreed = self.world.agreed(self.wishes(interruption))
                if agreed & GO_BACK:
                    raise self.problem or NotFinite("a checkpoint of the first process")
                if agreed & STOP:
                    break
                before, phase = state.images, self.schedule.at(state.images)
                self.keep_pace(phase)
                self.step(phase)
                self.do_what_is_due(before, phase, asked=bool(agreed & SAVE))
            if self.saved_at != state.images:
                self.save()
            self.see_saved()
        except NotFinite as problem:
            self.finish_writing()  # what is still being written may be the place to go back to
            self.report.line(self.rollback.go_back(state, self.stepper.exchange, problem))
            self.report.begin(state.images)
            self.averages.forget()
            self.saved_at, self.save_wanted, self.problem = state.images, False, None
            self.pace.restart(state.images)
            self.stepper.forget()
            return False
        return True

    def wishes(self, interruption: Interruption) -> int:
        """What this process wants to be done next.

        Raises UserError when the state could not be saved.
        """
        if not self.saver.is_writing:
            self.finish_writing()
        late = self.world.is_first and self.pace.is_late
        return STOP * interruption.wanted | SAVE * late | GO_BACK * (self.problem is not None)

    def keep_pace(self, phase: Phase) -> None:
        """Hold training until a kill during the next step would lose no more than an interval."""
        if self.world.is_first and self.pace.must_wait(self.state.images + phase.batch):
            with self.watchdog.slow():
                self.finish_writing()

    def finish_writing(self) -> bool:
        """Wait for the last checkpoint; False if there is something in it that is not finite, which `wishes` tells all.

        Raises UserError when the state could not be saved.
        """
        try:
            self.saver.wait()
        except NotFinite as problem:
            self.problem = problem
        if self.problem is None:
            self.pace.saved()
        return self.problem is None

    def step(self, phase: Phase) -> None:
        """Show the next images to both players."""
        state = self.state
        if phase.index == state.phase_index:
            self.take_step(phase)
            return
        self.report.line(f"Phase {phase.index + 1} of {len(self.schedule.phases)}: {phase.name}, batch {phase.batch}")
        if self.config.optimizer.reset_at_phase:
            state.reset_optimizers()
        self.stepper.forget()
        with self.watchdog.slow():
            self.take_step(phase)

    def take_step(self, phase: Phase) -> None:
        state = self.state
        draws = Draws(self.config.seed, state.images, self.world.device)
        decay = average_decay(self.config.average, state.images, phase.batch)
        self.averages.add(self.stepper.step(phase, self.stream.batch(phase, draws), draws, decay))
        self.report.progress(state.images, phase)
        self.watchdog.stepped(f"{state.images:,} images")

    def do_what_is_due(self, before: int, phase: Phase, *, asked: bool) -> None:
        """Tick, grid and checkpoint, each when its interval has been passed, and at the end; a checkpoint if `asked`.

        Raises NotFinite when the state is no longer worth going on from, UserError when it can't be saved.
        """
        images, last = self.state.images, self.state.images >= self.schedule.total

        def due(every: int) -> bool:
            return last or images // every > before // every

        ticking = due(self.config.monitor.tick_images)
        if ticking:
            self.report.tick(images, phase, self.averages.flush(self.world))
            self.rollback.check(self.state)
            self.world.require_equal_weights(
                {"G": list(self.state.g.network.weights), "D": list(self.state.d.network.weights)}
            )
        if due(self.config.monitor.grid_images):
            self.show_fakes(phase)
        self.is_milestone |= self.config.checkpoint.is_milestone(self.schedule, before, images)
        saving = self.pace.is_due(before, images) or asked or self.is_milestone
        # While updates are being skipped, a checkpoint would be no place to go back to: it waits for one that is taken.
        if (saving or self.save_wanted) and not last:
            self.save_wanted = not self.rollback.check(self.state)
            if not self.save_wanted:
                self.save()

    def save(self) -> None:
        """Begin to write a checkpoint; its stage is that of the last image shown."""
        self.saved_at = self.state.images
        notes, self.is_milestone = {**self.notes, "milestone": self.is_milestone}, False
        with self.watchdog.slow():
            more = self.stepper.exchange.parts()
            if not self.world.is_first:
                return
            self.report.flush()
            if not self.finish_writing():
                return
            self.pace.begin(self.state.images)
            phase = self.schedule.at(max(self.state.images - 1, 0))
            self.snapshot = take_snapshot(self.state, phase, notes, memory=self.snapshot, more=more)
            self.saver.save(self.snapshot)

    def see_saved(self) -> None:
        """Wait for the last checkpoint; raises NotFinite, in all processes, when it was not worth keeping."""
        if self.world.is_first:
            with self.watchdog.slow():
                if self.finish_writing():
                    # A kill may have come between a checkpoint and the removal of older ones.
                    prune(self.saver.run_dir, self.state.images, self.config.checkpoint.keep)
        if problem := self.world.gather(str(self.problem or ""))[0]:
            raise NotFinite(problem)

    def show_reals(self) -> None:
        """samples/reals.png: the first images that are shown, as they are at the final resolution."""
        if not self.world.is_first:
            return
        last = self.schedule.phases[-1]
        count = min(self.columns * self.rows, self.stream.pyramid.images)
        indices = torch.arange(count).numpy()
        self.show("reals", self.stream.pyramid.read(last.resolution, indices), "reals.png")

    def show_fakes(self, phase: Phase) -> None:
        """samples/fakes-<images>.png: the averaged generator's faces of seeds 0, 1, 2 …, the same ones every time."""
        if not self.world.is_first:
            return
        average, device = self.state.average, self.world.device
        latents = seed_latents(list(range(self.columns * self.rows)), average.architecture.latent_size).to(device)
        labels = None
        if average.architecture.labels:
            numbers = torch.arange(len(latents), device=device) % average.architecture.labels
            labels = torch.nn.functional.one_hot(numbers, average.architecture.labels).float()
        with torch.no_grad(), self.watchdog.slow():
            images = [
                to_bytes(
                    average(latents[part], None if labels is None else labels[part], phase.resolution, phase.alpha)
                )
                for part in torch.split(torch.arange(len(latents), device=device), FAKES_AT_ONCE)
            ]
        self.show("fakes", np.concatenate(images), f"fakes-{self.state.images:09d}.png")

    def show(self, tag: str, images: Pixels, file: str) -> None:
        picture = contact_sheet(images, self.columns, self.schedule.final_resolution)
        save_png(picture, self.saver.run_dir / "samples" / file)
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
