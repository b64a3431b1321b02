"""Events between the steps of a run: ticks, grids, checkpoints, and what ends it or rolls it back."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from pggan.checkpoints.generator_file import CLASS_NAMES
from pggan.checkpoints.read import MILESTONE
from pggan.checkpoints.rollback import Rollback
from pggan.checkpoints.write import CheckpointInterval, CheckpointWriter, NonFiniteError, Snapshot, prune, take_snapshot
from pggan.config.parse import BEST
from pggan.core.devices import memory_problem
from pggan.core.errors import EXIT_INTERRUPTED
from pggan.core.intervals import is_due, lies_between
from pggan.core.next_command import next_command
from pggan.core.schedule import Phase, Schedule
from pggan.core.signals import StopSignal
from pggan.data.pyramid import ImagePyramid
from pggan.data.reals import RealBatches
from pggan.distributed.process_group import ProcessGroup
from pggan.distributed.watchdog import Watchdog
from pggan.networks.networks import Generator
from pggan.run.alarms import Alarms, way_back
from pggan.run.evaluation import TrainingEvaluator
from pggan.run.grid_recorder import GridRecorder
from pggan.run.health import Health
from pggan.run.metric_accumulator import MetricAccumulator
from pggan.run.previews import Previews
from pggan.run.projector import write_projector
from pggan.run.report import NullReporter, without_copies
from pggan.run.run_dir import RunContext
from pggan.run.step_profiler import StepProfiler
from pggan.run.time_breakdown import TimeBreakdown
from pggan.run.time_limit import TimeLimit, with_plan
from pggan.sampling.timelapse import FOLDER
from pggan.training.trainer import Trainer

# What a rank can ask for; all of them do it at the same step.
STOP, SAVE, ROLL_BACK = 1, 2, 4


class Restarted(Protocol):
    """Something that follows the image count."""

    def restart(self, images: int) -> None:
        """Begin or continue at `images`, without what was beyond."""


class Events:
    """The periodic events of one run, on one of its ranks."""

    def __init__(
        self,
        run: RunContext,
        trainer: Trainer,
        group: ProcessGroup,
        *,
        interruption: StopSignal,
        watchdog: Watchdog,
        reporter: NullReporter,
        writer: CheckpointWriter,
        stream: RealBatches,
        time_limit: TimeLimit | None,
        evaluator: TrainingEvaluator,
    ) -> None:
        """Args: time_limit: on rank 0 of a run that was given hours."""
        config, schedule = run.config, run.schedule
        self.config, self.schedule, self.trainer, self.state = config, schedule, trainer, trainer.state
        self.group, self.interruption, self.watchdog = group, interruption, watchdog
        self.reporter, self.writer, self.stream = reporter, writer, stream
        self.time_limit, self.evaluator = time_limit, evaluator
        # What every checkpoint says besides.
        names = {CLASS_NAMES: run.pyramid.class_names} if config.data.labels else {}
        self.metadata = {"config": run.description, "data": run.pyramid.fingerprint, **names}
        samples = writer.run_dir / "samples"
        self.previews = Previews(config.monitor, schedule, samples, reporter.picture)
        self.recorder = GridRecorder(schedule, samples / FOLDER, self.state.images) if group.is_main else None
        self.accumulator, self.time_breakdown = MetricAccumulator(), TimeBreakdown()
        self.profiler: StepProfiler | None = None
        if config.monitor.profile_steps > 0 and group.is_main:
            folder = writer.run_dir / "profile"
            self.profiler = StepProfiler(config.monitor.profile_steps, folder, group.device.type, reporter.profile)
        self.health = Health(run, trainer.loss, self.state.images)
        self.alarms = Alarms(trainer.loss, self._way_back)
        self.rollback = Rollback(writer.run_dir, config.checkpoint.roll_back_after, group)
        self.milestones = config.checkpoint.milestone_images(schedule)
        self.snapshot: Snapshot | None = None  # the last one taken, whose memory the next one uses again
        # What a rollback takes back to the image count of its checkpoint, and a start, too.
        parts = evaluator, self.health, self.alarms, self.recorder, self.profiler
        self.restarted: list[Restarted] = [part for part in parts if part is not None]
        self._restart()
        self.restarted.append(reporter)  # it has been opened at this count

    def _restart(self) -> None:
        """Reset everything that depends on the image count: training starts, or restarts from a checkpoint."""
        images, often = self.state.images, self.config.checkpoint
        self.interval = CheckpointInterval(images, often.every_images, often.every_minutes)
        self.group.reset_flags()
        self.accumulator.reset()
        self.time_breakdown.restart()
        for part in self.restarted:
            part.restart(images)
        self.trainer.release_graphs()
        self.saved_at = images or -1
        self.written: int | None = None  # the images of the last checkpoint given to the writer
        self.announced = -1  # the phase that was reported last
        self.save_asked = self.save_wanted = self.is_milestone = False
        # In a run of given hours, said once each: while its networks grow, and while its rates fall.
        self.is_growth_shorter = self.is_late = False
        self.problem: NonFiniteError | None = None  # of the last checkpoint, found while it was being written

    def before_step(self) -> Phase | None:
        """The phase of the next step; None at the end of the schedule, or when a rank was asked to stop.

        Raises NonFiniteError, on all ranks, when a checkpoint was not worth keeping; UserError when the disk refuses.
        """
        state = self.state
        if state.images >= self.schedule.total:
            return None
        if not self.writer.is_writing:
            self._wait_for_writer()
        self.time_breakdown.end("overhead")
        self.group.limit_steps_in_flight()
        self.time_breakdown.end("step")  # the wait was for steps that a GPU has not finished
        late = self.group.is_main and self.interval.is_late
        flags = STOP * self.interruption.wanted | SAVE * late | ROLL_BACK * (self.problem is not None)
        agreed = self.group.all_reduce_flags(flags)
        if agreed & ROLL_BACK:
            raise self.problem or NonFiniteError("a checkpoint of rank 0")
        if agreed & STOP:
            return None
        self.save_asked = bool(agreed & SAVE)
        phase = self.schedule.at(state.images)
        if self.group.is_main and self.interval.must_wait(state.images + phase.batch):
            with self.watchdog.slow():  # a kill during this step would lose more than an interval
                self._wait_for_writer()
        if phase.index != self.announced:
            self._begin_phase(phase)
        if self.profiler is not None:
            self.profiler.before_step(phase)
        self.time_breakdown.end("overhead")
        self.data_seconds = self.stream.seconds
        return phase

    def _begin_phase(self, phase: Phase) -> None:
        """Report the phase of the next step, which is another one than that of the last step, or resumed."""
        state, self.announced = self.state, phase.index
        self.watchdog.expect_slow_step()
        is_new = phase.index != state.phase_index
        self.reporter.begin_phase(phase, state.images, is_new=is_new)
        if is_new:
            self.trainer.release_graphs()  # the next level of images may need their memory
        before = self.schedule.phases[phase.index - 1].resolution if phase.index else 0
        if is_new and self.group.is_main and phase.resolution != before:
            self.previews.show_reals(self.stream.pyramid, phase.resolution, state.images)

    def after_step(self, phase: Phase, metrics: dict[str, Tensor]) -> None:
        """Tick, show fakes and save, each when its interval has passed, and at the end.

        Raises NonFiniteError when the state is no longer worth resuming from, UserError when it can't be saved.
        """
        state, images, monitor = self.state, self.state.images, self.config.monitor
        before, last = images - phase.batch, images >= self.schedule.total
        self.time_breakdown.end("step", data=self.stream.seconds - self.data_seconds)
        if self.profiler is not None:
            self.profiler.after_step(phase, images)
        self.accumulator.add(metrics)
        self.reporter.progress(images, phase)
        self.watchdog.stepped()
        if last or is_due(monitor.tick_images, before, images) or self.evaluator.is_due(before, images):
            self._tick(phase)
        if last or is_due(monitor.grid_images, before, images):
            self._show_fakes(phase)
        self._record_grid(phase, before)
        self.is_milestone |= any(lies_between(count, before, images) for count in self.milestones)
        saving = self.interval.is_due(before, images) or self.save_asked or self.is_milestone
        saving |= self.evaluator.mark is not None
        # While updates are being skipped, a checkpoint would be no place to roll back to: it waits for one that is not.
        if (saving or self.save_wanted) and not last:
            self.save_wanted = not self.rollback.check(state)
            if not self.save_wanted:
                self._save()

    def _tick(self, phase: Phase) -> None:
        """Report the scalars since the last tick, with an evaluation where one is due, and look for alarms in them."""
        state, group = self.state, self.group
        self.time_breakdown.end("overhead")
        scores = self.accumulator.recent("scores/") if group.is_main else {}
        scalars = self.accumulator.reduce(group)  # waits for the device, whose steps these are
        scalars = without_copies(scalars, self.trainer.loss.terms_of_g)
        self.time_breakdown.end("step")
        if self.config.hours is not None and state.images < self.schedule.total:
            self._plan_end()
        alarms: list[str] = []
        with self.watchdog.slow():
            if not (int(state.g.skipped) or int(state.d.skipped)):  # or the best checkpoint could not be saved here
                shown = self.schedule.at(state.images - 1)  # as a checkpoint of these images has it
                scalars |= self.evaluator.at_tick(state.g_ema, shown, state.images, self.schedule.total)
            if group.is_main:
                with self._if_memory_suffices("measure of diversity"):
                    scalars |= self.health.at_tick(state, phase, scores)
                raised, alarms = self.alarms.at_tick(phase.resolution, phase.learning_rate_d, scalars)
                scalars |= raised
        self.time_breakdown.end("overhead")
        self.reporter.tick(state.images, phase, scalars | self.time_breakdown.shares(), scores)
        for alarm in alarms:
            self.reporter.alarm(alarm, state.images)
        self.rollback.check(state)
        group.require_equal_weights({"G": [*state.g.network.weights], "D": [*state.d.network.weights]})

    def _plan_end(self) -> None:
        """Plan growth and last image anew, so that the run ends in time; the same on all ranks."""
        images, limit, before = self.state.images, self.time_limit, self.schedule
        planned = None
        if limit is not None:
            limit.plan(images, time.monotonic(), self.evaluator.seconds_at_end())
            planned = limit.planned
        now = self.schedule = with_plan(before, self.group.broadcast_object(planned))
        self._report_slow_machine(before, now)
        self.milestones = self.config.checkpoint.milestone_images(now)
        self.stream.phase_at = now.at
        self.reporter.plan_end(now)
        if self.recorder is not None:
            self.recorder.schedule = now

    def _report_slow_machine(self, before: Schedule, now: Schedule) -> None:
        """Say, once each, that growth becomes shorter, and that the rates fall faster."""
        said, side = "The machine is slower than planned:", now.final_resolution
        if now.phases[-1].start < before.phases[-1].start and not self.is_growth_shorter:
            self.is_growth_shorter = True
            self.reporter.line(f"{said} growth becomes shorter, so that {side}x{side} has time.")
        falling = self.state.images >= before.total - before.decay_images
        if falling and now.total < before.total and not self.is_late:
            self.is_late = True
            self.reporter.line(f"{said} the rates fall faster, to 0 at {now.total:,} images.")

    def _way_back(self) -> str:
        begins_from_weights = self.config.init_from is not None
        return way_back(self.writer.run_dir, self.schedule.total, begins_from_weights=begins_from_weights)

    def _show_fakes(self, phase: Phase) -> None:
        if self.group.is_main:
            g = self.state.g.network
            assert isinstance(g, Generator), "new_state makes it"
            with self.watchdog.slow(), self._if_memory_suffices("pictures"):
                self.previews.show_fakes(g, self.state.g_ema, phase, self.state.images)

    def _record_grid(self, phase: Phase, before: int) -> None:
        """Store a grid for a timelapse, if the step from `before` made it due."""
        if self.recorder is not None and self.recorder.is_due(before, self.state.images):
            with self.watchdog.slow(), self._if_memory_suffices("grid of the timelapse"):
                self.recorder.record(self.state.g_ema, phase, self.state.images)

    @contextmanager
    def _if_memory_suffices(self, what: str) -> Iterator[None]:
        """Inside, `what` is left out, with a warning, where other programs leave too little of the device's memory."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            self.reporter.warn(f"No {what} at {self.state.images:,} images: {memory_problem(error)}.")

    def _save(self) -> None:
        """Begin to write a checkpoint; its phase is that of the last image shown."""
        images = self.saved_at = self.state.images
        metadata: dict[str, Any] = {**self.metadata, MILESTONE: self.is_milestone, BEST: self.evaluator.mark}
        self.is_milestone, self.evaluator.mark = False, None
        if self.time_limit is not None:
            spent = self.time_limit.spent_seconds(time.monotonic())
            metadata |= {"spent_seconds": spent, **self.time_limit.planned}
        with self.watchdog.slow():
            extra_state = self.trainer.reducer.extra_state()
            if not self.group.is_main:
                return
            if self._wait_for_writer():
                self.interval.begin(images)
                phase = self.schedule.at(max(images - 1, 0))
                self.snapshot = take_snapshot(self.state, phase, metadata, extra_state, memory=self.snapshot)
                self.writer.save(self.snapshot)
                self.written = images

    def _wait_for_writer(self) -> bool:
        """Wait for the last checkpoint; False if a number in it is not finite, which `before_step` tells all ranks."""
        try:
            self.writer.wait()
        except NonFiniteError as problem:
            self.problem = problem
        if self.problem is None:
            self.interval.saved()
            if self.written is not None:
                self.reporter.saved(self.written)
        return self.problem is None

    def begin(self, pyramid: ImagePyramid) -> None:
        """Show the first grids, if the run is new; called before the first step."""
        self.watchdog.begin()
        if self.state.images == 0 and self.group.is_main:
            self.previews.show_final_reals(pyramid)
            self._show_fakes(self.schedule.at(0))
            self._record_grid(self.schedule.at(0), -1)

    def finish(self) -> None:
        """Save what is not saved, and wait for it; raises NonFiniteError, on all ranks, when that can't be kept."""
        images = self.state.images
        if self.saved_at != images:
            if self.group.is_main and images >= self.schedule.total:
                with self.watchdog.slow(), self._if_memory_suffices("Projector"):
                    write_projector(self.writer.run_dir, self.state, self.stream.pyramid, self.schedule.at(images - 1))
            self._save()
        if self.group.is_main:
            with self.watchdog.slow():
                self.reporter.flush()
                if self._wait_for_writer():
                    # A kill may have come between a checkpoint and the removal of older ones.
                    prune(self.writer.run_dir, self.state.images, self.config.checkpoint.keep)
        if problem := self.group.broadcast_object(str(self.problem or "")):
            raise NonFiniteError(problem)

    def roll_back(self, problem: NonFiniteError) -> None:
        """Go back to the last checkpoint; raises UserError when that has been of no use."""
        self._wait_for_writer()  # what is still being written may be the checkpoint to go back to
        self.reporter.warn(self.rollback.roll_back(self.state, self.trainer.reducer, problem))
        self._restart()

    def _cut_short(self) -> str:
        """The end of a sentence: that the hours were over before the networks had grown; nothing where they had."""
        last, final, hours = self.schedule.at(self.state.images - 1), self.schedule.phases[-1], self.config.hours
        if hours is None or last.index == final.index:
            return ""
        return f", before {final.resolution}x{final.resolution} was faded in: hours={hours:g} were over"

    def exit_code(self) -> int:
        """The exit code of the run, whose end is reported."""
        images, run_dir = self.state.images, self.writer.run_dir
        if images >= self.schedule.total:
            self.reporter.finish()
            self.reporter.line(f"Done: {images:,} images{self._cut_short()}.", always=True)
            self.reporter.line(next_command("sample", "seeds=0-63", run=run_dir))
            return 0
        resumes = f"The same command with run_dir={run_dir} resumes."
        self.reporter.line(f"Interrupted at {images:,} images; everything is saved. {resumes}", always=True)
        return EXIT_INTERRUPTED
