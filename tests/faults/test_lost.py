"""Ranks that are killed, stopped, hung or damaged, and a parent that is killed; nothing is left behind."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from benchmarks.ranks import Victim, command_of, settings_of
from benchmarks.soak import remains, write_data
from pggan.checkpoints import write as saving
from pggan.checkpoints.read import checkpoints_of, newest_checkpoint
from pggan.cli.main import guarded
from pggan.config.train import TrainConfig
from pggan.core.errors import EXIT_INTERRUPTED, EXIT_PEER_LOST, EXIT_USER_ERROR
from pggan.run.inspect import facts_of_run
from pggan.run.train import run
from pggan.training.trainer import Trainer
from tests.composed import train_config
from tests.launch import one_process
from tests.launch.one_process import Forked
from tests.processes import CONTEXT, in_processes, values_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at /proc")]


class ForkedVictim(Victim):
    """A run whose processes are forked from one that has imported everything."""

    def __init__(self, folder: Path, name: str, ranks: int, *more: str) -> None:
        self.run_dir, self.log = folder / name, folder / f"{name}.log"
        words = ["train", *settings_of(folder, name, f"devices=cpu:{ranks}", *more)]
        self.process = Forked(CONTEXT, one_process.run, words, str(self.log), {"TMPDIR": str(folder)}, str(folder))

    def workers(self) -> list[int]:
        """Process ids of those that train, in order of rank: the children that lead a session."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        try:
            pids = [int(pid) for pid in children.read_text().split()]
            return sorted(pid for pid in pids if os.getsid(pid) == pid and command_of(str(pid)))
        except OSError:  # one has ended
            return []


@pytest.fixture
def victims(tmp_path):
    """Start runs of two ranks; none of their processes may outlive them for more than 10 seconds."""
    write_data(tmp_path / "data")
    started = []

    def start(kind: type[Victim], name: str, *settings: str) -> Victim:
        started.append(kind(tmp_path, name, 2, *settings))
        return started[-1]

    yield start
    for victim in started:
        assert victim.process.poll() is not None, victim.log.read_text()
    for _ in range(100):
        if not (left := running_in(tmp_path)):
            break
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def running_in(folder: Path) -> list[int]:
    """Processes whose current directory is `folder`; zombies have none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if path.readlink() == folder:
                found.append(int(path.parent.name))
        except OSError:  # gone, or somebody else's
            continue
    return found


def until(victim: Victim, condition) -> None:
    assert victim.wait_for(condition, "a condition"), victim.log.read_text()


def training(victim: Victim, steps: int = 1) -> list[int]:
    """Wait until new ranks have taken so many steps; their process ids."""
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


LONGER = (
    *("schedule.total_images=320", "schedule.stable_images=64", "schedule.fade_images=64"),
    "checkpoint.every_images=16",
)


def config_of(folder: Path, name: str) -> TrainConfig:
    return train_config(*settings_of(folder, name, *LONGER, "devices=cpu"))


@pytest.fixture
def undisturbed(tmp_path):
    """What a run of two ranks leaves; made before the environment of `victims`, in processes that stay."""
    folder = tmp_path / "undisturbed"
    write_data(folder / "data")
    assert values_of(in_processes(2, run, config_of(folder, "run"))) == [0, 0]
    return remains(folder / "run")


def test_lost_ranks_come_back_and_the_run_ends_as_if_nothing_had_been(undisturbed, victims, tmp_path):
    """Rank 0, which keeps the store, is stopped before the first checkpoint, and killed while it saves one."""
    victim = victims(
        ForkedVictim, "lost", *LONGER, "distributed.heartbeat_timeout_seconds=10", "distributed.max_restarts=1"
    )
    before = training(victim)
    os.kill(before[0], signal.SIGSTOP)
    before = recovered(victim, before)
    until(victim, lambda: checkpoints_of(victim.run_dir))
    until(victim, lambda: list((victim.run_dir / "checkpoints").glob(".partial-*")))
    os.kill(before[0], signal.SIGKILL)
    assert victim.process.wait(120) == 1
    output = victim.log.read_text()
    assert "no restarts are left (distributed.max_restarts). To resume from" in output.splitlines()[-1]
    for word in ("Traceback", "Stopped at once", "Error"):
        assert word not in output
    assert newest_checkpoint(victim.run_dir)[1] == []

    assert values_of(in_processes(2, run, config_of(tmp_path, "lost"))) == [0, 0]
    assert remains(victim.run_dir) == undisturbed
    assert undisturbed["points"] == list(range(8, 321, 8))
    assert len(list(victim.run_dir.glob("train.log*"))) == 1


def test_ranks_whose_parent_is_killed_save_and_end(victims):
    victim = victims(ForkedVictim, "orphaned", "schedule.total_images=80000", "checkpoint.every_images=160000")
    workers = training(victim)
    victim.process.send_signal(signal.SIGKILL)
    victim.process.wait()
    for _ in range(600):
        if not any(Path(f"/proc/{pid}").exists() for pid in workers):
            break
        time.sleep(0.1)
    assert facts_of_run(victim.run_dir)["images"] > 0
    assert "Traceback" not in victim.log.read_text()
    assert [path.name for path in checkpoints_of(victim.run_dir) if path.name.startswith(".")] == []


# ---- in ranks that are cheap to start --------------------------------------------------------------------


def damage_and_train(config, network):
    """Train as one of two; a bit of a weight of one network flips on rank 1 at 40 images.  The exit code."""
    step = Trainer.step

    def damaged_step(self, *arguments):
        if os.environ["RANK"] == "1" and self.state.images == 40:
            with torch.no_grad():
                next(getattr(self.state, network).network.parameters()).view(torch.int32).view(-1)[0] ^= 1
        return step(self, *arguments)

    Trainer.step = damaged_step
    return guarded(lambda: run(config))


@pytest.mark.parametrize("network", ["g", "d"])
def test_a_run_ends_with_code_2_at_the_next_tick_after_weights_of_either_network_differ(tiny_config, tmp_path, network):
    config = tiny_config(f"run_dir={tmp_path / 'run'}", "devices=cpu")
    assert values_of(in_processes(2, damage_and_train, config, network)) == [EXIT_USER_ERROR] * 2
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(metrics) == 2  # at 64 images they are compared
    assert not (tmp_path / "run" / "checkpoints" / "000000064").exists()


def interrupt_twice_while_saving(config):
    """Train as one of two; rank 0 gets two SIGINT while it saves what comes after 64 images.  The exit code."""
    write = saving.write_checkpoint

    def slow(run_dir, snapshot):
        if snapshot.header["images"] > 64:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)
            time.sleep(600)
        write(run_dir, snapshot)

    saving.write_checkpoint = slow
    return guarded(lambda: run(config))


def test_two_interrupts_while_saving_end_all_ranks_and_leave_the_checkpoint_before_whole(tiny_config, tmp_path):
    config = tiny_config(f"run_dir={tmp_path / 'run'}", "devices=cpu")
    codes = values_of(in_processes(2, interrupt_twice_while_saving, config))
    assert codes == [EXIT_INTERRUPTED, EXIT_PEER_LOST]  # the launcher knows of the signal
    assert facts_of_run(tmp_path / "run")["images"] == 64
