"""What one rank does between training steps: it reports, evaluates, draws pictures and saves checkpoints."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pggan.checkpoints.read import BEST
from pggan.checkpoints.write import CheckpointWriter, NonFiniteError, prune, take_snapshot
from pggan.core.devices import peak_memory
from pggan.core.errors import EXIT_INTERRUPTED
from pggan.core.process import StopSignal
from pggan.core.schedule import Course, Phase
from pggan.core.text import next_command
from pggan.data.reals import RealBatches
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.state import State
from pggan.run.eta import TimeLimit, plan_of
from pggan.run.evaluation import TrainingEvaluator
from pggan.run.health import REALS_SIGN, MetricAccumulator, means
from pggan.run.pictures import Pictures, Step
from pggan.run.report import NullReporter, Reporter
from pggan.run.summary import ending
from pggan.training.trainer import Trainer

# Before each step, the ranks combine these bit flags, so that all ranks stop, save or roll back at the same step.
STOP, SAVE, GO_BACK = 1, 2, 4
SPENT = "spent_seconds"  # a checkpoint stores the seconds of training under this key


@dataclass
class Run:
    """A training run on one rank: draws pictures, reports metrics, evaluates and saves between the training steps."""

    run_dir: Path
    trainer: Trainer
    stream: RealBatches
    course: Course
    group: ProcessGroup
    reporter: Reporter | NullReporter
    evaluator: TrainingEvaluator
    interruption: StopSignal
    writer: CheckpointWriter
    metadata: dict[str, Any]  # entries that every checkpoint of the run stores, such as the configuration
    pictures: Pictures | None  # None except on rank 0
    tick_images: int
    most_skipped: int  # training rolls back after this many skipped updates in a row
    began: float  # `time.monotonic() - began` is the run's training time, earlier commands included
    limit: TimeLimit | None  # with hours=, on rank 0: shortens or lengthens the schedule to end in time

    def __post_init__(self) -> None:
        self._numbers = MetricAccumulator()
        self._phase_index = -1
        self._saved_at = self.state.images or -1
        self._save_is_due = False
        self._problem: NonFiniteError | None = None  # set when a checkpoint has NaN or infinite numbers

    @property
    def state(self) -> State:
        return self.trainer.state

    def next_phase(self) -> Phase | None:
        """Return the phase of the next step, or None if training must end.

        Raises NonFiniteError, on all ranks, if the newest checkpoint has NaN or infinite numbers.
        """
        group, images = self.group, self.state.images
        if images >= self.course.schedule.total:
            return None
        if not self.writer.is_writing:
            self._wait_for_checkpoint()
        late = group.is_main and self.writer.is_late
        flags = STOP * self.interruption.wanted | SAVE * late | GO_BACK * (self._problem is not None)
        agreed = group.all_reduce_flags(flags)
        if agreed & GO_BACK:
            raise self._problem or NonFiniteError("a checkpoint of rank 0")
        if agreed & STOP:
            return None
        self._save_is_due |= bool(agreed & SAVE)
        phase = self.course.at(images)
        if phase.index != self._phase_index:
            self._begin_phase(phase)
        return phase

    def _begin_phase(self, phase: Phase) -> None:
        self._phase_index = phase.index
        is_new = phase.index != self.state.phase_index
        self.reporter.begin_phase(phase, self.state.images, is_new=is_new)
        if is_new:
            self.trainer.release_graphs()  # frees GPU memory, which larger images may need
        if self.state.images == 0:
            self._do_what_is_due(Step(phase, 0, 0, is_last=False))

    def after_step(self, phase: Phase, metrics: dict[str, Tensor]) -> None:
        """Draw, report and save whatever is due after a step; raises NonFiniteError after too many skipped updates."""
        self.group.limit_steps_in_flight()  # records the CUDA event that `end_if_stalled` watches: before all else
        images = self.state.images
        step = Step(phase, images - phase.batch, images, is_last=images >= self.course.schedule.total)
        self._numbers.add(metrics)
        self.reporter.console.progress(images, phase)
        self._do_what_is_due(step)

    def _do_what_is_due(self, step: Step) -> None:
        if self.pictures is not None:
            self.pictures(step)
        if step.reaches(self.tick_images) or self.evaluator.is_due(step.before, step.images):
            self._report(step)
        self._save_is_due |= step.reaches(self.writer.every_images) or self.evaluator.mark is not None
        # After a skipped update, the weights may be broken, so a due checkpoint waits for a later step.
        if self._save_is_due and not step.is_last and updates_were_taken(self.state, self.most_skipped):
            self._save()

    def _report(self, step: Step) -> None:
        state, group, loss = self.state, self.group, self.trainer.loss
        is_sound = updates_were_taken(state, self.most_skipped)
        values = self._numbers.take()
        scalars = means(values, group)
        if self.limit is not None and not step.is_last:
            self.limit.plan(step.images, time.monotonic(), reserve=self.evaluator.took)
        self.course.schedule = group.broadcast_object(self.course.schedule)
        if is_sound:  # after a skipped update, the weights may be broken, so they are not evaluated
            shown = self.course.at(step.images - 1)  # phase of this step; the next phase may begin at `step.images`
            scalars |= self.evaluator.at_tick(state.g_ema, shown, step.images, self.course.schedule.total)
        if loss.scores_are_log_odds and "scores/reals" in values:
            reals, fakes = (torch.from_numpy(values[f"scores/{kind}"]) for kind in ("reals", "fakes"))
            scalars[REALS_SIGN] = float(loss.signs(reals, fakes).mean())
        scalars["speed/memory_bytes"] = peak_memory(group.device)
        self.reporter.tick(step.images, step.phase, scalars)
        group.require_equal_weights({"G": [*state.g.network.weights], "D": [*state.d.network.weights]})

    def _save(self) -> None:
        state = self.state
        metadata = self.metadata | {BEST: self.evaluator.mark, SPENT: time.monotonic() - self.began}
        metadata |= plan_of(self.course.schedule)
        self._save_is_due, self.evaluator.mark = False, None
        extra_state = self.trainer.reducer.extra_state()
        if self.group.is_main and self._wait_for_checkpoint():
            self.reporter.board.flush()  # without this flush, a killed and resumed run could have a gap in TensorBoard
            self.writer.save(take_snapshot(state, self.course.at(max(state.images - 1, 0)), metadata, extra_state))
        self._saved_at = state.images

    def _wait_for_checkpoint(self) -> bool:
        """Wait until the newest checkpoint is on disk; returns False if the checkpoint has NaN or infinite numbers."""
        try:
            self.writer.wait()
        except NonFiniteError as problem:
            self._problem = problem
        return self._problem is None

    def finish(self) -> int:
        """Write the final checkpoint and the film; returns the exit code.

        All ranks raise NonFiniteError if the checkpoint has NaN or infinite numbers.
        """
        reporter, images, schedule = self.reporter, self.state.images, self.course.schedule
        if self._saved_at != images:
            self._save()
        if self._wait_for_checkpoint() and self.group.is_main:
            prune(self.run_dir, images, self.writer.keep)  # removes old checkpoints that a killed command has left
        if problem := self.group.broadcast_object(str(self._problem or "")):
            raise self._problem or NonFiniteError(problem)  # rank 0's own error also stores the image count
        reporter.console.close()
        if images < schedule.total:
            reporter.line(f"Interrupted at {images:,} images; everything is saved.")
            reporter.line(next_command("train", run_dir=self.run_dir))
            return EXIT_INTERRUPTED
        if self.limit is not None and images < (planned := self.limit.configured.total) / 2:
            reporter.line(f"{planned:,} images were planned. If other programs use the CPU, threads=1 may be faster.")
        if self.pictures is not None:
            self.pictures.write_film()
        reporter.finish(ending(self.run_dir, images) if self.group.is_main else [], images)
        return 0


def updates_were_taken(state: State, most_skipped: int) -> bool:
    """Return False if G or D skipped the last update; raises NonFiniteError after `most_skipped` skips in a row."""
    for name, trainable in (("G", state.g), ("D", state.d)):
        skipped = int(trainable.skipped)  # waits for the GPU
        if skipped >= most_skipped:
            raise NonFiniteError(f"the gradients of the last {skipped} updates of {name}")
        if skipped:
            return False
    return True
