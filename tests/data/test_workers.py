"""Work in several processes: in order, bounded, and with no process left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pggan.core.errors import UserError
from pggan.data.workers import Workers
from tests.data.test_prepare import ROOT, wait_for

KILLED_PARENT = """
import os, sys, time
from pathlib import Path
from pggan.data.workers import Workers

def work(number):
    Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(60)

if __name__ == "__main__":
    with Workers(2) as pool:
        list(pool.in_order("Working", work, range(99), 99))
"""


def die(number):
    os.kill(os.getpid(), signal.SIGKILL)


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_worker_processes_do_not_import_torch():
    """It takes seconds and hundreds of megabytes in each of them."""
    code = "import sys, pggan.data.prepare; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.slow
def test_a_killed_worker_is_a_user_error():
    with Workers(2) as pool, pytest.raises(UserError, match="was killed"):
        next(pool.in_order("Dying", die, range(99), 99))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")
def test_workers_end_with_a_killed_parent(tmp_path):
    (tmp_path / "parent.py").write_text(KILLED_PARENT)
    (tmp_path / "workers").mkdir()
    command = [sys.executable, str(tmp_path / "parent.py"), str(tmp_path / "workers")]
    parent = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(os.listdir(tmp_path / "workers")) == 2)
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not any(map(is_running, os.listdir(tmp_path / "workers"))))
