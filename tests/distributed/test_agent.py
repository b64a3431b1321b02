"""The agent of one machine: which ranks it restarts, what it reports, which signals and exit codes it passes on.

Its ranks are small programs that do what a test says, so that an attempt costs a tenth of a second.
"""

import logging
import math
import os
import re
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.utils import store

from pggan.config import DistributedConfig
from pggan.core.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PEER_LOST, EXIT_USER_ERROR
from pggan.distributed import agent as module
from pggan.distributed.agent import POLL_SECONDS, Agent, launch

pytestmark = pytest.mark.slow  # starts processes

RANK_PROGRAM = """#!{python} -IS
import os, signal, sys, time
rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
signal.signal(signal.SIGTERM, lambda *_: os._exit({interrupted}))
signal.signal(signal.SIGUSR1, lambda *_: None)
{code}
"""


class Launched:
    """What a launch reported and returned."""

    def __init__(self, code: int, said: list[str]) -> None:
        self.code, self.said, self.text = code, said, "\n".join(said)


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Launch two ranks that run the given lines of Python; `rank` and `restart` are theirs."""

    def run(code: str, *, restarts: int = 3) -> Launched:
        program = tmp_path / "python"
        program.write_text(RANK_PROGRAM.format(python=sys.executable, interrupted=EXIT_INTERRUPTED, code=code))
        program.chmod(0o755)
        said: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(program))
            patch.chdir(tmp_path)
            values = {"seed": 5}
            config = DistributedConfig(max_restarts=restarts)
            return Launched(launch("train", values, 2, config, threads=7, log=said.append, then=lambda: "Then."), said)

    return run


@pytest.fixture
def watched(monkeypatch):
    """Set when the agent watches its ranks, so that it knows them."""
    event, monitor = threading.Event(), Agent._monitor_workers

    def noted(*arguments):
        event.set()
        return monitor(*arguments)

    monkeypatch.setattr(Agent, "_monitor_workers", noted)
    return event


def test_ranks_that_end_well_are_not_restarted(launched):
    ended = launched("open(f'rank-{rank}', 'x')")
    assert (ended.code, ended.said) == (0, [])


def test_a_rank_gets_its_task_its_parent_and_its_threads_and_the_environment_is_as_before(
    launched, tmp_path, monkeypatch
):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(module, "available_cores", lambda: 7)
    before = dict(os.environ)
    names = "PGGAN_TASK PGGAN_PARENT OMP_NUM_THREADS TORCHINDUCTOR_COMPILE_THREADS WORLD_SIZE LOCAL_WORLD_SIZE"
    code = f"open(f'rank-{{rank}}', 'w').write('|'.join(os.environ[name] for name in '{names}'.split()))"
    assert launched(code).code == 0
    for rank in range(2):
        task, *others = (tmp_path / f"rank-{rank}").read_text().split("|")
        assert task == "command: train\nvalues:\n  seed: 5\n"
        assert others == [str(os.getpid()), "7", "3", "2", "2"]
    assert dict(os.environ) == before


@pytest.mark.fault(15)
def test_all_ranks_restart_when_one_is_killed_and_the_lost_one_is_named(launched):
    ended = launched(
        """
if (restart, rank) == (0, 1):
    os.kill(os.getpid(), signal.SIGKILL)
if (restart, rank) == (1, 0):
    sys.exit(7)
time.sleep(60 if restart < 2 else 0)
"""
    )
    assert ended.code == 0
    assert re.fullmatch(
        r"Lost: rank 1 \(pid \d+\) was killed by SIGKILL\.\n"
        r"All ranks restart from the last checkpoint \(3 restarts left\)\.\n"
        r"Lost: rank 0 \(pid \d+\) ended with exit code 7\.\n"
        r"All ranks restart from the last checkpoint \(2 restarts left\)\.",
        ended.text,
    )


@pytest.mark.fault(15)
def test_a_rank_that_does_not_react_is_killed_when_another_is_lost(launched, tmp_path):
    ended = launched(
        """
if restart == 0 and rank == 0:
    open('pid', 'w').write(str(os.getpid()))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGSTOP)
if restart == 0 and rank == 1:
    while not os.path.exists('pid'):
        time.sleep(0.01)
    sys.exit(1)
"""
    )
    assert ended.code == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_ranks_that_only_lost_the_others_restart_without_a_name(launched):
    """As when a whole machine has gone: the agents there can't tell."""
    ended = launched(f"sys.exit(0 if restart else {EXIT_PEER_LOST})")
    assert (ended.code, ended.said) == (0, ["All ranks restart from the last checkpoint (3 restarts left)."])


@pytest.mark.fault(15)
def test_without_restarts_left_the_command_ends_with_code_1(launched):
    ended = launched("sys.exit(9)", restarts=1)
    assert ended.code == EXIT_FAILED
    assert "(1 restart left)" in ended.text
    assert ended.said[-1] == ("No restarts are left (distributed.max_restarts). Then.")


@pytest.mark.fault(29)
@pytest.mark.parametrize("code", [EXIT_USER_ERROR, EXIT_INTERRUPTED])
def test_a_mistake_and_a_stop_are_not_tried_again(launched, tmp_path, code):
    ended = launched(f"open(f'{{rank}}-{{restart}}', 'x'); sys.exit({code})")
    assert (ended.code, ended.said) == (code, [])
    assert {path.name for path in tmp_path.glob("?-?")} <= {"0-0", "1-0"}


@pytest.mark.fault(12)
def test_a_signal_is_passed_on_to_all_ranks_and_their_exit_code_returned(launched, tmp_path, watched):
    def stop() -> None:
        watched.wait()
        while len(list(tmp_path.glob("rank-*"))) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=stop, daemon=True).start()
    ended = launched("open(f'rank-{rank}', 'x'); time.sleep(60); sys.exit(3)")
    assert (ended.code, ended.said) == (EXIT_INTERRUPTED, [])
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.fault(12)
def test_a_rank_that_a_signal_kills_is_no_loss_and_nothing_is_restarted(launched, tmp_path, watched):
    """A second Ctrl-C may come before a rank handles signals."""

    def stop() -> None:
        watched.wait()
        while len(list(tmp_path.glob("rank-*"))) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR2)

    threading.Thread(target=stop, daemon=True).start()
    ended = launched("open(f'rank-{rank}', 'x'); time.sleep(60)")
    assert ended.code == EXIT_INTERRUPTED
    assert ended.said == ["Stopped at once. Then."]


@pytest.mark.fault(14)
def test_a_rendezvous_host_that_ends_before_this_machine_hears_of_it_is_no_traceback(launched, monkeypatch, caplog):
    def lost(*_: object, **__: object) -> None:
        raise RuntimeError("connection reset")

    monkeypatch.setattr(store, "barrier", lost)
    ended = launched(f"sys.exit({EXIT_INTERRUPTED})")
    assert (ended.code, ended.said) == (EXIT_INTERRUPTED, [])
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


# ---- a machine that vanished -----------------------------------------------------------------------------


class Looks:
    """Stands in for the event that ends the watching of turns: the test says when the watcher looks, once a second."""

    def __init__(self) -> None:
        self.over, self.turn, self.looked = False, threading.Semaphore(0), threading.Semaphore(0)

    def wait(self, seconds: float) -> bool:
        assert seconds == POLL_SECONDS
        self.looked.release()
        self.turn.acquire()
        return self.over

    def set(self) -> None:
        self.over = True
        self.turn.release()

    def look(self, count: int) -> None:
        for _ in range(count):
            assert self.looked.acquire(timeout=60)  # it waits
            self.turn.release()
        assert self.looked.acquire(timeout=60)  # and has looked so often
        self.looked.release()


class Quiet(Agent):
    """An agent without ranks, whose polls are counted by the test."""

    def __init__(self, logs, said, allowed) -> None:
        self.polls, self.allowed, self.logs, self.log, self.lost = 0, allowed, logs, said.append, "Lost: the host."
        self._worker_group = SimpleNamespace(workers=[])


@pytest.fixture
def looks(monkeypatch):
    looks = Looks()
    monkeypatch.setattr(module, "Event", lambda: looks)
    return looks


@pytest.fixture
def exits(monkeypatch):
    """The exit codes with which the process would have ended."""
    codes: list[int] = []
    monkeypatch.setattr(module.os, "_exit", codes.append)
    return codes


@pytest.mark.fault(38)
def test_a_turn_that_takes_too_long_ends_the_process_and_leaves_no_logs(looks, exits, tmp_path):
    said: list[str] = []
    (tmp_path / "logs").mkdir()
    with Quiet(str(tmp_path / "logs"), said, allowed=5).exit_when_stuck():
        looks.look(5)
        assert (exits, said) == ([], [])
        looks.look(1)
        assert (exits, said) == ([EXIT_FAILED], ["Lost: the host."])
    assert not (tmp_path / "logs").exists()


def test_turns_that_go_on_and_longer_allowances_end_nothing(looks, exits, tmp_path):
    agent = Quiet(str(tmp_path), [], allowed=5)
    with agent.exit_when_stuck():
        for _ in range(3):
            looks.look(5)
            agent.polls += 1
        agent.allowed = math.inf
        looks.look(1000)
    assert exits == []
