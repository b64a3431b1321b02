"""Events of a run: what is due after a step, and opening the run again after numbers or memory failed."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pggan.checkpoints.write import NonFiniteError
from pggan.core.errors import StepFailed, UserError
from pggan.distributed.process_group import ProcessGroup, RankInfo
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
    assert "Pictures of 96 images are left out: CUDA out of memory. Tried to allocate 2.00 GiB.\n" in said
    assert [*(tmp_path / "checkpoints").iterdir()]


@pytest.mark.slow
def test_after_a_rollback_all_is_as_in_a_run_in_which_nothing_had_been(tiny_config, tmp_path, bad_gradients):
    """A checkpoint due at 96 was put off while updates were being skipped: after rolling back to 64, it is not made up
    for at 72; no mean has numbers of the steps taken back; the interval counts from 64.
    """
    settings = ["checkpoint.every_images=32", "checkpoint.keep=99"]
    settings += ["checkpoint.roll_back_after=5", "monitor.tick_images=32"]
    train.run(tiny_config(*settings, f"run_dir={tmp_path / 'whole'}"))
    bad_gradients(72, 104)
    train.run(tiny_config(*settings, f"run_dir={tmp_path / 'bad'}"))
    assert "Rolling back to the checkpoint of 64 images" in (tmp_path / "bad" / "train.log").read_text()

    def left(run_dir: Path) -> list[object]:
        saved = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
        ticks = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        names = ("images", "D/loss", "G/skipped", "G/gradient_norm_max", "alarms")
        return [saved, *([tick.get(name) for name in names] for tick in ticks)]

    whole, bad = left(tmp_path / "whole"), left(tmp_path / "bad")
    assert whole == bad
    assert whole[0] == [f"{count:09d}" for count in (32, 64, 96, 128, 160)]


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
            raise StepFailed("Out of memory.", "Use less.", {"micro_batch_size": 4})

    after_step(fail)
    assert train.run(tiny_config(f"run_dir={tmp_path / 'run'}", "resume=never")) == 0
    assert failed == [8, 80]
    log = (tmp_path / "run" / "train.log").read_text()
    assert log.count("The run continues with compute.micro_batch_size=4") == 2
    assert log.count("Resuming from 64 images") == 1
    assert "micro_batch_size: 4" in (tmp_path / "run" / "config.yaml").read_text()

    def fail_to_capture(state) -> None:
        if not failed[2:]:
            failed.append(state.images)
            raise StepFailed("CUDA can't capture a step.", "Set it.", {"cuda_graphs": "off"})

    after_step(fail_to_capture)
    assert train.run(tiny_config(f"run_dir={tmp_path / 'eager'}")) == 0
    assert "cuda_graphs: 'off'" in (tmp_path / "eager" / "config.yaml").read_text()

    def fail_for_good(state) -> None:
        raise StepFailed("Out of memory.", "Use less.")

    after_step(fail_for_good)
    with pytest.raises(StepFailed, match="Use less"):
        train.run(tiny_config(f"run_dir={tmp_path / 'other'}"))


def test_ranks_restart_with_what_a_step_that_failed_needs(tiny_config, tmp_path, monkeypatch):
    """Without CUDA graphs after a capture that failed, and still with the smaller micro-batches of a restart before."""
    config, info, seen = tiny_config(f"run_dir={tmp_path}"), RankInfo(1, 2, 1, 2), []
    monkeypatch.setattr(train, "run_distributed", lambda info, devices, run: seen.append(run.args[0]) or 0)
    for compute in ({"micro_batch_size": 4}, {"cuda_graphs": "off"}):
        group, run = ProcessGroup(info, torch.device("cpu"), None), SimpleNamespace(run_dir=tmp_path)
        with pytest.raises(StepFailed):
            train.opened_again(config, group, run, StepFailed("It failed.", "Set it.", compute), [])
        train.join_ranks(config, info, None)
        config = seen[-1]
    assert (config.compute.micro_batch_size, config.compute.cuda_graphs) == (4, "off")
