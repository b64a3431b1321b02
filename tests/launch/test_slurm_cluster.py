"""A Slurm of two nodes on this machine: what it tells to stop is queued again, and ends as if nothing had been."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pggan.run.inspect import facts_of_run
from tests.launch.conftest import LIMIT, ROOT, SCRIPTS, SLOW

pytestmark = pytest.mark.rare


class Cluster:
    """The commands of Slurm, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "bin" / "pggan").write_text(f'#!/bin/bash\nexec {sys.executable} -m pggan "$@"\n')
        (folder / "bin" / "pggan").chmod(0o755)
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm" / "slurm.conf"),
            "GLOO_SOCKET_IFNAME": "lo",
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }

    def call(self, *command: str) -> str:
        """What a command prints; fails where it does."""
        ended = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, f"{command}: {ended.stderr}"
        return ended.stdout.strip()

    def wait(self, job: str, reached: Callable[[dict[str, str]], object]) -> dict[str, str]:
        """Wait for what Slurm says of a job, which is returned."""
        end = time.monotonic() + 2 * LIMIT
        while True:
            words = self.call("scontrol", "--oneliner", "show", "job", job).split()
            facts = dict(word.split("=", 1) for word in words if "=" in word)
            if reached(facts):
                return facts
            assert time.monotonic() < end, facts
            time.sleep(0.5)

    def require_resumed(self, job: str, signal: str, run_dir: Path, state: str) -> None:
        """Send a signal to a job that trains: it is queued again, and completes with `state`."""
        self.wait(job, lambda facts: (run_dir / "metrics.jsonl").exists())
        self.call("scancel", "--signal", signal, job)
        self.wait(job, lambda facts: facts["Restarts"] == "1")
        ended = self.wait(job, lambda facts: facts["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"))
        log = (run_dir / "train.log").read_text()
        assert ended["JobState"] == "COMPLETED", log
        assert log.count("Interrupted at") == log.count("Resuming from") == log.count("Done: 160 images") == 1
        assert facts_of_run(run_dir)["state_sha256"] == state


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm")
    script, slurm = str(SCRIPTS / "try_locally.sh"), str(folder / "slurm")
    started = subprocess.run([script, "up", slurm], capture_output=True, text=True, check=False)
    if started.returncode == 3:
        pytest.skip(started.stderr.strip())
    assert started.returncode == 0, started.stderr
    yield Cluster(folder)
    subprocess.run([script, "down", slurm], check=True)


def test_a_job_on_two_nodes_that_is_told_to_stop_is_queued_again(cluster, tiny_overrides, expected_state):
    script = str(SCRIPTS / "train.sbatch")
    job = cluster.call("sbatch", "--parsable", "--nodes=2", "--time=60", script, *tiny_overrides, *SLOW)
    cluster.require_resumed(job, "USR1", cluster.folder / "outputs" / f"slurm-{job}", expected_state(2))


def test_a_job_of_hydras_launcher_that_is_told_to_stop_is_queued_again(cluster, tiny_overrides, expected_state):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    launcher = ["--multirun", "hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=60"]
    settings = [*tiny_overrides, *SLOW, "seed=0", f"run_dir={cluster.folder}/run-${{seed}}"]
    command = [sys.executable, str(ROOT / "train.py"), *launcher, *settings]
    process = subprocess.Popen(command, env=cluster.environment, cwd=cluster.folder)
    while not (scripts := list(cluster.folder.glob("outputs/multirun/.submitit/*/*_submission.sh"))):
        assert process.poll() is None
        time.sleep(0.1)
    cluster.require_resumed(scripts[0].parent.name, "USR2", cluster.folder / "run-0", expected_state(1))
    assert process.wait(LIMIT) == 0
