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
from pggan.checkpoints.write import CheckpointWriter, NonFiniteError, prune, take_snapshot
from pggan.core.atomic_io import atomic_write, make_directory
from pggan.core.errors import EXIT_INTERRUPTED
from pggan.core.process import StopSignal
from pggan.core.schedule import Course, Phase, Schedule
from pggan.core.text import next_command
from pggan.data.reals import RealBatches
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.state import State
from pggan.run.eta import TimeLimit, with_plan
from pggan.run.evaluation import TrainingEvaluator
from pggan.run.health import REALS_SIGN, Alarms, MetricAccumulator, means
from pggan.run.pictures import Pictures, Step
from pggan.run.report import NullReporter, Reporter
from pggan.training.trainer import Trainer

# What a rank can ask for; all of them do it at the same step.
STOP, SAVE, GO_BACK = 1, 2, 4
PROFILED_AFTER = 3  # steps of a phase: they try kernels and capture graphs


@dataclass
class Run:
    """The parts of a run, what is due before and after each of its steps, and the end."""

    run_dir: Path
    trainer: Trainer
    stream: RealBatches
    course: Course
    group: ProcessGroup
    reporter: Reporter | NullReporter
    evaluator: TrainingEvaluator
    interruption: StopSignal
    writer: CheckpointWriter
    milestones: Callable[[Schedule], list[int]]  # the image counts whose checkpoints are kept for good
    metadata: dict[str, Any]  # that every checkpoint has
    pictures: Pictures | None  # on rank 0
    profiling: "Profiling | None"  # on rank 0, where it is asked for
    tick_images: int
    most_skipped: int  # updates in a row
    hours: float | None
    limit: TimeLimit | None  # of a run of given hours, on rank 0

    def __post_init__(self) -> None:
        self._numbers = MetricAccumulator()
        self._alarms = Alarms(self.trainer.loss)
        self._phase_index, self._is_new_level = -1, False  # of the phase that was reported last
        self._is_shorter = False  # growth, than it was planned
        self._saved_at = self.state.images or -1
        self._is_asked = self._is_wanted = self._is_milestone = False
        self._problem: NonFiniteError | None = None  # of the last checkpoint, found while it was being written

    @property
    def state(self) -> State:
        """The state in training."""
        return self.trainer.state

    def begin(self) -> None:
        """Show the first pictures, if the run is new; called before the first step."""
        if self.state.images == 0:
            self._happen(Step(self.course.at(0), 0, 0, is_last=False, is_new_level=False))

    def next_phase(self) -> Phase | None:
        """The phase of the next step; None at the end of the schedule, or when a rank was asked to stop.

        Raises NonFiniteError, on all ranks, when a checkpoint was not worth keeping; UserError when the disk refuses.
        """
        group, images = self.group, self.state.images
        if images >= self.course.schedule.total:
            return None
        if not self.writer.is_writing:
            self._wait_for_checkpoint()
        group.limit_steps_in_flight()
        late = group.is_main and self.writer.is_late
        flags = STOP * self.interruption.wanted | SAVE * late | GO_BACK * (self._problem is not None)
        agreed = group.all_reduce_flags(flags)
        if agreed & GO_BACK:
            raise self._problem or NonFiniteError("a checkpoint of rank 0")
        if agreed & STOP:
            return None
        self._is_asked = bool(agreed & SAVE)
        phase = self.course.at(images)
        if phase.index != self._phase_index:
            self._begin_phase(phase)
        return phase

    def _begin_phase(self, phase: Phase) -> None:
        """Report the phase of the next step: a new one, or one that is resumed."""
        self._phase_index = phase.index
        is_new = phase.index != self.state.phase_index
        self.reporter.begin_phase(phase, self.state.images, is_new=is_new)
        if is_new:
            self.trainer.release_graphs()  # the next level of images may need their memory
        before = self.course.schedule.phases[phase.index - 1].resolution if phase.index else 0
        self._is_new_level = is_new and phase.resolution != before

    def after_step(self, phase: Phase, metrics: dict[str, Tensor]) -> None:
        """Do what is due.

        Raises NonFiniteError when the state is no longer worth resuming from, UserError when it can't be saved.
        """
        images = self.state.images
        step = Step(phase, images - phase.batch, images, images >= self.course.schedule.total, self._is_new_level)
        self._is_new_level = False
        self._numbers.add(metrics)
        self.reporter.console.progress(images, phase)
        self._happen(step)

    def _happen(self, step: Step) -> None:
        """Draw, report and save what is due after a step."""
        if self.profiling is not None and step.images:
            self.profiling(step)
        if self.pictures is not None:
            self.pictures(step)
        if step.reaches(self.tick_images) or self.evaluator.is_due(step.before, step.images):
            self._tick(step)
        if self._save_is_due(step):
            self._save_if_sound()

    def _tick(self, step: Step) -> None:
        """Report the numbers since the last tick, with an evaluation where one is due, and look for alarms in them.

        Raises NonFiniteError, on all ranks, after too many updates without finite gradients.
        """
        state, group, loss = self.state, self.group, self.trainer.loss
        values = self._numbers.take()  # waits for the device, whose steps these are
        scalars = means(values, group)
        terms = [name for name in scalars if name in loss.terms_of_g]
        if len(terms) == 1:  # it is the loss itself
            del scalars[terms[0]]
        if not step.is_last:
            self._replan(step.images)
        if not (int(state.g.skipped) or int(state.d.skipped)):  # or the best checkpoint could not be saved here
            shown = self.course.at(step.images - 1)  # as a checkpoint of these images has it
            scalars |= self.evaluator.at_tick(state.g_ema, shown, step.images, self.course.schedule.total)
        scores = {name: found for name, found in values.items() if name.startswith("scores/")}
        if loss.scores_are_log_odds and "scores/reals" in scores:
            reals, fakes = (torch.from_numpy(scores[f"scores/{kind}"]) for kind in ("reals", "fakes"))
            scalars[REALS_SIGN] = float(loss.signs(reals, fakes).mean())
        if self.pictures is not None:
            scalars |= self.pictures.measured
            self.pictures.measured = {}
        raised, texts = self._alarms.at_tick(step.phase.resolution, step.phase.learning_rate_d, scalars)
        self.reporter.tick(step.images, step.phase, scalars | raised, scores, group.device)
        for text in texts:
            self.reporter.alarm(text, step.images)
        updates_were_taken(state, self.most_skipped)
        group.require_equal_weights({"G": [*state.g.network.weights], "D": [*state.d.network.weights]})

    def _replan(self, images: int) -> None:
        """Plan growth and last image anew, on all ranks, where the run was given hours."""
        if self.hours is None:
            return
        before, limit = self.course.schedule, self.limit
        if limit is not None:
            limit.plan(images, time.monotonic(), reserve=self.evaluator.took)
        now = self.course.schedule = with_plan(before, self.group.broadcast_object(limit and limit.planned))
        if now.phases[-1].start < before.phases[-1].start and not self._is_shorter:
            self._is_shorter, side = True, now.final_resolution
            text = f"growth becomes shorter, so that {side}x{side} has time"
            self.reporter.line(f"The machine is slower than planned: {text}.")

    def _save_is_due(self, step: Step) -> bool:
        """Whether a checkpoint is to be begun after this step; `finish` writes the last one."""
        counts = self.milestones(self.course.schedule)
        self._is_milestone |= any(step.before < count <= step.images for count in counts)
        self._is_wanted |= self.writer.is_due(step.before, step.images) or self._is_asked or self._is_milestone
        self._is_wanted |= self.evaluator.mark is not None
        return self._is_wanted and not step.is_last

    def _save_if_sound(self) -> None:
        """While updates are being skipped, a checkpoint would be no place to go back to: it waits for one that is not.

        Raises NonFiniteError, on all ranks, after too many of them.
        """
        if updates_were_taken(self.state, self.most_skipped):
            self._save()

    def _save(self) -> None:
        """Begin to write a checkpoint; its phase is the phase of the last image shown."""
        state = self.state
        metadata = self.metadata | {MILESTONE: self._is_milestone, BEST: self.evaluator.mark}
        if self.limit is not None:
            metadata |= {"spent_seconds": self.limit.spent_seconds(time.monotonic()), **self.limit.planned}
        self._is_wanted, self._is_milestone, self.evaluator.mark = False, False, None
        extra_state = self.trainer.reducer.extra_state()
        if self.group.is_main and self._wait_for_checkpoint():
            self.reporter.board.flush()  # a run that resumes there has all points before it
            phase = self.course.at(max(state.images - 1, 0))
            self.writer.save(take_snapshot(state, phase, metadata, extra_state))
        self._saved_at = state.images

    def _wait_for_checkpoint(self) -> bool:
        """Wait for the last checkpoint; False if a number in it is not finite, which all ranks are told of."""
        try:
            self.writer.wait()
        except NonFiniteError as problem:
            self._problem = problem
        if self._problem is None and self._saved_at > 0:
            self.reporter.console.note_checkpoint(self._saved_at)
        return self._problem is None

    def finish(self) -> int:
        """Save what is not saved, and wait for it; returns the exit code.

        Raises NonFiniteError, on all ranks, when the state can't be kept.
        """
        reporter, images, schedule = self.reporter, self.state.images, self.course.schedule
        if self._saved_at != images:
            self._save()
        reporter.board.flush()
        if self._wait_for_checkpoint() and self.group.is_main:
            # A kill may have come between a checkpoint and the removal of older ones.
            prune(self.run_dir, images, self.writer.keep)
        if problem := self.group.broadcast_object(str(self._problem or "")):
            raise self._problem or NonFiniteError(problem)  # which knows the images of its checkpoint
        if images < schedule.total:
            resumes = f"The same command with run_dir={self.run_dir} resumes."
            reporter.line(f"Interrupted at {images:,} images; everything is saved. {resumes}", always=True)
            return EXIT_INTERRUPTED
        final, short = schedule.phases[-1], ""
        if self.hours is not None and schedule.at(images - 1).index < final.index:
            side = final.resolution
            short = f", before {side}x{side} was faded in: hours={self.hours:g} were over"
        reporter.finish(schedule.total)
        reporter.line(f"Done: {images:,} images{short}.", always=True)
        reporter.line(next_command("sample", "seeds=0-63", run=self.run_dir))
        return 0


def updates_were_taken(state: State, most_skipped: int) -> bool:
    """Whether the last updates were taken; waits for the device; raises NonFiniteError after too many skipped."""
    for name, trainable in (("G", state.g), ("D", state.d)):
        skipped = int(trainable.skipped)
        if skipped >= most_skipped:
            raise NonFiniteError(f"the gradients of the last {skipped} updates of {name}")
        if skipped:
            return False
    return True


class Profiling:
    """Records some steps of every phase, after the first ones, as a trace in `folder`."""

    def __init__(self, steps: int, folder: Path) -> None:
        self.steps, self.folder = steps, folder
        self._phase_index = -1
        self._profile: profile | None = None

    def __call__(self, step: Step) -> None:
        """Note a step."""
        is_new, self._phase_index = step.phase.index != self._phase_index, step.phase.index
        if self._profile is not None and not is_new:
            self._profile.step()
        if self._profile is not None and (is_new or step.is_last):
            self._profile.stop()
        if is_new:
            cycle = schedule(wait=PROFILED_AFTER - 2, warmup=1, active=self.steps, repeat=1)
            self._profile = profile(schedule=cycle, on_trace_ready=partial(self._write, step.phase), acc_events=True)
            self._profile.start()

    def _write(self, phase: Phase, recorded: profile) -> None:
        make_directory(self.folder)
        with atomic_write(self.folder / f"{phase.start:09d}-{phase.name.replace(' ', '-')}.json") as temporary:
            recorded.export_chrome_trace(str(temporary))
