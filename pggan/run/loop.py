"""An open run on one of its ranks: what is due before and after each step, and the end."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import profile, schedule

from pggan.checkpoints.read import BEST, MILESTONE
from pggan.checkpoints.write import (
    CheckpointInterval,
    CheckpointWriter,
    NonFiniteError,
    Snapshot,
    prune,
    take_snapshot,
)
from pggan.core.atomic_io import atomic_write, make_directory
from pggan.core.errors import EXIT_INTERRUPTED
from pggan.core.process import StopSignal
from pggan.core.schedule import Course, Phase, Schedule, is_due
from pggan.core.text import next_command
from pggan.data.pyramid import ImagePyramid
from pggan.data.reals import RealBatches
from pggan.distributed.process_group import ProcessGroup
from pggan.distributed.watchdog import Watchdog
from pggan.optim.state import State
from pggan.run.eta import TimeLimit, with_plan
from pggan.run.evaluation import TrainingEvaluator
from pggan.run.health import DIVERSITY, REALS_SIGN, Alarms, MetricAccumulator, TimeBreakdown, Values, means
from pggan.run.pictures import generator_of, if_memory_suffices, relative_diversity
from pggan.run.report import NullReporter, Reporter
from pggan.training.trainer import Trainer

# What a rank can ask for; all of them do it at the same step.
STOP, SAVE, GO_BACK = 1, 2, 4
PROFILED_AFTER = 3  # steps of a phase: they try kernels and capture graphs
PROFILED_OPERATIONS = 20  # in the text


@dataclass(frozen=True)
class Step:
    """A step that was taken, from image count `before` to `images`; at the beginning of a run, the step to 0."""

    phase: Phase
    before: int
    images: int
    is_last: bool
    is_new_level: bool  # the first one of its resolution

    def reaches(self, every: int) -> bool:
        """Whether it reaches a multiple of `every`, or the end."""
        return self.is_last or is_due(every, self.before, self.images)


# When something is due, and what happens then.
Event = tuple[Callable[[Step], bool], Callable[[Step], None]]


@dataclass
class Parts:
    """The parts of an open run, on one of its ranks, that its events work with."""

    run_dir: Path
    trainer: Trainer
    course: Course
    group: ProcessGroup
    reporter: Reporter | NullReporter
    evaluator: TrainingEvaluator
    deadline: "Deadline"

    @property
    def state(self) -> State:
        """The state in training."""
        return self.trainer.state


def updates_were_taken(state: State, most_skipped: int) -> bool:
    """Whether the last updates were taken; waits for the device; raises NonFiniteError after too many skipped."""
    for name, trainable in (("G", state.g), ("D", state.d)):
        skipped = int(trainable.skipped)
        if skipped >= most_skipped:
            raise NonFiniteError(f"the gradients of the last {skipped} updates of {name}")
        if skipped:
            return False
    return True


@dataclass
class Tick:
    """Report the numbers since the last tick, with an evaluation where one is due, and look for alarms in them."""

    parts: Parts
    pyramid: ImagePyramid
    tick_images: int
    grid_images: int  # between two measures of diversity
    most_skipped: int  # updates in a row

    def __post_init__(self) -> None:
        self.accumulator, self.time_breakdown = MetricAccumulator(), TimeBreakdown()
        self.alarms = Alarms(self.parts.trainer.loss, self.parts.run_dir)
        self._ticked_at = self.parts.state.images

    def is_due(self, step: Step) -> bool:
        """Whether it is time for numbers, or for an evaluation."""
        return step.reaches(self.tick_images) or self.parts.evaluator.is_due(step.before, step.images)

    def __call__(self, step: Step) -> None:
        """Raises NonFiniteError, on all ranks, after too many updates without finite gradients."""
        parts, state, group, clock = self.parts, self.parts.state, self.parts.group, self.time_breakdown
        clock.end("overhead")
        values = self.accumulator.take()  # waits for the device, whose steps these are
        scalars = means(values, group)
        terms = [name for name in scalars if name in parts.trainer.loss.terms_of_g]
        if len(terms) == 1:  # it is the loss itself
            del scalars[terms[0]]
        clock.end("step")
        if not step.is_last:
            parts.deadline.replan(step.images, parts.evaluator.budget.took)
        if not (int(state.g.skipped) or int(state.d.skipped)):  # or the best checkpoint could not be saved here
            schedule = parts.course.schedule
            shown = schedule.at(step.images - 1)  # as a checkpoint of these images has it
            scalars |= parts.evaluator.at_tick(state.g_ema, shown, step.images, schedule.total)
        scores = {name: found for name, found in values.items() if name.startswith("scores/")}
        scalars |= self._health(step, scores)
        raised, texts = self.alarms.at_tick(step.phase.resolution, step.phase.learning_rate_d, scalars)
        clock.end("overhead")
        parts.reporter.tick(step.images, step.phase, scalars | raised | clock.shares(), scores, group.device)
        for text in texts:
            parts.reporter.alarm(text, step.images)
        updates_were_taken(state, self.most_skipped)
        group.require_equal_weights({"G": [*state.g.network.weights], "D": [*state.d.network.weights]})

    def _health(self, step: Step, scores: Values) -> dict[str, float]:
        """How surely D knows the reals and, if a grid was due since the last tick, how varied the fakes are."""
        found, parts, loss = {}, self.parts, self.parts.trainer.loss
        if loss.scores_are_log_odds and "scores/reals" in scores:
            reals, fakes = (torch.from_numpy(scores[f"scores/{kind}"]) for kind in ("reals", "fakes"))
            found[REALS_SIGN] = float(loss.signs(reals, fakes).mean())
        before, self._ticked_at = self._ticked_at, step.images
        if is_due(self.grid_images, before, step.images):
            with if_memory_suffices("measure of diversity", step.images, parts.reporter.warn):
                diversity = relative_diversity(generator_of(parts.state), step.phase, self.pyramid)
                found |= {} if diversity is None else {DIVERSITY: diversity}
        return found


@dataclass
class Deadline:
    """The end of a run that was given hours: at every tick, growth and last image are planned anew, on all ranks."""

    hours: float | None
    limit: TimeLimit | None  # on rank 0 of a run that was given hours
    course: Course
    group: ProcessGroup
    reporter: Reporter | NullReporter

    def __post_init__(self) -> None:
        self._said = False

    def replan(self, images: int, reserve: float) -> None:
        """Plan anew at `images`; `reserve`: seconds of what comes after the last image, besides saving."""
        if self.hours is None:
            return
        planned, before = None, self.course.schedule
        if self.limit is not None:
            self.limit.plan(images, time.monotonic(), reserve)
            planned = self.limit.planned
        now = self.course.schedule = with_plan(before, self.group.broadcast_object(planned))
        if now.phases[-1].start < before.phases[-1].start and not self._said:
            self._said, side = True, now.final_resolution
            text = f"growth becomes shorter, so that {side}x{side} has time"
            self.reporter.line(f"The machine is slower than planned: {text}.")

    def metadata(self) -> dict[str, Any]:
        """The time that is spent and what is planned, for a checkpoint."""
        if self.limit is None:
            return {}
        return {"spent_seconds": self.limit.spent_seconds(time.monotonic()), **self.limit.planned}

    def cut_short(self, images: int) -> str:
        """The end of a sentence: that the hours were over before the networks had grown; nothing where they had."""
        last, final = self.course.schedule.at(images - 1), self.course.schedule.phases[-1]
        if self.hours is None or last.index == final.index:
            return ""
        return f", before {final.resolution}x{final.resolution} was faded in: hours={self.hours:g} were over"


@dataclass
class Saving:
    """Begin a checkpoint: after an interval, at milestones, where it is the best so far, or when it is late."""

    parts: Parts
    writer: CheckpointWriter
    interval: CheckpointInterval
    milestones: Callable[[Schedule], list[int]]  # the image counts whose checkpoints are kept for good
    roll_back_after: int  # updates in a row that were skipped
    metadata: dict[str, Any]  # that every checkpoint has

    def __post_init__(self) -> None:
        self.saved_at = self.parts.state.images or -1
        self.is_asked = self.is_wanted = self.is_milestone = False
        self.problem: NonFiniteError | None = None  # of the last checkpoint, found while it was being written
        self._snapshot: Snapshot | None = None  # the last one taken, whose memory the next one uses again

    def is_due(self, step: Step) -> bool:
        """Whether a checkpoint is to be begun after this step; `finish` writes the last one."""
        counts = self.milestones(self.parts.course.schedule)
        self.is_milestone |= any(step.before < count <= step.images for count in counts)
        self.is_wanted |= self.interval.is_due(step.before, step.images) or self.is_asked or self.is_milestone
        self.is_wanted |= self.parts.evaluator.mark is not None
        return self.is_wanted and not step.is_last

    def __call__(self, step: Step) -> None:
        """While updates are being skipped, a checkpoint would be no place to go back to: it waits for one that is not.

        Raises NonFiniteError, on all ranks, after too many of them.
        """
        if updates_were_taken(self.parts.state, self.roll_back_after):
            self.save()

    def save(self) -> None:
        """Begin to write a checkpoint; its phase is the phase of the last image shown."""
        parts, state = self.parts, self.parts.state
        marks = {MILESTONE: self.is_milestone, BEST: parts.evaluator.mark}
        self.is_wanted, self.is_milestone, parts.evaluator.mark = False, False, None
        self.saved_at = state.images
        metadata = self.metadata | marks | parts.deadline.metadata()
        extra_state = parts.trainer.reducer.extra_state()
        if parts.group.is_main and self.wait():
            self.interval.begin(state.images)
            phase = parts.course.schedule.at(max(state.images - 1, 0))
            self._snapshot = take_snapshot(state, phase, metadata, extra_state, memory=self._snapshot)
            self.writer.save(self._snapshot)

    def wait(self) -> bool:
        """Wait for the last checkpoint; False if a number in it is not finite, which all ranks are told of."""
        try:
            self.writer.wait()
        except NonFiniteError as problem:
            self.problem = problem
        if self.problem is None:
            self.interval.saved()
            if self._snapshot is not None:
                self.parts.reporter.saved(self._snapshot.images)
        return self.problem is None


class Profiling:
    """Record some steps of every phase, after the first ones, as a trace in `folder`, and show what it says."""

    def __init__(self, steps: int, folder: Path, reporter: Reporter) -> None:
        self.steps, self.folder, self.reporter = steps, folder, reporter
        self._phase_index = -1
        self._profile: profile | None = None

    def __call__(self, step: Step) -> None:
        """Note a step."""
        if step.phase.index != self._phase_index:
            self._stop()
            self._phase_index = step.phase.index
            cycle = schedule(wait=PROFILED_AFTER - 2, warmup=1, active=self.steps, repeat=1)
            self._profile = profile(schedule=cycle, on_trace_ready=partial(self._write, step.phase), acc_events=True)
            self._profile.start()
        elif self._profile is not None:
            self._profile.step()
        if step.is_last:
            self._stop()

    def _stop(self) -> None:
        """End the recording of a phase, and write what there is of it."""
        if self._profile is not None:
            self._profile.stop()
        self._profile = None

    def _write(self, phase: Phase, recorded: profile) -> None:
        file = self.folder / f"{phase.start:09d}-{phase.name.replace(' ', '-')}.json"
        make_directory(self.folder)
        with atomic_write(file) as temporary:
            recorded.export_chrome_trace(str(temporary))
        table = recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=PROFILED_OPERATIONS)
        self.reporter.line(f"Profile of {phase.name}: in profile/, for https://ui.perfetto.dev")
        text = f"Open {file} in https://ui.perfetto.dev.\n\n" + "\n".join(f"    {line}" for line in table.splitlines())
        self.reporter.board.add_text(f"profile/{phase.name}", text, phase.start)


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

    def __post_init__(self) -> None:
        self._announced = -1  # the phase that was reported last
        self._is_new_level = False
        self._data_seconds = 0.0

    def begin(self) -> None:
        """Show the first pictures, if the run is new; called before the first step."""
        self.parts.group.reset_flags()
        self.watchdog.begin()
        if self.parts.state.images == 0:
            self._happen(Step(self.parts.course.at(0), 0, 0, is_last=False, is_new_level=False))

    def next_phase(self) -> Phase | None:
        """The phase of the next step; None at the end of the schedule, or when a rank was asked to stop.

        Raises NonFiniteError, on all ranks, when a checkpoint was not worth keeping; UserError when the disk refuses.
        """
        parts, saving, clock = self.parts, self.saving, self.tick.time_breakdown
        images, group = parts.state.images, parts.group
        if images >= parts.course.schedule.total:
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
        phase = parts.course.at(images)
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
        self._is_new_level = is_new and phase.resolution != before

    def after_step(self, phase: Phase, metrics: dict[str, Tensor]) -> None:
        """Do what is due.

        Raises NonFiniteError when the state is no longer worth resuming from, UserError when it can't be saved.
        """
        images = self.parts.state.images
        is_last, is_new_level = images >= self.parts.course.schedule.total, self._is_new_level
        self._is_new_level = False
        self.tick.time_breakdown.end("step", data=self.stream.seconds - self._data_seconds)
        self.tick.accumulator.add(metrics)
        self.parts.reporter.progress(images, phase)
        self.watchdog.stepped()
        self._happen(Step(phase, images - phase.batch, images, is_last, is_new_level))

    def _happen(self, step: Step) -> None:
        for is_due_after, happen in self.events:
            if is_due_after(step):
                with self.watchdog.slow():
                    happen(step)

    def finish(self) -> int:
        """Save what is not saved, and wait for it; returns the exit code.

        Raises NonFiniteError, on all ranks, when the state can't be kept.
        """
        parts, saving, reporter = self.parts, self.saving, self.parts.reporter
        images, total = parts.state.images, parts.course.schedule.total
        with self.watchdog.slow():
            if saving.saved_at != images:
                saving.save()
            reporter.flush()
            if saving.wait() and parts.group.is_main:
                # A kill may have come between a checkpoint and the removal of older ones.
                prune(parts.run_dir, images, saving.writer.keep)
        if problem := parts.group.broadcast_object(str(saving.problem or "")):
            raise NonFiniteError(problem)
        if images < total:
            resumes = f"The same command with run_dir={parts.run_dir} resumes."
            reporter.line(f"Interrupted at {images:,} images; everything is saved. {resumes}", always=True)
            return EXIT_INTERRUPTED
        reporter.finish(total)
        reporter.line(f"Done: {images:,} images{parts.deadline.cut_short(images)}.", always=True)
        reporter.line(next_command("sample", "seeds=0-63", run=parts.run_dir))
        return 0
