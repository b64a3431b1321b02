"""Two runs at once, jumping clocks, other hosts, few file descriptors, TensorBoard after resumes."""

import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pggan.cli.main import main
from pggan.core.errors import UserError
from pggan.run import run_dir as run_dir_module
from pggan.run import train
from pggan.run.inspect import facts_of_run
from pggan.run.run_dir import lock_run_dir
from tests.launch.conftest import Forked
from tests.processes import in_processes, values_of

TICKS = [32, 64, 96, 128, 160]
NEW_MOUNTS = 0x20000  # CLONE_NEWNS
SHORT = ["schedule.final_resolution=4", "schedule.total_images=16"]  # two steps


def steps_of(run_dir: Path, tag: str = "G/loss") -> list[int]:
    return [event.step for event in EventAccumulator(str(run_dir)).Reload().Scalars(tag)]


def stop_at(after_step, images: int) -> None:
    after_step(lambda state: state.images == images and os.kill(os.getpid(), signal.SIGTERM))


# ---- the lock --------------------------------------------------------------------------------------------


@pytest.mark.fault(31)
def test_a_lock_file_that_the_run_before_removes_is_no_lock(tmp_path, monkeypatch):
    def remove_and_lock(descriptor: int) -> bool:
        (tmp_path / ".lock").unlink()
        return True

    monkeypatch.setattr(run_dir_module, "try_lock", remove_and_lock)
    with pytest.raises(UserError, match="in use by another process"), lock_run_dir(tmp_path):
        pass


@pytest.mark.fault(31)
def test_of_two_processes_the_second_is_refused_and_a_killed_first_leaves_no_lock(tiny_overrides, tmp_path, capsys):
    run_dir = tmp_path / "run"
    arguments = [*tiny_overrides, f"run_dir={run_dir}", "schedule.total_images=1000000"]
    first = Forked(tmp_path / "output.txt", ["train", *arguments], {})
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
    assert json.loads((run_dir / ".lock").read_text())["pid"] == first.pid  # what a killed process leaves
    newest = facts_of_run(run_dir)["images"]
    assert main(["train", *tiny_overrides, f"run_dir={run_dir}", f"schedule.total_images={newest + 8}"]) == 0
    assert f"Resuming from {newest:,} images" in (run_dir / "train.log").read_text()
    assert not (run_dir / ".lock").exists()


@pytest.mark.fault(33)
def test_a_run_resumes_on_another_host(finished_run, tiny_config, tmp_path, monkeypatch, after_step):
    stop_at(after_step, 72)
    train.run(tiny_config(f"run_dir={tmp_path / 'moved'}"))
    (tmp_path / "moved" / ".lock").write_text('{"pid": 1, "host": "gone", "started": "yesterday"}')
    # TensorBoard reads event files of one second in the order of their hosts' names.
    monkeypatch.setattr(socket, "gethostname", lambda: "zz-another-node")
    stop_at(after_step, -1)
    assert train.run(tiny_config(f"run_dir={tmp_path / 'moved'}")) == 0
    assert facts_of_run(tmp_path / "moved")["state_sha256"] == facts_of_run(finished_run)["state_sha256"]
    assert steps_of(tmp_path / "moved") == TICKS


# ---- clocks ----------------------------------------------------------------------------------------------


@pytest.mark.fault(32)
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


@pytest.mark.fault(32)
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


def test_milestones_stay_beyond_the_newest(tiny_config, tmp_path):
    train.run(tiny_config(f"run_dir={tmp_path}", "checkpoint.milestones=[40,100]", "checkpoint.keep=1"))
    kept = [path.name for path in sorted((tmp_path / "checkpoints").iterdir())]
    assert kept == ["000000040", "000000104", "000000160"]


# ---- what is reported ------------------------------------------------------------------------------------


@pytest.mark.fault(36)
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
    for tag in ("images/fakes", "images/averaged_fakes"):
        assert [event.step for event in board.Images(tag)] == [0, *TICKS]
    assert [event.step for event in board.Images("images/final_reals")] == [0]
    assert [event.step for event in board.Images("images/reals")] == [1, 33, 97]  # the first image of each level
    metrics = [json.loads(line)["images"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert metrics == TICKS


@pytest.mark.fault(34)
def test_few_file_descriptors_are_enough(tiny_overrides, tmp_path):
    words = ["train", *tiny_overrides, *SHORT, f"run_dir={tmp_path}"]
    assert values_of(in_processes(1, with_few_descriptors, words)) == [0]


def alone(words: list[str]) -> int:
    """The exit code of a command that no launcher has started."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    return main(words)


def with_few_descriptors(words: list[str]) -> int:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    return alone(words)


@pytest.mark.fault(19)
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_little_shared_memory_is_enough(tiny_overrides, tmp_path):
    """Data comes from memory-mapped files, not through shared memory between processes."""
    words = ["train", *tiny_overrides, *SHORT, f"run_dir={tmp_path}"]
    code, size = values_of(in_processes(1, with_little_shared_memory, words))[0]
    if code is None:
        pytest.skip("mounting is not allowed here")
    assert (code, size) == (0, 4096)


def with_little_shared_memory(words: list[str]) -> tuple[int | None, int]:
    """The exit code of a command, None where mounting is not allowed; and the bytes of /dev/shm."""
    refused = ctypes.CDLL(None).unshare(NEW_MOUNTS)
    for mount in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", "size=4k", "tmpfs", "/dev/shm"]):
        refused = refused or subprocess.run(["mount", *mount], check=False, capture_output=True).returncode
    if refused:
        return None, 0
    facts = os.statvfs("/dev/shm")
    return alone(words), facts.f_blocks * facts.f_frsize


@pytest.mark.fault(35)
@pytest.mark.fault(17)
@pytest.mark.fault(18)
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at /proc")
def test_training_has_no_other_process_that_could_die_hang_or_be_left_behind(tiny_config, tmp_path, after_step):
    """Data comes from memory-mapped files: there are no loader workers to lose."""

    def children() -> set[str]:
        """Process numbers; several readings, as the kernel leaves some out when one ends meanwhile."""
        found: set[str] = set()
        for task in [task for _ in range(10) for task in Path("/proc/self/task").iterdir()]:
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                found.update((task / "children").read_text().split())
        return found

    seen: set[str] = set()
    before = children()
    after_step(lambda state: seen.update(children()))
    train.run(tiny_config(f"run_dir={tmp_path}"))
    assert seen <= before
