"""Rollback to the last checkpoint when numbers stop being finite: once per position, then training gives up."""

from pathlib import Path

from pggan.checkpoints.read import newest_checkpoint
from pggan.checkpoints.resume import broadcast_state
from pggan.checkpoints.write import NonFiniteError
from pggan.core.errors import UserError
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.reducer import GradientReducer
from pggan.optim.state import State

MAX_ROLLBACKS = 3  # of one process: a run that needs more has diverged
REMEDY = (
    "Lower schedule.learning_rate_g and schedule.learning_rate_d, or raise the weight of the gradient penalty "
    "(loss.*), and give the command again: it resumes from the last checkpoint."
)


class Rollback:
    """Counts skipped updates, and takes a state back to the last checkpoint when they don't end.

    The same images and random numbers come again after a rollback.  So a fault of the machine is gone then, and a
    fault of the recipe comes back at the same position.
    """

    def __init__(self, run_dir: Path, max_skipped: int, group: ProcessGroup) -> None:
        """Args: max_skipped: skipped updates in a row after which `check` raises."""
        self.run_dir, self.max_skipped, self.group = run_dir, max_skipped, group
        self.failed_at = -1
        self.rollbacks = 0

    def check(self, state: State) -> bool:
        """Whether the last updates were taken; waits for the device; raises NonFiniteError after too many skipped."""
        for name, trainable in (("G", state.g), ("D", state.d)):
            skipped = int(trainable.skipped)
            if skipped >= self.max_skipped:
                raise NonFiniteError(f"the gradients of the last {skipped} updates of {name}")
            if skipped:
                return False
        return True

    def roll_back(self, state: State, reducer: GradientReducer, problem: NonFiniteError) -> str:
        """Put `state` back to the last checkpoint; returns a line to log.

        Raises UserError when there is none, or when this position, or too many positions, have failed before.
        """
        position, checkpoint = problem.images or state.images, None
        with self.group.collective_errors():
            if self.group.is_main:
                checkpoint, _ = newest_checkpoint(self.run_dir)
                where = f"Numbers were NaN or infinite at {position:,} images"
                if checkpoint is None:
                    raise UserError(f"{where}, before the first checkpoint: {problem}.", REMEDY)
                if position <= self.failed_at or self.rollbacks == MAX_ROLLBACKS:
                    raise UserError(f"{where} again, after rolling back to {checkpoint.images:,}: {problem}.", REMEDY)
                checkpoint.restore(state)
        self.failed_at = position
        self.rollbacks += 1
        broadcast_state(state, reducer, checkpoint, self.group)
        for trainable in (state.g, state.d):
            trainable.skipped.zero_()
        return (
            f"Numbers were NaN or infinite at {position:,} images: {problem}. Rolling back to the checkpoint of "
            f"{state.images:,} images. If this happens here again, training ends: then lower the learning rates."
        )
