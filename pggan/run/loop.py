"""An open run on one of its ranks: the phase of the next step, what is due after it, and the end."""

from dataclasses import dataclass

from torch import Tensor

from pggan.checkpoints.write import NonFiniteError, prune
from pggan.core.errors import EXIT_INTERRUPTED
from pggan.core.schedule import Phase
from pggan.core.signals import StopSignal
from pggan.core.text import next_command
from pggan.data.reals import RealBatches
from pggan.distributed.watchdog import Watchdog
from pggan.run.events import Event, Fakes, Parts, Saving, Step, StoredGrid, Tick
from pggan.run.pictures import show_projector
from pggan.run.report import Reporter

# What a rank can ask for; all of them do it at the same step.
STOP, SAVE, GO_BACK = 1, 2, 4


@dataclass
class Run:
    """The parts of a run; `events` come after each step, in their order."""

    parts: Parts
    stream: RealBatches
    interruption: StopSignal
    watchdog: Watchdog
    tick: Tick
    saving: Saving
    events: list[Event]
    pictures: tuple[Fakes, StoredGrid] | tuple[()]  # on rank 0

    def __post_init__(self) -> None:
        self._announced = -1  # the phase that was reported last
        self._data_seconds = 0.0

    def begin(self) -> None:
        """Show the first grids, if the run is new; called before the first step."""
        self.parts.group.reset_flags()
        self.watchdog.begin()
        if self.parts.state.images == 0 and self.pictures:
            self.pictures[0].previews.show_final_reals(self.parts.pyramid)
            for picture in self.pictures:
                picture(Step(self.parts.course.schedule.at(0), 0, 0, is_last=False))

    def next_phase(self) -> Phase | None:
        """The phase of the next step; None at the end of the schedule, or when a rank was asked to stop.

        Raises NonFiniteError, on all ranks, when a checkpoint was not worth keeping; UserError when the disk refuses.
        """
        parts, saving, clock = self.parts, self.saving, self.tick.time_breakdown
        images, schedule, group = parts.state.images, parts.course.schedule, parts.group
        if images >= schedule.total:
            return None
        if not saving.writer.is_writing:
            saving.wait()
        clock.end("overhead")
        group.limit_steps_in_flight()
        clock.end("step")  # the wait was for steps that a GPU has not finished
        late = group.is_main and saving.interval.is_late
        flags = STOP * self.interruption.wanted | SAVE * late | GO_BACK * (saving.problem is not None)
        agreed = group.all_reduce_flags(flags)
        if agreed & GO_BACK:
            raise saving.problem or NonFiniteError("a checkpoint of rank 0")
        if agreed & STOP:
            return None
        saving.is_asked = bool(agreed & SAVE)
        phase = schedule.at(images)
        if group.is_main and saving.interval.must_wait(images + phase.batch):
            with self.watchdog.slow():  # a kill during this step would lose more than an interval
                saving.wait()
        if phase.index != self._announced:
            self._begin_phase(phase)
        clock.end("overhead")
        self._data_seconds = self.stream.seconds
        return phase

    def _begin_phase(self, phase: Phase) -> None:
        """Report the phase of the next step: a new one, or one that is resumed."""
        parts, state, self._announced = self.parts, self.parts.state, phase.index
        self.watchdog.expect_slow_step()
        is_new = phase.index != state.phase_index
        parts.reporter.begin_phase(phase, state.images, is_new=is_new)
        if is_new:
            parts.trainer.release_graphs()  # the next level of images may need their memory
        before = parts.course.schedule.phases[phase.index - 1].resolution if phase.index else 0
        if is_new and self.pictures and phase.resolution != before:
            self.pictures[0].previews.show_reals(parts.pyramid, phase.resolution, state.images)

    def after_step(self, phase: Phase, metrics: dict[str, Tensor]) -> None:
        """Do what is due.

        Raises NonFiniteError when the state is no longer worth resuming from, UserError when it can't be saved.
        """
        images, total = self.parts.state.images, self.parts.course.schedule.total
        step = Step(phase, images - phase.batch, images, images >= total)
        self.tick.time_breakdown.end("step", data=self.stream.seconds - self._data_seconds)
        self.tick.accumulator.add(metrics)
        self.parts.reporter.progress(images, phase)
        self.watchdog.stepped()
        for event in self.events:
            if event.is_due(step):
                with self.watchdog.slow():
                    event(step)

    def finish(self) -> int:
        """Save what is not saved, and wait for it; returns the exit code.

        Raises NonFiniteError, on all ranks, when the state can't be kept.
        """
        parts, saving, reporter = self.parts, self.saving, self.parts.reporter
        images, schedule = parts.state.images, parts.course.schedule
        with self.watchdog.slow():
            if saving.saved_at != images:
                if images >= schedule.total and isinstance(reporter, Reporter):
                    with parts.if_memory_suffices("Projector"):
                        show_projector(reporter.board, parts.state, parts.pyramid, schedule.at(images - 1))
                saving.save()
            if parts.group.is_main:
                reporter.flush()
                if saving.wait():
                    # A kill may have come between a checkpoint and the removal of older ones.
                    prune(parts.run_dir, images, saving.writer.keep)
        if problem := parts.group.broadcast_object(str(saving.problem or "")):
            raise NonFiniteError(problem)
        if images < schedule.total:
            resumes = f"The same command with run_dir={parts.run_dir} resumes."
            reporter.line(f"Interrupted at {images:,} images; everything is saved. {resumes}", always=True)
            return EXIT_INTERRUPTED
        if isinstance(reporter, Reporter):
            reporter.board.finish(schedule.total)
        reporter.line(f"Done: {images:,} images{parts.deadline.cut_short(images)}.", always=True)
        reporter.line(next_command("sample", "seeds=0-63", run=parts.run_dir))
        return 0
