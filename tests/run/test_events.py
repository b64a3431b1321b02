"""What is due between two steps, and what a rollback resets."""

import math
from pathlib import Path

import pytest

from pggan.checkpoints.write import prune
from pggan.core.intervals import lies_between
from pggan.run import train


@pytest.fixture
def bad_gradients(after_step):
    """Make G's gradients NaN in the steps from one image count to another, the first time that they come."""

    def install(first: int, last: int) -> None:
        hooks, done = [], []

        def watch(state) -> None:
            while hooks:
                hooks.pop().remove()
            if first - 8 <= state.images < last and state.images not in done:
                done.append(state.images)
                parameters = state.g.network.parameters()
                hooks.extend(parameter.register_hook(lambda gradient: gradient * math.nan) for parameter in parameters)

        after_step(watch)

    return install


def test_a_step_reaches_what_lies_after_its_first_image_up_to_its_last():
    assert [lies_between(count, 8, 16) for count in (7, 8, 9, 16, 17)] == [False, False, True, True, False]


def test_after_a_rollback_the_checkpoints_are_those_of_a_run_in_which_nothing_had_been(
    tiny_config, tmp_path, bad_gradients
):
    """A milestone at 80 and a checkpoint due at 96 were put off while updates were being skipped: after going back to
    64, neither may be made up for at 72.
    """
    settings = ["checkpoint.every_images=64", "checkpoint.keep=99", "checkpoint.milestones=[80]"]
    settings += ["checkpoint.roll_back_after=4", "monitor.tick_images=160"]
    train.run(tiny_config(*settings, f"run_dir={tmp_path / 'whole'}"))
    bad_gradients(72, 104)
    train.run(tiny_config(*settings, f"run_dir={tmp_path / 'bad'}"))
    assert "Rolling back to the checkpoint of 64 images" in (tmp_path / "bad" / "train.log").read_text()

    def kept(run_dir: Path) -> list[str]:
        everything = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
        prune(run_dir, newest=160, keep=1)
        return [*everything, "milestones:", *sorted(path.name for path in (run_dir / "checkpoints").iterdir())]

    wanted = [f"{count:09d}" for count in (32, 64, 80, 96, 128, 160)]
    assert kept(tmp_path / "whole") == kept(tmp_path / "bad") == [*wanted, "milestones:", "000000080", "000000160"]
