"""Work in several processes: in order, bounded, and with no process left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pggan.core.errors import UserError
from pggan.data.worker_pool import WorkerPool

KILLED_PARENT = """
import os, sys, time
from pathlib import Path
from pggan.data.worker_pool import WorkerPool

def work(number):
    Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(60)

if __name__ == "__main__":
    with WorkerPool(2) as pool:
        list(pool.in_order("Working", work, range(99), 99))
"""


def die(number):
    os.kill(os.getpid(), signal.SIGKILL)


def wait_until(condition):
    deadline = time.monotonic() + 120  # of a machine that is busy
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def meet(places):
    mine, other = places
    mine.touch()
    wait_until(other.exists)
    return mine.name


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_worker_processes_do_not_import_torch():
    """It takes seconds and hundreds of megabytes in each of them."""
    code = "import sys, pggan.data.prepare, pggan.data.avatars; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_results_come_in_the_order_of_the_items(workers):
    items = [str(number) for number in range(40)]
    with WorkerPool(workers) as pool:
        assert list(pool.in_order("Counting", int, items, 40)) == list(range(40))


def test_only_a_few_items_are_worked_on_ahead():
    handed_out = []

    def items():
        for number in range(1000):
            handed_out.append(number)
            yield number

    with WorkerPool(2) as pool:
        assert next(pool.in_order("Counting", int, items(), 1000)) == 0
    assert len(handed_out) == 32


@pytest.mark.slow
def test_a_few_large_items_are_shared_among_the_workers(tmp_path):
    """Two that can only end together: in one worker, the first would wait for the second in vain."""
    items = [(tmp_path / "first", tmp_path / "second"), (tmp_path / "second", tmp_path / "first")]
    with WorkerPool(2) as pool:
        assert list(pool.in_order("Meeting", meet, items, 2)) == ["first", "second"]


def test_nothing_to_do_is_done():
    with WorkerPool(2) as pool:
        assert list(pool.in_order("Counting", int, [], 0)) == []


@pytest.mark.slow
def test_a_killed_worker_is_a_user_error():
    with WorkerPool(2) as pool, pytest.raises(UserError, match="was killed"):
        next(pool.in_order("Dying", die, range(99), 99))


SIGNALLED = """
import os, signal, sys, time
from pathlib import Path
from pggan.data.worker_pool import WorkerPool

def work(number):
    Path(sys.argv[1], str(number)).touch()
    while not Path(sys.argv[1], "go").exists():
        time.sleep(0.01)
    return number

if __name__ == "__main__":
    seen = []
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: seen.append(number))
    with WorkerPool(2) as pool:
        done = sum(pool.in_order("Working", work, range(20), 20))
    print(done, len(set(seen)))
"""


@pytest.mark.slow
def test_signals_to_all_processes_of_a_command_reach_the_first_alone(tmp_path):
    """From the instant on at which it starts the others; a terminal sends SIGINT so, Slurm SIGUSR1."""
    (tmp_path / "parent.py").write_text(SIGNALLED)
    (tmp_path / "work").mkdir()
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py"), str(tmp_path / "work")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    members = ["ps", "-o", "pid=", "--sid", str(parent.pid)]
    wait_until(lambda: len(subprocess.run(members, check=False, capture_output=True).stdout.split()) >= 3)
    for _ in range(20):  # while the workers start
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            os.killpg(parent.pid, number)
        time.sleep(0.02)
    wait_until(lambda: len(os.listdir(tmp_path / "work")) >= 2)
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        os.killpg(parent.pid, number)
    (tmp_path / "work" / "go").touch()
    shown, errors = parent.communicate(timeout=60)
    assert shown.split() == ["190", "3"], errors
    assert "Traceback" not in errors
    assert "resource_tracker" not in errors


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")
def test_workers_end_with_a_killed_parent(tmp_path):
    (tmp_path / "parent.py").write_text(KILLED_PARENT)
    (tmp_path / "workers").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(tmp_path / "parent.py"), str(tmp_path / "workers")]
    parent = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(os.listdir(tmp_path / "workers")) == 2)
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not any(map(is_running, os.listdir(tmp_path / "workers"))))
