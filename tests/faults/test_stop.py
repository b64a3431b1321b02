"""Stopping at any point and resuming ends in the same bits; signals stop in order."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from pggan.checkpoints import write as saving
from pggan.checkpoints.read import checkpoints_of, open_checkpoint
from pggan.checkpoints.write import write_checkpoint
from pggan.cli.main import guarded, main
from pggan.core.errors import EXIT_INTERRUPTED
from pggan.core.process import StopSignal
from pggan.run import train
from pggan.run.inspect import facts_of_run
from tests.launch.conftest import CONTEXT

# Steps of 8 images over 4x4, 8x8 and 16x16; phases change at 32, 64, 96 and 128; 48 images of data.  At 64 and 128,
# where phases change, a checkpoint is being written.
POINTS = {
    8: "first image",
    24: "last step before a phase change",
    32: "at a phase change, from stable to fade",
    40: "first step after a phase change, mid-fade",
    48: "end of an epoch",
    56: "mid-fade, during the average's ramp-up",
    64: "at a phase change, from fade to stable",
    80: "mid-epoch, between lazy-regularization steps",
    128: "at the last phase change",
    152: "last step but one",
    160: "last image",
}

LOSSES = {
    "wgan_gp": ["loss=wgan_gp", "loss.reg_interval=3"],
    "logistic": ["loss=logistic", "loss.reg_interval=4"],
    "relativistic": ["loss=relativistic", "loss.reg_interval=1"],
}

# Every loss and every precision; of what a checkpoint holds, they share nothing.
COMBINATIONS = [("wgan_gp", "fp32"), ("relativistic", "bf16"), ("logistic", "fp16")]


@pytest.mark.parametrize(("loss", "precision"), COMBINATIONS)
def test_stopping_at_every_kind_of_point_changes_no_bit(
    tiny_config, tmp_path, monkeypatch, after_step, loss, precision
):
    """One run stopped at each of the points in turn, against the states of one that is never stopped.

    Under other losses and precisions at fewer: what they add, intervals and scales, is looked at in the same way.
    """
    points = list(POINTS) if (loss, precision) == COMBINATIONS[0] else [64, 80, 160]
    settings = [*LOSSES[loss], f"precision={precision}", "ema.rampup=0.5", "ema.half_life_images=50"]
    whole = tiny_config(*settings, f"run_dir={tmp_path / 'whole'}", "checkpoint.every_images=8", "checkpoint.keep=99")
    train.run(whole)
    wanted = {int(path.name): open_checkpoint(path).header for path in checkpoints_of(tmp_path / "whole")}
    assert len(wanted) == 20

    waiting, signalled = sorted(points), {64: threading.Event(), 128: threading.Event()}

    def stop(images: int) -> None:
        if waiting and images == waiting[0]:
            waiting.pop(0)
            os.kill(os.getpid(), signal.SIGTERM)

    def stop_while_writing(run_dir, snapshot) -> None:
        stop(snapshot.header["images"])
        if snapshot.header["images"] in signalled:
            signalled[snapshot.header["images"]].set()
        time.sleep(0.05)  # long enough for the main thread to notice
        write_checkpoint(run_dir, snapshot)

    def stop_in_a_step(state) -> None:
        if state.images not in signalled:
            stop(state.images)
        if state.images - 8 in signalled and state.images - 8 in points:  # the thread that writes may be late
            assert signalled[state.images - 8].wait(60)

    after_step(stop_in_a_step)
    monkeypatch.setattr(saving, "write_checkpoint", stop_while_writing)
    halting = tiny_config(*settings, f"run_dir={tmp_path / 'stopped'}")
    for point in points:
        code = train.run(halting)
        assert code == (0 if point == 160 else EXIT_INTERRUPTED)
        facts = facts_of_run(tmp_path / "stopped")
        # Where the checkpoint was being written, training may have taken one more step before it noticed.
        assert facts["images"] == point or (point in (64, 128) and facts["images"] == point + 8)
        assert facts["state_sha256"] == wanted[facts["images"]]["state_sha256"], POINTS[point]
    assert waiting == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP], ids=lambda number: number.name)
def test_the_first_signal_finishes_the_step_saves_and_exits_with_75(
    tiny_overrides, tmp_path, monkeypatch, after_step, number
):
    """Even while another checkpoint, which takes long, is being written."""

    def slow(run_dir, snapshot) -> None:
        time.sleep(0.3)
        write_checkpoint(run_dir, snapshot)

    monkeypatch.setattr(saving, "write_checkpoint", slow)
    after_step(lambda state: state.images == 72 and os.kill(os.getpid(), number))
    assert main(["train", *tiny_overrides, f"run_dir={tmp_path}"]) == 75
    assert [int(path.name) for path in checkpoints_of(tmp_path)] == [64, 72]
    assert facts_of_run(tmp_path)["images"] == 72
    assert "everything is saved" in (tmp_path / "train.log").read_text()


def test_under_nohup_a_closed_terminal_stops_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not interruption.wanted
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_before_training_begins_stops_at_once_and_leaves_nothing(tiny_config, tmp_path, capsys):
    config = tiny_config(f"run_dir={tmp_path / 'run'}")
    assert guarded(lambda: train.run(config, lambda _: os.kill(os.getpid(), signal.SIGTERM))) == 75
    assert not (tmp_path / "run").exists()
    assert "Stopped at once. There is no checkpoint yet. The same command starts the run" in capsys.readouterr().err


def save_slowly(words: list[str], errors: str) -> None:
    """A command whose checkpoints beyond 64 images take minutes, and which notes a signal in a file."""
    write, handle = saving.write_checkpoint, StopSignal._handle
    signalled = Path(errors).with_name("signalled")

    def slow(run_dir, snapshot) -> None:
        if snapshot.header["images"] > 64:
            (run_dir / "checkpoints" / ".partial-000000128").mkdir()
            (run_dir / "saving").touch()
            time.sleep(600)
        write(run_dir, snapshot)

    def noted(*arguments) -> None:
        signalled.touch()
        handle(*arguments)

    StopSignal._handle = noted
    saving.write_checkpoint = slow
    with open(errors, "w", buffering=1) as file:
        sys.stderr = file
        sys.exit(main(words))


def test_two_interrupts_while_saving_leave_at_once_and_the_checkpoint_before_whole(tiny_overrides, tmp_path):
    run_dir, said = tmp_path / "run", tmp_path / "errors.txt"
    process = CONTEXT.Process(target=save_slowly, args=(["train", *tiny_overrides, f"run_dir={run_dir}"], str(said)))
    process.start()
    while not (run_dir / "saving").exists():
        assert process.exitcode is None, said.read_text()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    while not (tmp_path / "signalled").exists():  # two pending signals of one kind would arrive as one
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)  # a scheduler that repeats itself is no reason to lose the state
    time.sleep(0.5)
    assert process.exitcode is None  # it waits for the checkpoint
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    errors = said.read_text()
    assert process.exitcode == 75, errors
    assert f"Stopped at once. To resume from 64 images: pggan train run_dir={run_dir}" in errors
    assert facts_of_run(run_dir)["images"] == 64
    (run_dir / "samples" / ".partial-sample-001.webp").touch()  # of another command, which still draws
    assert main(["train", *tiny_overrides, f"run_dir={run_dir}"]) == 0
    assert [path.name for path in run_dir.rglob(".partial-*")] == [".partial-sample-001.webp"]
