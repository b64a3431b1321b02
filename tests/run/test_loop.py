"""Events of a run: what is due after a step, and opening the run again after numbers or memory failed."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

from pggan.checkpoints.write import NonFiniteError, prune
from pggan.core.errors import StepOutOfMemory, UserError
from pggan.run import pictures, train


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


@pytest.mark.slow
def test_pictures_for_which_there_is_no_memory_are_left_out(tiny_config, tmp_path, monkeypatch, capsys):
    """Other programs may take a device's memory at any time; what a step needs, this one holds already."""

    def draw_seeds(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 3 GiB.")

    monkeypatch.setattr(pictures, "draw_seeds", draw_seeds)
    assert train.run(tiny_config(f"run_dir={tmp_path}", "monitor.grid_images=96")) == 0
    said = (tmp_path / "train.log").read_text()
    for what in ("pictures", "measure of diversity", "grid of the timelapse", "Projector"):
        assert re.search(rf"No {what} at [\d,]+ images: CUDA out of memory. Tried to allocate 2.00 GiB\.\n", said)
    assert [*(tmp_path / "checkpoints").iterdir()]


@pytest.mark.slow
def test_after_a_rollback_all_is_as_in_a_run_in_which_nothing_had_been(tiny_config, tmp_path, bad_gradients):
    """A milestone at 80 and a checkpoint due at 96 were put off while updates were being skipped: after rolling back to
    64, neither is made up for at 72; no mean has numbers of the steps taken back; the interval counts from 64; the
    diversity at 96, which was measured before the rollback at 104, is measured again.
    """
    settings = ["checkpoint.every_images=32", "checkpoint.keep=99", "checkpoint.milestones=[80]"]
    settings += ["checkpoint.roll_back_after=5", "monitor.tick_images=32"]
    train.run(tiny_config(*settings, f"run_dir={tmp_path / 'whole'}"))
    bad_gradients(72, 104)
    train.run(tiny_config(*settings, f"run_dir={tmp_path / 'bad'}"))
    assert "Rolling back to the checkpoint of 64 images" in (tmp_path / "bad" / "train.log").read_text()

    def left(run_dir: Path) -> list[object]:
        saved = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
        prune(run_dir, newest=160, keep=1)
        milestones = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
        ticks = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        names = ("images", "D/loss", "G/skipped", "G/gradient_norm_max", "diversity", "alarms")
        return [saved, milestones, *([tick.get(name) for name in names] for tick in ticks)]

    whole, bad = left(tmp_path / "whole"), left(tmp_path / "bad")
    assert whole == bad
    assert whole[:2] == [[f"{count:09d}" for count in (32, 64, 80, 96, 128, 160)], ["000000080", "000000160"]]
    assert [tick[4] is not None for tick in bad[2:]] == [False, False, True, False, True]


def test_a_run_that_fails_at_one_position_after_another_is_given_up_too(tiny_config, tmp_path, after_step):
    """Three times it is opened again, with what is left of it."""
    failed: list[int] = []

    def fail(state) -> None:
        if state.images > 64 and state.images not in failed:
            failed.append(state.images)
            raise NonFiniteError("a weight")

    after_step(fail)
    with pytest.raises(UserError, match="at 96 images again, after rolling back to 64: a weight"):
        train.run(tiny_config(f"run_dir={tmp_path}"))
    assert failed == [72, 80, 88, 96]


def test_where_memory_no_longer_suffices_the_run_goes_on_with_half_of_the_images_per_pass(
    tiny_config, tmp_path, after_step
):
    """At the first step, before there is a checkpoint, and once more later."""
    failed: list[int] = []

    def fail(state) -> None:
        if state.images in (8, 80) and state.images not in failed:
            failed.append(state.images)
            raise StepOutOfMemory("Out of memory.", "Use less.", smaller=4)

    after_step(fail)
    assert train.run(tiny_config(f"run_dir={tmp_path / 'run'}", "resume=never")) == 0
    assert failed == [8, 80]
    log = (tmp_path / "run" / "train.log").read_text()
    assert log.count("Opening the run again, with 4 in each") == 2
    assert log.count("Resuming from 64 images") == 1
    assert "micro_batch_size: 4" in (tmp_path / "run" / "config.yaml").read_text()

    def fail_for_good(state) -> None:
        raise StepOutOfMemory("Out of memory.", "Use less.")

    after_step(fail_for_good)
    with pytest.raises(StepOutOfMemory, match="Use less"):
        train.run(tiny_config(f"run_dir={tmp_path / 'other'}"))


def test_a_run_whose_hours_are_over_before_its_networks_are_grown_says_so(tiny_config, tmp_path):
    assert train.run(tiny_config("hours=1e-6", "monitor.tick_images=8", f"run_dir={tmp_path}")) == 0
    assert "before 16x16 was faded in: hours=1e-06 were over." in (tmp_path / "train.log").read_text()


@pytest.mark.slow
def test_the_asked_for_steps_of_every_phase_are_recorded(tiny_config, tmp_path):
    """Phases of 4 updates: three are warm-up, and only the fourth is left."""
    short = ["schedule.final_resolution=8", "evaluation.metrics=[]", "monitor.profile_steps=2"]
    assert train.run(tiny_config(f"run_dir={tmp_path}", *short)) == 0
    names = [f"{images:09d}-{phase}" for images, phase in ((0, "4x4-stable"), (32, "8x8-fade"), (64, "8x8-stable"))]
    assert sorted(path.stem for path in (tmp_path / "profile").iterdir()) == names
    events = json.loads((tmp_path / "profile" / f"{names[0]}.json").read_text())["traceEvents"]
    assert any("conv" in str(event.get("name")) for event in events)
