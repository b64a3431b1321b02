"""Processes of a run that are killed, stopped or told to end, started as people start them; nothing is left behind."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.ranks import Victim, settings_of
from benchmarks.soak import remains, write_data
from pggan.checkpoints.read import checkpoints_of, newest_checkpoint
from pggan.cli.compose import compose, main
from pggan.config import TrainConfig
from pggan.core.validation import validated
from pggan.run.inspect import facts_of_run
from pggan.run.train import run
from tests.processes import in_processes, values_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at /proc"),
]


@pytest.fixture
def victims(tmp_path, monkeypatch):
    """Start runs of two processes; none of their processes may outlive them for more than 10 seconds."""
    write_data(tmp_path / "data")
    monkeypatch.setenv("PGGAN_TEST_RUN", str(tmp_path))  # inherited by everything that they start
    started = []

    def start(name: str, *settings: str) -> Victim:
        started.append(Victim(tmp_path, name, 2, *settings))
        return started[-1]

    yield start
    for victim in started:
        assert victim.process.poll() is not None, victim.log.read_text()
    monkeypatch.delenv("PGGAN_TEST_RUN")
    for _ in range(100):
        if not (left := running_with(f"PGGAN_TEST_RUN={tmp_path}")):
            break
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def running_with(variable: str) -> list[int]:
    """Processes that were started with this in their environment, zombies left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if variable.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:  # gone, or somebody else's
            continue
    return [pid for pid in found if pid != os.getpid()]


def until(victim: Victim, condition) -> None:
    assert victim.wait_for(condition, "a condition"), victim.log.read_text()


def training(victim: Victim, steps: int = 1) -> list[int]:
    """Wait until a new set of processes has taken so many steps; their process ids."""
    until(victim, lambda: victim.steps()[1] >= steps and len(victim.workers()) == 2)
    return victim.workers()


def recovered(victim: Victim, before: list[int]) -> list[int]:
    """Wait until others have taken a step."""
    file, _ = victim.steps()
    until(victim, lambda: len(victim.workers()) == 2 and not set(before) & set(victim.workers()))
    until(victim, lambda: victim.steps()[0] != file)
    known = victim.steps()[1]
    until(victim, lambda: victim.steps()[1] > known)
    return victim.workers()


def log_of(victim: Victim) -> str:
    return (victim.run_dir / "train.log").read_text()


LONGER = (
    *("schedule.total_images=640", "schedule.stable_images=128", "schedule.fade_images=128"),
    "checkpoint.every_images=32",
)


@pytest.fixture
def undisturbed(tmp_path):
    """What a run of two processes leaves; made before the environment of `victims`, in processes that stay."""
    folder = tmp_path / "undisturbed"
    write_data(folder / "data")
    config = validated(TrainConfig, compose("train", settings_of(folder, "run", *LONGER, "devices=cpu")))
    assert values_of(in_processes(2, run, config)) == [0, 0]
    return remains(folder / "run")


@pytest.mark.fault(15)
@pytest.mark.fault(35)
@pytest.mark.fault(36)
def test_killed_processes_come_back_and_the_run_ends_as_if_nothing_had_been(undisturbed, victims):
    """The second before the first checkpoint, then the first, which keeps the store, while it saves."""
    victim = victims("killed", *LONGER)
    until(victim, (victim.run_dir / "metrics.jsonl").exists)
    before = training(victim)
    os.kill(before[1], signal.SIGKILL)
    before = recovered(victim, before)
    until(victim, lambda: list((victim.run_dir / "checkpoints").glob(".partial-*")))
    os.kill(before[0], signal.SIGKILL)
    assert victim.finish() == 0, victim.log.read_text()

    assert remains(victim.run_dir) == undisturbed
    log = log_of(victim)
    assert len(re.findall(r"Lost: process 1 \(pid \d+\) was killed by SIGKILL", log)) == 1
    assert len(re.findall(r"Lost: process 0 \(pid \d+\) was killed by SIGKILL", log)) == 1
    assert log.count("All start again from the last checkpoint") == 2
    # Whoever merely lost the others has nothing to tell.
    for word in ("Traceback", "lost its connection", "Stopped at once", "Error"):
        assert word not in victim.log.read_text()
    steps = [event.step for event in EventAccumulator(str(victim.run_dir)).Reload().Scalars("G/loss")]
    assert steps == list(range(8, 641, 8))
    assert len(list(victim.run_dir.glob("train.log*"))) == 1


@pytest.mark.fault(16)
@pytest.mark.fault(15)
def test_a_stopped_process_is_named_and_replaced_and_when_no_restarts_are_left_the_run_ends(victims):
    victim = victims(
        "stopped", "distributed.heartbeat_timeout_seconds=5", "distributed.max_restarts=1", "schedule.total_images=8000"
    )
    before = training(victim, steps=2)
    os.kill(before[0], signal.SIGSTOP)  # the one that keeps the store, too
    began = time.monotonic()
    until(victim, lambda: "Hung:" in log_of(victim))
    assert time.monotonic() - began < 60
    assert re.search(rf"Hung: process 0 on \S+ \(pid {before[0]}\) has been silent .* last seen at", log_of(victim))
    after = recovered(victim, before)
    os.kill(after[1], signal.SIGKILL)
    assert victim.finish() == 1
    last = victim.log.read_text().splitlines()[-1]
    assert "no restarts are left (workers.restarts). The same command goes on from the last checkpoint" in last
    assert newest_checkpoint(victim.run_dir)[1] == []


@pytest.mark.fault(12)
@pytest.mark.fault(13)
@pytest.mark.fault(35)
def test_signals_to_the_parent_and_its_end_save_and_end_all(victims):
    """The same command after each; the last time the parent is killed, which its processes notice by themselves."""
    settings = ("schedule.total_images=80000", "checkpoint.every_images=160000", "monitor.tick_images=8")

    def goes_on(shown: int) -> Victim:
        victim = victims("told", *settings)
        until(victim, lambda: victim.log.exists() and f"Going on from {shown:,} images" in victim.log.read_text())
        known = victim.steps()[1]
        until(victim, lambda: victim.steps()[1] > known)
        return victim

    def saved(before: int) -> int:
        images = facts_of_run(Path(victim.run_dir))["images"]
        assert images > before
        return images

    victim = victims("told", *settings)
    training(victim)
    victim.process.send_signal(signal.SIGTERM)
    assert victim.finish() == 75
    images = saved(0)
    assert victim.log.read_text().count(f"Interrupted at {images:,} images; all is saved") == 1

    victim = goes_on(images)
    victim.process.send_signal(signal.SIGINT)
    victim.process.send_signal(signal.SIGINT)
    assert victim.finish() == 75
    assert facts_of_run(victim.run_dir)["images"] >= images

    images = facts_of_run(victim.run_dir)["images"]
    victim = goes_on(images)
    workers = victim.workers()
    victim.process.kill()
    victim.process.wait()
    for _ in range(100):
        if not any(Path(f"/proc/{pid}").exists() for pid in workers):
            break
        time.sleep(0.1)
    saved(images)
    assert "Traceback" not in victim.log.read_text()
    assert [path.name for path in checkpoints_of(victim.run_dir) if path.name.startswith(".")] == []


@pytest.mark.fault(29)
def test_a_mistake_is_told_once_and_not_tried_again(victims, tmp_path, capfd):
    """What only the processes themselves can find out."""
    settings = [f"data.path={tmp_path / 'nothing'}", f"run_dir={tmp_path / 'run'}", "devices=cpu:2"]
    assert main(["train", *settings]) == 2
    shown = capfd.readouterr().err
    assert shown.count("Error:") == 1, shown
    assert "Lost" not in shown
