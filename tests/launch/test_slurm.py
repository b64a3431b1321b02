"""Slurm, with stand-ins for its commands: jobs stop in time, are queued again once, and resume to the same bits.

tests/launch/test_slurm_cluster.py does the same with a real Slurm, where its packages are installed.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pggan.core.process import StopSignal
from pggan.run.inspect import facts_of_run
from tests.launch.conftest import SLOW, require_done, wait_for

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts" / "slurm"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Slurm is for Linux")


# Where a Slurm can be started (scripts/slurm/try_locally.sh), the same is done with it; each takes many seconds.
stand_in = pytest.mark.skipif(
    os.geteuid() == 0
    and None not in map(shutil.which, ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")),
    reason="tests/launch/test_slurm_cluster.py does it with the Slurm of this machine",
)


@pytest.fixture
def run_dir(tmp_path) -> Path:
    return tmp_path / "outputs" / "slurm-700_3"


@pytest.fixture
def job(slurm, port, tmp_path) -> dict[str, str]:
    """The environment of task 3 of a job array."""
    return {
        "PATH": f"{slurm}:{os.environ['PATH']}",
        "SLURM_JOB_ID": str(port),
        "SLURM_ARRAY_JOB_ID": "700",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_NODELIST": "node0",
        "SLURM_GPUS_ON_NODE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PWD": str(tmp_path),
    }


def requeued(tmp_path: Path) -> list[str]:
    file = tmp_path / "requeued.txt"
    return file.read_text().splitlines() if file.is_file() else []


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def resume(ranks, settings: list[str], run_dir: Path, port: int) -> None:
    """What the job does when it comes back, in a process that is cheaper to start."""
    require_done(ranks([*settings, f"run_dir={run_dir}"], master_port=port))


def require_resumed(run_dir: Path, state: str) -> None:
    log = (run_dir / "train.log").read_text()
    assert log.count("Interrupted at") == log.count("Resuming from") == log.count("Done: 160 images") == 1
    assert len(list(run_dir.glob("events.out.tfevents.*"))) == 2, "one for each start"
    assert facts_of_run(run_dir)["state_sha256"] == state


@stand_in
@pytest.mark.slow
@pytest.mark.fault(14)
def test_the_batch_script_is_queued_again_when_its_time_is_over_and_resumes(
    launch, ranks, port, job, tiny_overrides, run_dir, tmp_path, expected_state
):
    """Slurm sends USR1 to the step, that is, to srun's processes."""
    command = ["bash", str(SCRIPTS / "train.sbatch"), *tiny_overrides, "seed=0"]
    first = launch.start(*command, *SLOW, folder=tmp_path, **job)
    wait_for((run_dir / "metrics.jsonl").is_file, launch)
    [srun] = [pid for pid in children(first.pid) if "srun.py" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(srun, signal.SIGUSR1)
    assert launch.codes() == [75], launch.output()
    assert "Traceback" not in launch.output()
    assert requeued(tmp_path) == ["700_3"]
    resume(ranks, tiny_overrides, run_dir, port)
    require_resumed(run_dir, expected_state(1))


@pytest.mark.fault(14)
@pytest.mark.parametrize(("code", "again"), [(0, []), (1, []), (2, []), (75, ["700_3"]), (138, ["700_3"])])
def test_only_a_run_that_was_stopped_is_queued_again(job, slurm, tmp_path, code, again):
    (slurm / "srun").write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > {tmp_path}/step.txt\nexit {code}\n')
    two = {**job, "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[0-1]"}
    ended = subprocess.run(["bash", SCRIPTS / "train.sbatch", "loss=logistic"], env=two, cwd=tmp_path, check=False)
    assert ended.returncode == code
    assert requeued(tmp_path) == again
    port = 20000 + int(job["SLURM_JOB_ID"]) % 10000
    assert (tmp_path / "step.txt").read_text().split() == [
        *(
            "pggan",
            "train",
            "run_dir=outputs/slurm-700_3",
            "distributed.nnodes=2",
            f"distributed.rdzv_endpoint=localhost:{port}",
        ),
        *("seed=3", "devices=1", "loss=logistic"),
    ]


@pytest.mark.fault(14)
def test_earlier_signal_handlers_are_called_when_everything_is_saved():
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    try:
        with StopSignal() as interruption:
            os.kill(os.getpid(), signal.SIGUSR2)
            os.kill(os.getpid(), signal.SIGTERM)
            assert (interruption.wanted, heard) == (True, [])
        assert heard == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR2, before)
