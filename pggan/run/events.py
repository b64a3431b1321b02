"""Events of a run: each is something to do after a step at which it is due, by the images shown."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from pggan.checkpoints.read import BEST, MILESTONE
from pggan.checkpoints.write import CheckpointInterval, CheckpointWriter, NonFiniteError, Snapshot, take_snapshot
from pggan.core.atomic_io import atomic_write, make_directory
from pggan.core.devices import memory_problem
from pggan.core.schedule import Course, Phase, Schedule, is_due, lies_between
from pggan.data.pyramid import ImagePyramid
from pggan.distributed.process_group import ProcessGroup
from pggan.networks.networks import Generator
from pggan.optim.state import State
from pggan.run.alarms import DIVERSITY, REALS_SIGN, Alarms
from pggan.run.eta import TimeLimit, with_plan
from pggan.run.evaluation import TrainingEvaluator
from pggan.run.pictures import GridRecorder, Previews, relative_diversity
from pggan.run.report import MetricAccumulator, NullReporter, Reporter, Scores, TimeBreakdown
from pggan.training.trainer import Trainer

PROFILED_AFTER = 3  # steps of a phase: they try kernels and capture graphs
PROFILED_OPERATIONS = 20  # in the text


@dataclass
class Parts:
    """The parts of an open run, on one of its ranks, that its events work with."""

    run_dir: Path
    trainer: Trainer
    pyramid: ImagePyramid
    course: Course
    group: ProcessGroup
    reporter: Reporter | NullReporter
    evaluator: TrainingEvaluator
    deadline: "Deadline"

    @property
    def state(self) -> State:
        """The state in training."""
        return self.trainer.state

    @property
    def generator(self) -> Generator:
        """The generator in training."""
        assert isinstance(self.state.g.network, Generator), "new_state makes it"
        return self.state.g.network

    @contextmanager
    def if_memory_suffices(self, what: str) -> Iterator[None]:
        """Inside, `what` is left out, with a warning, where other programs leave too little of the device's memory."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            self.reporter.warn(f"No {what} at {self.state.images:,} images: {memory_problem(error)}.")

    def updates_were_taken(self, most_skipped: int) -> bool:
        """Whether the last updates were taken; waits for the device; raises NonFiniteError after too many skipped."""
        for name, trainable in (("G", self.state.g), ("D", self.state.d)):
            skipped = int(trainable.skipped)
            if skipped >= most_skipped:
                raise NonFiniteError(f"the gradients of the last {skipped} updates of {name}")
            if skipped:
                return False
        return True


@dataclass(frozen=True)
class Step:
    """A step that was taken, from image count `before` to `images`."""

    phase: Phase
    before: int
    images: int
    is_last: bool

    def reaches(self, every: int) -> bool:
        """Whether it reaches a multiple of `every`, or the end."""
        return self.is_last or is_due(every, self.before, self.images)


class Event(Protocol):
    """Something that happens after the steps at which it is due."""

    def is_due(self, step: Step) -> bool:
        """Whether it is to happen after this step."""

    def __call__(self, step: Step) -> None:
        """Happen."""


@dataclass
class Tick:
    """Report the scalars since the last tick, with an evaluation where one is due, and look for alarms in them."""

    parts: Parts
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
        scores = self.accumulator.recent("scores/") if group.is_main else {}
        scalars = self.accumulator.reduce(group)  # waits for the device, whose steps these are
        terms = [name for name in scalars if name in parts.trainer.loss.terms_of_g]
        if len(terms) == 1:  # it is the loss itself
            del scalars[terms[0]]
        clock.end("step")
        if not step.is_last:
            parts.deadline.replan(step.images, parts.evaluator.budget.took)
        schedule, texts = parts.course.schedule, list[str]()
        if not (int(state.g.skipped) or int(state.d.skipped)):  # or the best checkpoint could not be saved here
            shown = schedule.at(step.images - 1)  # as a checkpoint of these images has it
            scalars |= parts.evaluator.at_tick(state.g_ema, shown, step.images, schedule.total)
        if group.is_main:
            with parts.if_memory_suffices("measure of diversity"):
                scalars |= self.health(step.phase, step.images, scores)
            raised, texts = self.alarms.at_tick(step.phase.resolution, step.phase.learning_rate_d, scalars)
            scalars |= raised
        clock.end("overhead")
        parts.reporter.tick(step.images, step.phase, scalars | clock.shares(), scores, group.device)
        for text in texts:
            parts.reporter.alarm(text, step.images)
        parts.updates_were_taken(self.most_skipped)
        group.require_equal_weights({"G": [*state.g.network.weights], "D": [*state.d.network.weights]})

    def health(self, phase: Phase, images: int, scores: Scores) -> dict[str, float]:
        """How surely D knows the reals and, if a grid was due since the last tick, how varied the fakes are."""
        found, loss = {}, self.parts.trainer.loss
        if loss.scores_are_log_odds and "scores/reals" in scores:
            reals, fakes = (torch.from_numpy(scores[f"scores/{kind}"]) for kind in ("reals", "fakes"))
            found[REALS_SIGN] = float(loss.signs(reals, fakes).mean())
        before, self._ticked_at = self._ticked_at, images
        if is_due(self.grid_images, before, images):
            diversity = relative_diversity(self.parts.generator, phase, self.parts.pyramid)
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
class Fakes:
    """Show a grid of fakes, of the generator in training and of the averaged one."""

    parts: Parts
    grid_images: int
    previews: Previews

    def is_due(self, step: Step) -> bool:
        """Whether the step reaches the next grid, or the end."""
        return step.reaches(self.grid_images)

    def __call__(self, step: Step) -> None:
        parts = self.parts
        with parts.if_memory_suffices("pictures"):
            self.previews.show_fakes(parts.generator, parts.state.g_ema, step.phase, step.images)


@dataclass
class StoredGrid:
    """Store a grid for a timelapse."""

    parts: Parts
    recorder: GridRecorder

    def is_due(self, step: Step) -> bool:
        """Whether the step reaches the next grid, or the end."""
        return step.reaches(self.recorder.interval)

    def __call__(self, step: Step) -> None:
        with self.parts.if_memory_suffices("grid of the timelapse"):
            self.recorder.record(self.parts.state.g_ema, step.phase, step.images)


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
        self.is_milestone |= any(lies_between(count, step.before, step.images) for count in counts)
        self.is_wanted |= self.interval.is_due(step.before, step.images) or self.is_asked or self.is_milestone
        self.is_wanted |= self.parts.evaluator.mark is not None
        return self.is_wanted and not step.is_last

    def __call__(self, step: Step) -> None:
        """While updates are being skipped, a checkpoint would be no place to go back to: it waits for one that is not.

        Raises NonFiniteError, on all ranks, after too many of them.
        """
        if self.parts.updates_were_taken(self.roll_back_after):
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

    def __init__(self, steps: int, folder: Path, device_type: str, reporter: Reporter) -> None:
        self.steps, self.folder, self.reporter = steps, folder, reporter
        self.activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] * (device_type == "cuda"))]
        self._phase_index = -1
        self._profile: profile | None = None

    def is_due(self, step: Step) -> bool:
        """After each step."""
        return True

    def __call__(self, step: Step) -> None:
        if step.phase.index == self._phase_index and self._profile is not None:
            self._profile.step()
        elif step.phase.index != self._phase_index:
            self.stop()
            self._phase_index = step.phase.index
            cycle = schedule(wait=PROFILED_AFTER - 2, warmup=1, active=self.steps, repeat=1)
            write = partial(self._write, step.phase)
            self._profile = profile(activities=self.activities, schedule=cycle, on_trace_ready=write, acc_events=True)
            self._profile.start()
        if step.is_last:
            self.stop()

    def stop(self) -> None:
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
