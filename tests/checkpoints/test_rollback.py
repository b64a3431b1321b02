"""How often a run is rolled back before it is given up."""

import re

import pytest
import torch

from pggan.checkpoints.read import newest_checkpoint
from pggan.checkpoints.rollback import MAX_ROLLBACKS, Rollback
from pggan.checkpoints.write import NonFiniteError
from pggan.core.errors import UserError
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.reducer import GradientReducer
from pggan.optim.state import new_state
from tests.definitions import ADAM

CPU = torch.device("cpu")


def test_a_run_that_fails_at_one_position_after_another_is_given_up_too(finished_run):
    checkpoint, _ = newest_checkpoint(finished_run)
    state, problem = new_state(checkpoint.architecture, ADAM, 0, CPU), NonFiniteError("a gradient")
    rollback = Rollback(finished_run, 3, ProcessGroup.single_process(CPU))
    for number in range(1, MAX_ROLLBACKS + 1):
        state.images = 160 + 8 * number
        assert "Rolling back to the checkpoint of 160 images" in rollback.roll_back(state, GradientReducer(), problem)
        assert state.images == 160
    state.images = 1600
    with pytest.raises(UserError, match=re.escape("at 1,600 images again, after rolling back to 160: a gradient.")):
        rollback.roll_back(state, GradientReducer(), problem)
