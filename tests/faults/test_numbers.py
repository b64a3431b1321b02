"""Gradients and weights that are not finite: skipped, counted, rolled back from, and never saved."""

import math
import time
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils._python_dispatch import TorchDispatchMode

from pggan.checkpoints import write as saving
from pggan.checkpoints.read import NETWORKS, checkpoints_of, open_checkpoint
from pggan.checkpoints.write import require_finite
from pggan.cli.main import main
from pggan.core.errors import UserError
from pggan.run import train
from pggan.run.inspect import facts_of_run
from pggan.run.loop import Run
from pggan.run.summary import records_of
from pggan.training.trainer import Trainer
from tests.processes import free_ports, in_processes, set_port, values_of


@pytest.fixture
def poison(after_step):
    """Make the gradients of a trainable not finite in the steps from one image count to another, a number of times."""

    def install(trainable: str, first: int, last: int, *, times: int = 1, value: float = math.nan) -> list[int]:
        hooks: list = []
        poisoned: list[int] = []

        def watch(state) -> None:
            for hook in hooks:
                hook.remove()
            hooks.clear()
            if first - 8 <= state.images < last and poisoned.count(state.images) < times:
                poisoned.append(state.images)
                parameters = getattr(state, trainable.lower()).network.parameters()
                hooks.extend(parameter.register_hook(lambda gradient: gradient * value) for parameter in parameters)

        after_step(watch)
        return poisoned

    return install


def require_finite_weights(run_dir: Path) -> None:
    for directory in checkpoints_of(run_dir):
        checkpoint = open_checkpoint(directory)
        require_finite({network: checkpoint.load(network) for network in NETWORKS})


@pytest.mark.parametrize(("trainable", "value"), [("G", math.nan), ("D", math.inf)])
def test_one_bad_gradient_skips_its_update_and_is_counted(tiny_config, tmp_path, poison, trainable, value):
    poison(trainable, 48, 48, value=value)
    assert train.run(tiny_config(f"run_dir={tmp_path}")) == 0
    counts = {line["images"]: line[f"{trainable}/skipped"] for line in records_of(tmp_path)}
    assert counts == {32: 0, 64: 1, 96: 0, 128: 0, 160: 0}
    board = EventAccumulator(str(tmp_path)).Reload()
    assert [event.value for event in board.Scalars(f"{trainable}/skipped")] == [0, 1, 0, 0, 0]
    assert f"Skipped 1 updates of {trainable}" in (tmp_path / "train.log").read_text()
    require_finite_weights(tmp_path)


def test_a_fault_of_the_machine_is_gone_after_a_rollback(tiny_config, tmp_path, poison):
    """Bad from 72 images to the tick at 96, the first time only: back to 64, and then as if nothing had been.

    A checkpoint that was due at 96, and put off while updates were being skipped, is not made up for at 72.
    """
    settings = ("monitor.tick_images=16", "checkpoint.roll_back_after=3", "checkpoint.every_images=32")
    settings += ("checkpoint.keep=9",)
    train.run(tiny_config(*settings, f"run_dir={tmp_path / 'whole'}"))
    poison("G", 72, 96)
    assert train.run(tiny_config(*settings, f"run_dir={tmp_path / 'bad'}")) == 0
    log = (tmp_path / "bad" / "train.log").read_text()
    assert log.count("Training rolls back to the checkpoint of 64 images") == 1
    left = []
    for run_dir in (tmp_path / "whole", tmp_path / "bad"):
        names = ("images", "D/loss", "G/skipped", "G/gradient_norm_max", "alarms")
        means = [[line.get(name) for name in names] for line in records_of(run_dir)]  # without steps that were undone
        left.append([means, [path.name for path in checkpoints_of(run_dir)], facts_of_run(run_dir)["state_sha256"]])
    assert left[0] == left[1]
    assert [int(name) for name in left[0][1]] == [32, 64, 96, 128, 160]
    ticks = list(range(16, 161, 16))
    board = EventAccumulator(str(tmp_path / "bad")).Reload()
    assert [event.step for event in board.Scalars("G/loss")] == ticks


def test_a_fault_of_the_recipe_ends_the_run_with_a_remedy_and_a_finite_checkpoint(
    tiny_overrides, tmp_path, poison, capsys
):
    poison("D", 72, 10**6, times=10**6)
    arguments = ["checkpoint.roll_back_after=3", "checkpoint.every_images=64", f"run_dir={tmp_path}"]
    assert main(["train", *tiny_overrides, *arguments]) == 2
    shown = capsys.readouterr().err
    assert "A rollback to 64 images did not help" in shown
    assert "Lower schedule.learning_rate_g" in shown
    assert "Traceback" not in shown
    # While updates were being skipped, nothing was saved: the newest checkpoint is the one before the trouble.
    assert facts_of_run(tmp_path)["images"] == 64


def test_trouble_before_the_first_checkpoint_ends_the_run(tiny_config, tmp_path, poison):
    poison("D", 16, 10**6, times=10**6)
    with pytest.raises(UserError, match=r"(?s)before the first checkpoint.*Lower schedule"):
        train.run(tiny_config("checkpoint.roll_back_after=2", f"run_dir={tmp_path}"))
    assert checkpoints_of(tmp_path) == []


@pytest.mark.parametrize(("part", "times"), [("generator_ema", 1), ("g", 2)])
def test_weights_that_are_not_finite_are_never_saved(finished_run, tiny_config, tmp_path, after_step, part, times):
    """Not even at the end: the state is rolled back to the checkpoint before, once; the second time it is given up."""
    spoilt: list[int] = []

    def spoil(state) -> None:
        if state.images == 120 and len(spoilt) < times:
            spoilt.append(state.images)
            network = state.g_ema if part == "generator_ema" else getattr(state, part).network
            with torch.no_grad():
                next(network.parameters()).view(-1)[0] = math.inf

    after_step(spoil)
    config = tiny_config(f"run_dir={tmp_path / 'bad'}", "checkpoint.roll_back_after=99")
    if times == 1:
        assert train.run(config) == 0
        assert facts_of_run(tmp_path / "bad")["state_sha256"] == facts_of_run(finished_run)["state_sha256"]
        log = (tmp_path / "bad" / "train.log").read_text()
        assert "Numbers were NaN or infinite at 128 images: generator_ema/" in log
    else:
        with pytest.raises(UserError, match=r"A rollback to 64 images did not help"):
            train.run(config)
    require_finite_weights(tmp_path / "bad")


def spoil_and_train(spoilt_run, undisturbed, port):
    """Train twice as one of two ranks; the averaged weights of both stop being finite at 72 images, the first time."""
    step, spoilt = Trainer.step, []

    def watched_step(self, *arguments):
        metrics = step(self, *arguments)
        if self.state.images == 72 and not spoilt:
            spoilt.append(72)
            with torch.no_grad():
                next(self.state.g_ema.parameters()).view(-1)[0] = math.inf
        return metrics

    Trainer.step = watched_step
    write = saving.write_checkpoint
    saving.write_checkpoint = lambda *arguments: (time.sleep(0.1), write(*arguments))
    codes = [train.run(spoilt_run)]
    set_port(port)
    return [*codes, train.run(undisturbed)]


def test_two_ranks_roll_back_together_from_what_only_rank_0_has_seen(tiny_config, tmp_path):
    """A checkpoint turns out not to be finite while rank 0 waits for it, before it begins another."""
    settings = ("checkpoint.every_images=8", "monitor.tick_images=160", "schedule.total_images=88")
    configs = [tiny_config(*settings, f"run_dir={tmp_path / name}") for name in ("bad", "whole")]
    assert values_of(in_processes(2, spoil_and_train, *configs, *free_ports(1))) == [[0, 0], [0, 0]]
    assert (tmp_path / "bad" / "train.log").read_text().count("Training rolls back to the checkpoint of 64 images") == 1
    assert facts_of_run(tmp_path / "bad")["state_sha256"] == facts_of_run(tmp_path / "whole")["state_sha256"]


class Synchronizations(TorchDispatchMode):
    """Counts reads of a tensor's value, each of which would wait for a GPU."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_between_ticks_and_grids_nothing_waits_for_the_device(tiny_config, tmp_path, monkeypatch):
    waits: dict[int, int] = {}

    def counting(method, state_of=lambda trainer: trainer.state):
        def call(self, *arguments):
            with Synchronizations() as synchronizations:
                result = method(self, *arguments)
            images = state_of(self).images
            waits[images] = waits.get(images, 0) + synchronizations.count
            return result

        return call

    monkeypatch.setattr(Trainer, "step", counting(Trainer.step))
    monkeypatch.setattr(Run, "after_step", counting(Run.after_step, lambda run: run.state))
    train.run(tiny_config(f"run_dir={tmp_path}"))
    assert {images for images, count in waits.items() if count} <= {32, 64, 80, 96, 128, 160}  # at 80 there are grids
    assert waits[32] > 0


def test_a_spike_of_a_thousand_times_raises_an_alarm_at_the_next_tick(tiny_config, tmp_path, poison):
    poison("D", 104, 104, value=1000.0)
    assert train.run(tiny_config(f"run_dir={tmp_path}", "schedule.total_images=192")) == 0
    board = EventAccumulator(str(tmp_path)).Reload()
    alarms = {event.step: event.value for event in board.Scalars("health/alarms")}
    assert alarms == {32: 0, 64: 0, 96: 0, 128: 1, 160: 0, 192: 0}
    assert (tmp_path / "train.log").read_text().count("Alarm: D/gradient_norm_max is ") == 1
    assert [event.step for event in board.Tensors("alarms/text_summary")] == [128]
