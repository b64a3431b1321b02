"""A Slurm of two nodes on this machine: its jobs run out of time, are preempted and cancelled, and lose nothing."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from pggan.run.inspect import facts_of_run
from tests.launch.conftest import LIMIT, ROOT, require_done
from tests.processes import free_ports

SCRIPTS = ROOT / "scripts" / "slurm"
# One worker of pytest-xdist takes all of them: the jobs run beside each other, and wait for the same clock of Slurm.
pytestmark = pytest.mark.rare


@dataclass
class Job:
    """A job, what it prints, and its run directory."""

    cluster: "Cluster"
    number: str
    outputs: list[Path]
    run_dir: Path

    def facts(self) -> dict[str, str]:
        words = self.cluster.call("scontrol", "--oneliner", "show", "job", self.number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, reached: Callable[[dict[str, str]], object]) -> None:
        end = time.monotonic() + 2 * LIMIT
        while not reached(facts := self.facts()):
            assert time.monotonic() < end, f"{facts}\n{self.output()}"
            time.sleep(0.5)  # asking Slurm takes a process

    def steps(self) -> int:
        file = self.run_dir / "metrics.jsonl"
        return file.read_text().count("\n") if file.exists() else 0

    def wait_for_step(self) -> None:
        """Wait for a training step more than there are."""
        before = self.steps()
        self.wait(lambda facts: self.steps() > before)

    def stop_its_clock(self) -> None:
        """Stop the job's processes, until Slurm continues them together with the signal that it sends them."""
        self.cluster.call("scancel", "--signal", "STOP", self.number)

    def update(self, change: str) -> None:
        self.cluster.call("scontrol", "update", f"JobId={self.number}", change)

    def wait_for_requeue(self, count: int) -> None:
        """Wait until it has been queued again so many times."""
        self.wait(lambda facts: facts["Restarts"] == str(count) and facts["JobState"] in ("PENDING", "RUNNING"))

    def end(self) -> str:
        """Wait until it has ended; its last state."""
        self.wait(lambda facts: facts["JobState"] not in ("PENDING", "RUNNING", "STOPPED", "COMPLETING"))
        return self.facts()["JobState"]

    def output(self) -> str:
        return "".join(file.read_text() for file in self.outputs if file.exists())


class Cluster:
    """The commands of Slurm, in a folder of their own."""

    def __init__(self, folder: Path, slurm: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name, program in {"pggan": f"{sys.executable} -m pggan", "python": sys.executable}.items():
            (folder / "bin" / name).write_text(f'#!/bin/bash\nexec {program} "$@"\n')
            (folder / "bin" / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(slurm / "slurm.conf"),
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

    def submit(self, *arguments: str) -> str:
        return self.call("sbatch", "--parsable", "--time", "60", *arguments)

    def train(self, *arguments: str) -> Job:
        """Submit a script with options of sbatch, then overrides."""
        options = [argument for argument in arguments if argument.startswith("-")]
        overrides = [argument for argument in arguments if argument not in options]
        number = self.submit(*options, str(SCRIPTS / "train.sbatch"), *overrides)
        return Job(self, number, [self.folder / f"slurm-{number}.out"], self.folder / "outputs" / f"slurm-{number}")

    def launch(self, *overrides: str) -> tuple[Job, subprocess.Popen[bytes]]:
        """Start Hydra's launcher; its one job, submitted, and its command, which waits for the job."""
        command = [
            *(sys.executable, str(ROOT / "train.py"), "--multirun", "hydra/launcher=submitit_slurm"),
            # submitit calls a job timed out, and not preempted, if all its time but ten minutes has gone
            *("hydra.launcher.timeout_min=10", "hydra.launcher.partition=high", *overrides, "seed=0"),
            f"run_dir={self.folder}/run-${{seed}}",
        ]
        said = self.folder / "launcher.txt"
        with said.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env=self.environment, cwd=self.folder)
        end = time.monotonic() + LIMIT
        while not (scripts := list(self.folder.glob("outputs/multirun/.submitit/*/*_submission.sh"))):
            assert time.monotonic() < end, said.read_text()
            time.sleep(0.05)
        folder = scripts[0].parent
        logs = [folder / f"{folder.name}_0_log.{kind}" for kind in ("out", "err")]
        return Job(self, folder.name, logs, self.folder / "run-0"), process


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm")
    script, slurm = str(SCRIPTS / "try_locally.sh"), folder / "slurm"
    started = subprocess.run([script, "up", str(slurm)], capture_output=True, text=True, check=False)
    if started.returncode == 3:
        pytest.skip(started.stderr.strip())
    assert started.returncode == 0, started.stderr
    yield Cluster(folder, slurm)
    subprocess.run([script, "down", str(slurm)], check=True)
    assert not slurm.exists()


@pytest.fixture(scope="module")
def overrides(tiny_overrides: list[str]) -> list[str]:
    """A run of 544 images, so long that a job can be stopped in its midst, which reports every step."""
    return [
        *tiny_overrides,
        *("schedule.final_resolution=8", "schedule.stable_images=256", "monitor.tick_images=8"),
    ]


@dataclass
class Jobs:
    """Two jobs that were stopped after a step, ran out of time, and are queued again."""

    two_nodes: Job
    launched: Job
    launcher: subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def jobs(cluster: Cluster, overrides: list[str]) -> Iterator[Jobs]:
    """The jobs of all tests: they start beside each other, and Slurm looks at their time only twice a minute."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    launched, launcher = cluster.launch(*overrides)
    two_nodes = cluster.train("--nodes=2", "--cpus-per-task=40", *overrides)
    timed = [launched, two_nodes]
    running, end = [*timed], time.monotonic() + 2 * LIMIT
    while running:
        assert time.monotonic() < end, "".join(job.output() for job in running)
        for job in [job for job in running if job.steps()]:
            job.stop_its_clock()
            running.remove(job)
        time.sleep(0.05)
    for job in timed:
        job.update("EndTime=now+60")  # so close that Slurm sends the signal when it looks next
    for job in timed:
        job.wait_for_requeue(1)
        job.update("TimeLimit=60")
    yield Jobs(two_nodes, launched, launcher)
    launcher.kill()
    launcher.wait()


@pytest.fixture(scope="module")
def state_of_run(ranks, overrides, tmp_path_factory) -> Callable[[int], object]:
    """The state hash of the same run on so many ranks, not interrupted."""

    @cache
    def state(world_size: int) -> object:
        run_dir, (port,) = tmp_path_factory.mktemp("expected") / "run", free_ports(1)
        require_done(ranks(*world_size * [[*overrides, f"run_dir={run_dir}"]], master_port=port))
        return facts_of_run(run_dir)["state_sha256"]

    return state


def require_resumed(job: Job, interruptions: int, state: object) -> None:
    log = (job.run_dir / "train.log").read_text()
    assert log.count("Interrupted at") == log.count("Resuming from") == interruptions, log
    assert log.count("Done: 544 images") == 1
    assert "Traceback" not in job.output()
    assert facts_of_run(job.run_dir)["state_sha256"] == state


def test_a_job_on_two_nodes_resumes_when_its_time_is_over_and_after_preemption(cluster, jobs, state_of_run):
    job = jobs.two_nodes
    job.wait_for_step()
    job.stop_its_clock()
    wide = ["--partition=high", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=40", "--output=/dev/null"]
    cluster.submit(*wide, "--wrap", "true")
    job.wait_for_requeue(2)
    state = state_of_run(2)
    assert job.end() == "COMPLETED", job.output()
    require_resumed(job, 2, state)


def test_a_job_of_hydras_launcher_resumes_when_its_time_is_over(jobs, state_of_run):
    state = state_of_run(1)
    assert jobs.launcher.wait(2 * LIMIT) == 0, jobs.launched.output()
    require_resumed(jobs.launched, 1, state)
    assert "this job is timed-out" in jobs.launched.output()
