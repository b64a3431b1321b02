"""What to do when numbers stop being finite: go back to the last checkpoint, once per place, then give up."""

from pathlib import Path

from pggan.checkpoints.broadcast import share_kept, share_state
from pggan.checkpoints.read import Checkpoint, newest_checkpoint
from pggan.checkpoints.write import NotFinite
from pggan.core.errors import UserError
from pggan.distributed.process_group import World
from pggan.training.gradients.reducer import Exchange
from pggan.training.state import State

MOST_RETURNS = 3  # by one process: a run that needs more is not getting anywhere

REMEDY = (
    "Lower schedule.learning_rate_g and schedule.learning_rate_d, or raise the weight of the gradient penalty "
    "(loss.*), and give the command again: it goes on from the last checkpoint."
)


class Rollback:
    """Counts updates that had to be skipped, and takes a state back to the last checkpoint when they don't end.

    The same images and random numbers come again after going back.  So a fault of the machine is gone then, and a
    fault of the recipe comes back at the same place.
    """

    def __init__(self, run_dir: Path, patience: int, world: World) -> None:
        """Args: patience: skipped updates in a row after which `check` raises."""
        self.run_dir = run_dir
        self.patience = patience
        self.world = world
        self.failed_at = -1
        self.returns = 0

    def check(self, state: State) -> bool:
        """Whether the last update of both players was taken; waits for the device.

        Raises NotFinite after too many skipped ones in a row.
        """
        for name, player in (("G", state.g), ("D", state.d)):
            skipped = int(player.skipped)
            if skipped >= self.patience:
                raise NotFinite(f"the gradients of the last {skipped} updates of {name}")
            if skipped:
                return False
        return True

    def go_back(self, state: State, exchange: Exchange, problem: NotFinite) -> str:
        """Put `state` back to the last checkpoint; returns what to say about it.

        Raises UserError when there is none, or when this place, or too many places, have failed before.
        """
        place, line, checkpoint = problem.images or state.images, "", None
        with self.world.together():
            if self.world.is_first:
                line, checkpoint = self._restore(state, place, problem)
        self.failed_at = place
        self.returns += 1
        share_state(state, self.world)
        share_kept(checkpoint, exchange, self.world)
        for player in (state.g, state.d):
            player.skipped.zero_()
        return line

    def _restore(self, state: State, place: int, problem: NotFinite) -> tuple[str, Checkpoint]:
        checkpoint, _ = newest_checkpoint(self.run_dir)
        if checkpoint is None:
            raise UserError(f"Not finite at {place:,} images, before the first checkpoint: {problem}.", REMEDY)
        if place <= self.failed_at or self.returns == MOST_RETURNS:
            raise UserError(
                f"Not finite at {place:,} images again, after going back to {checkpoint.images:,}: {problem}.", REMEDY
            )
        checkpoint.restore(state)
        line = (
            f"Not finite at {place:,} images: {problem}. Going back to the checkpoint of {checkpoint.images:,} images. "
            "If this happens here again, training ends: then lower the learning rates."
        )
        return line, checkpoint
