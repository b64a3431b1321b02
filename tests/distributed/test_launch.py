"""Ranks under torchrun's launcher: which are restarted, which signals and exit codes are passed on.

The ranks are small programs that do what a test says.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from pggan.core.errors import EXIT_INTERRUPTED, EXIT_PEER_LOST, EXIT_USER_ERROR
from pggan.distributed.launch import launch

pytestmark = pytest.mark.slow  # starts processes

ROOT = Path(__file__).parents[2]
RANK_PROGRAM = """#!{python}
import os, signal, sys, time
sys.path.insert(0, "{root}")
from pggan.distributed.launch import report_rank
rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
open(f"started-{{rank}}-{{restart}}", "w").close()
def run(command, values):
    {code}
    return 0
def guarded(run):
    try:
        return run()
    except KeyboardInterrupt:
        return {interrupted}
sys.exit(report_rank(run, guarded))
"""


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Launch two ranks that run the given lines of Python; `rank` and `restart` are theirs."""

    def run(*code: str, restarts: int = 2) -> int:
        program = tmp_path / "python"
        program.write_text(
            RANK_PROGRAM.format(
                python=sys.executable, root=ROOT, interrupted=EXIT_INTERRUPTED, code="\n    ".join(code)
            )
        )
        program.chmod(0o755)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(program))
            patch.chdir(tmp_path)
            return launch("train", {"seed": 5}, 2, max_restarts=restarts, threads=7, then=lambda: "Then.")

    return run


def attempts(folder: Path) -> int:
    return len(list(folder.glob("started-0-*")))


def test_a_rank_gets_its_task_and_its_threads_and_the_environment_is_as_before(launched, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    before = dict(os.environ)
    names = "PGGAN_PARENT OMP_NUM_THREADS WORLD_SIZE LOCAL_WORLD_SIZE"
    others = f"*(os.environ[name] for name in '{names}'.split())"
    code = f"open(f'rank-{{rank}}', 'w').write('|'.join([command, str(values), {others}]))"
    assert launched(code) == 0
    for rank in range(2):
        found = (tmp_path / f"rank-{rank}").read_text().split("|")
        assert found == ["train", "{'seed': 5}", str(os.getpid()), "7", "2", "2"]
    assert dict(os.environ) == before
    assert attempts(tmp_path) == 1


def test_a_rank_that_torchrun_ends_while_it_is_being_set_up_is_not_told_to_stop(launched, tmp_path):
    set_up = "signal.signal(signal.SIGTERM, signal.default_int_handler)", "open(f'ready-{rank}', 'w').close()"
    lost = "while restart == 0 and rank == 1 and not os.path.exists('ready-0'): time.sleep(0.01)"
    assert launched(*set_up, lost, "if (restart, rank) == (0, 1): os._exit(9)", "time.sleep(0 if restart else 60)") == 0
    assert attempts(tmp_path) == 2


@pytest.mark.parametrize("code", [EXIT_USER_ERROR, EXIT_INTERRUPTED])
def test_what_a_rank_ends_with_for_good_is_the_code_of_the_command(launched, tmp_path, code):
    """The others lose their connection to it."""
    assert launched(f"if rank == 1: return {code}", "time.sleep(1)", f"return {EXIT_PEER_LOST}") == code
    assert attempts(tmp_path) <= 2


ENDINGS = {
    "in their own time": [
        "signal.signal(signal.SIGUSR1, lambda *_: open(f'told-{rank}', 'w').close())",
        "open(f'ready-{rank}', 'w').close()",
        "while not os.path.exists(f'told-{rank}'): time.sleep(0.01)",
        f"return {EXIT_INTERRUPTED}",
    ],
    "without a word": [
        "signal.signal(signal.SIGUSR1, lambda *_: os._exit(1))",
        "open(f'ready-{rank}', 'w').close()",
        "time.sleep(60)",
    ],
}


@pytest.mark.parametrize("lines", ENDINGS.values(), ids=ENDINGS)
def test_a_signal_reaches_the_ranks_and_the_command_is_interrupted(launched, tmp_path, lines):
    def send():
        while not all((tmp_path / f"ready-{rank}").exists() for rank in range(2)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR1)

    sender = threading.Thread(target=send)
    sender.start()
    assert launched(*lines) == EXIT_INTERRUPTED
    sender.join()
