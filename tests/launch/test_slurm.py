"""Slurm, with stand-ins for its commands: which jobs are queued again.  Real ones are in test_slurm_cluster.py."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pggan.core.process import StopSignal
from tests.launch.conftest import SCRIPTS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Slurm is for Linux")


@pytest.fixture
def job(tmp_path) -> dict[str, str]:
    """The environment of task 3 of a job array on two nodes."""
    return {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "12345",
        "SLURM_ARRAY_JOB_ID": "700",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "node[0-1]",
        "SLURM_GPUS_ON_NODE": "1",
        "PWD": str(tmp_path),
    }


@pytest.mark.parametrize(("code", "again"), [(0, []), (1, []), (2, []), (75, ["700_3\n"]), (138, ["700_3\n"])])
def test_only_a_run_that_was_stopped_is_queued_again(job, tmp_path, code, again):
    programs = {
        "srun": f'printf "%s\\n" "$@" > {tmp_path}/step.txt; exit {code}',
        "scontrol": f'[ "$1" = show ] && echo localhost || echo "$2" >> {tmp_path}/requeued.txt',
    }
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    ended = subprocess.run(["bash", SCRIPTS / "train.sbatch", "loss=logistic"], env=job, cwd=tmp_path, check=False)
    assert ended.returncode == code
    assert [*map(Path.read_text, tmp_path.glob("requeued.txt"))] == again
    assert (tmp_path / "step.txt").read_text().split() == [
        *("pggan", "train", "run_dir=outputs/slurm-700_3", "distributed.nnodes=2"),
        *("distributed.rdzv_endpoint=localhost:22345", "seed=3", "devices=1", "loss=logistic"),
    ]


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
