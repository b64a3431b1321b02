"""Two runs at once, jumping clocks, TensorBoard after resumes."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pggan.cli.main import main
from pggan.core.errors import UserError
from pggan.run import run_dir as run_dir_module
from pggan.run import train
from pggan.run.inspect import facts_of_run
from pggan.run.run_dir import lock_run_dir
from tests.launch import one_process
from tests.launch.one_process import Forked
from tests.processes import CONTEXT

TICKS = [32, 64, 96, 128, 160]


def steps_of(run_dir: Path, tag: str = "G/loss") -> list[int]:
    return [event.step for event in EventAccumulator(str(run_dir)).Reload().Scalars(tag)]


def stop_at(after_step, images: int) -> None:
    after_step(lambda state: state.images == images and os.kill(os.getpid(), signal.SIGTERM))


# ---- the lock --------------------------------------------------------------------------------------------


def test_a_lock_file_that_the_run_before_removes_is_no_lock(tmp_path, monkeypatch):
    def remove_and_lock(descriptor: int) -> bool:
        (tmp_path / ".lock").unlink()
        return True

    monkeypatch.setattr(run_dir_module, "try_lock", remove_and_lock)
    with pytest.raises(UserError, match="in use by another process"), lock_run_dir(tmp_path):
        pass


def test_of_two_processes_the_second_is_refused_and_a_killed_first_leaves_no_lock(tiny_overrides, tmp_path, capsys):
    run_dir = tmp_path / "run"
    arguments = [*tiny_overrides, f"run_dir={run_dir}", "schedule.total_images=1000000"]
    first = Forked(CONTEXT, one_process.run, ["train", *arguments], str(tmp_path / "output.txt"), {}, str(tmp_path))
    try:
        while not list((run_dir / "checkpoints").glob("0*")):
            assert first.poll() is None
            time.sleep(0.05)
        assert main(["train", *arguments]) == 2
        shown = capsys.readouterr().err
        assert f"process {first.pid} on {socket.gethostname()}, started {time.strftime('%Y')}" in shown
        assert "choose another run_dir=" in shown
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert f"process {first.pid} on" in (run_dir / ".lock").read_text()  # what a killed process leaves
    newest = facts_of_run(run_dir)["images"]
    assert main(["train", *tiny_overrides, f"run_dir={run_dir}", f"schedule.total_images={newest + 8}"]) == 0
    assert f"Resuming from {newest:,} images" in (run_dir / "train.log").read_text()
    assert not (run_dir / ".lock").exists()


# ---- clocks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-86400, 3600])
def test_a_clock_that_jumps_changes_neither_states_nor_times_left(tiny_config, tmp_path, monkeypatch, after_step, jump):
    """Between two runs, and once more in the middle of the second."""
    now, offset = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: now() + offset[0])
    config = tiny_config(f"run_dir={tmp_path}", "checkpoint.every_minutes=1")
    stop_at(after_step, 72)
    train.run(config)
    offset[0] = jump

    def jump_back(state) -> None:
        if state.images == 120:
            offset[0] = 0.0

    after_step(jump_back)
    assert train.run(config) == 0
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["images"] for line in metrics] == TICKS
    assert all(0 <= line["eta_seconds"] < 600 and line["images_per_second"] > 0 for line in metrics)
    # An hour on the system's clock is no reason for a checkpoint: those of every 64 images, and the last.
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["000000128", "000000160"]


def test_checkpoints_come_after_minutes_too(tiny_config, tmp_path, monkeypatch, after_step):
    """Counted on the clock that never jumps, which runs ahead by ten minutes at 40 images; saved a step later."""
    monotonic, ahead = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + ahead[0])

    def pass_time(state) -> None:
        ahead[0] += 600 * (state.images == 40)

    after_step(pass_time)
    intervals = ("checkpoint.every_images=100000", "checkpoint.keep=9")
    train.run(tiny_config(f"run_dir={tmp_path / 'a'}", *intervals, "checkpoint.every_minutes=9"))
    assert [path.name for path in sorted((tmp_path / "a" / "checkpoints").iterdir())] == ["000000048", "000000160"]
    train.run(tiny_config(f"run_dir={tmp_path / 'b'}", *intervals, "checkpoint.every_minutes=null"))
    assert [path.name for path in sorted((tmp_path / "b" / "checkpoints").iterdir())] == ["000000160"]


# ---- what is reported ------------------------------------------------------------------------------------


def test_no_point_comes_twice_after_any_number_of_resumes(tiny_config, tmp_path, after_step):
    """Stops at which the newest checkpoint is older than the newest points, as after a kill."""
    config = tiny_config(f"run_dir={tmp_path}", "checkpoint.every_images=64", "monitor.grid_images=32")

    def die(state, at: int) -> None:
        if state.images == at:
            raise RuntimeError("killed")

    for at in (8, 40, 104, 112, 152):
        after_step(lambda state, at=at: die(state, at))
        with pytest.raises(RuntimeError, match="killed"):
            train.run(config)
    after_step(lambda state: None)
    train.run(config)
    assert steps_of(tmp_path) == TICKS
    board = EventAccumulator(str(tmp_path), size_guidance={"images": 0}).Reload()
    for tag in ("images/fakes", "images/averaged_fakes", "images/reals"):
        assert [event.step for event in board.Images(tag)] == [0, *TICKS]
    assert [event.step for event in board.Images("images/final_reals")] == [0]
    metrics = [json.loads(line)["images"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert metrics == TICKS
