"""Runs in several processes, started in every way there is, as a user would see them."""

import multiprocessing
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pggan.run.inspect import facts_of_run
from tests.launch.cable import Machine

ROOT = Path(__file__).parents[2]
LIMIT = 90  # seconds after which something hangs


@dataclass
class Ended:
    code: int
    output: str


class Launch:
    """Commands in the background, each with a file for what it says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, folder: Path = ROOT, **environment: str) -> subprocess.Popen[bytes]:
        ours = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
        with self.file(len(self.processes)).open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env=ours, cwd=folder, start_new_session=True)
        self.processes.append(process)
        return process

    def file(self, number: int) -> Path:
        return self.folder / f"output-{number}.txt"

    def output(self) -> str:
        return "".join(self.file(number).read_text() for number in range(len(self.processes)))

    def codes(self) -> list[int]:
        """Wait for all to end; their exit codes."""
        return [process.wait(LIMIT) for process in self.processes]

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_for(found: Callable[[], object], launch: Launch) -> None:
    end = time.monotonic() + LIMIT
    while not found():
        assert time.monotonic() < end, launch.output()
        time.sleep(0.05)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    started = Launch(tmp_path)
    yield started
    started.end()


@pytest.fixture
def port() -> int:
    """A port that is free, and of those that scripts/slurm takes for a job."""
    for number in range(20000 + os.getpid() % 10000, 30000):
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", number))
                return number
            except OSError:
                continue
    raise AssertionError("no free port")


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Ended]]:
    """Start one process per list of overrides, as a launcher would, and wait for them.

    Their folders can differ, the commits that their code says it has, and their machines. They are forked
    from a process that has imported everything, so that this takes a second.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pggan.run.train", "pggan.config", "hydra"])

    def run(
        *overrides: list[str],
        master_port: int,
        size: int = 0,
        commits: tuple[str, ...] = (),
        folders: tuple[Path, ...] = (),
        machines: Sequence[Machine] = (),
    ) -> list[Ended]:
        folder = tmp_path_factory.mktemp("ranks")
        processes = []
        for rank, own in enumerate(overrides):
            count = size or len(overrides)
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": "0" if machines else str(rank),
                "WORLD_SIZE": str(count),
                "LOCAL_WORLD_SIZE": "1" if machines else str(count),
                "MASTER_ADDR": machines[0].address if machines else "127.0.0.1",
                "MASTER_PORT": str(master_port),
            }
            if machines:
                environment["GLOO_SOCKET_IFNAME"] = machines[rank].interface
            given = {
                "ENVIRONMENT": environment,
                "ARGUMENTS": own,
                "OUTPUT": str(folder / f"{rank}.txt"),
                "COMMIT": commits[rank] if commits else "",
                "FOLDER": str(folders[rank] if folders else folder),
                "NAMESPACE": machines[rank].name if machines else "",
            }
            script = str(Path(__file__).with_name("one_process.py"))
            processes.append(context.Process(target=runpy.run_path, args=(script, given, "__main__")))
        for process in processes:
            process.start()
        end = time.monotonic() + LIMIT
        for process in processes:
            process.join(max(end - time.monotonic(), 0))
        hung = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for rank in hung:
            processes[rank].kill()
        ended = [
            Ended(int(process.exitcode or 0), (folder / f"{rank}.txt").read_text())
            for rank, process in enumerate(processes)
        ]
        assert not hung, ended
        return ended

    return run


@pytest.fixture(scope="session")
def expected_state(ranks, tiny_overrides, tmp_path_factory) -> str:
    """The state hash at the end of the tiny run in two processes."""
    run_dir = tmp_path_factory.mktemp("expected") / "run"
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        number = found.getsockname()[1]
    ended = ranks(*2 * [[*tiny_overrides, f"run_dir={run_dir}"]], master_port=number)
    assert [process.code for process in ended] == [0, 0], ended
    return str(facts_of_run(run_dir)["state_sha256"])


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """A folder for the PATH with `srun`, `scontrol` and `pggan`; what `scontrol requeue` got is in requeued.txt."""
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("fake_srun.py"), folder / "srun.py")
    programs = {
        "srun": f'exec {sys.executable} {folder}/srun.py "$@"',
        "scontrol": f'[ "$1" = show ] && echo localhost || echo "$2" >> {tmp_path}/requeued.txt',
        "pggan": f'exec {sys.executable} -m pggan "$@"',
        "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
    }
    for name, line in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{line}\n")
        (folder / name).chmod(0o755)
    return folder
