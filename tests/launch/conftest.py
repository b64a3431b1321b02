"""Runs of several ranks, started in every way there is, as a user would see them."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pggan.run.inspect import facts_of_run
from tests.launch import one_process
from tests.launch.one_process import Forked
from tests.processes import CONTEXT, free_ports

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts" / "slurm"
LIMIT = 300  # seconds after which something hangs
# Steps that draw take longer, and change no bit: a signal after the first of them comes before the last.
SLOW = ("monitor.tick_images=8", "monitor.grid_images=8", "monitor.grid=16x16")


@dataclass
class Ended:
    code: int
    output: str


class Launch:
    """Commands in the background, each with a file for what it says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[Any] = []

    def start(self, *command: str, folder: Path = ROOT, **environment: str) -> Any:
        """Start a program."""
        ours = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
        with self.file(len(self.processes)).open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env=ours, cwd=folder, start_new_session=True)
        self.processes.append(process)
        return process

    def train(self, *overrides: str, folder: Path = ROOT, **environment: str) -> Any:
        """`pggan train` in a forked process."""
        output = str(self.file(len(self.processes)))
        process = Forked(CONTEXT, one_process.run, ["train", *overrides], output, environment, str(folder))
        self.processes.append(process)
        return process

    def file(self, number: int) -> Path:
        return self.folder / f"output-{number}.txt"

    def output(self) -> str:
        files = map(self.file, range(len(self.processes)))
        return "".join(file.read_text() for file in files if file.exists())

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
        ended = all(process.poll() is not None for process in launch.processes)
        assert found() or (not ended and time.monotonic() < end), launch.output()
        time.sleep(0.05)


def listens(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    started = Launch(tmp_path)
    yield started
    started.end()


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "run"


@pytest.fixture
def settings(tiny_overrides: list[str], run_dir: Path) -> list[str]:
    return [*tiny_overrides, f"run_dir={run_dir}"]


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Ended]]:
    """Start one rank per list of overrides, as a launcher would, and wait for them; their folders can differ."""

    def run(
        *overrides: list[str], master_port: int, size: int = 0, folders: tuple[Path, ...] = (), alone: bool = False
    ) -> list[Ended]:
        """Args: size: ranks announced; alone: each rank is alone on its machine."""
        launch = Launch(tmp_path_factory.mktemp("ranks"))
        for rank, own in enumerate(overrides):
            count = size or len(overrides)
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": "0" if alone else str(rank),
                "WORLD_SIZE": str(count),
                "LOCAL_WORLD_SIZE": "1" if alone else str(count),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(master_port),
                "GLOO_SOCKET_IFNAME": "lo",
            }
            launch.train(*own, folder=folders[rank] if folders else launch.folder, **environment)
        try:
            codes = launch.codes()
        except subprocess.TimeoutExpired:
            pytest.fail(launch.output())
        finally:
            launch.end()
        return [Ended(code, launch.file(rank).read_text()) for rank, code in enumerate(codes)]

    return run


def require_done(ended: list[Ended]) -> None:
    assert [process.code for process in ended] == [0] * len(ended), ended


@pytest.fixture(scope="session")
def expected_state(ranks, tiny_overrides, tmp_path_factory) -> Callable[[int], str]:
    """The state hash at the end of the tiny run on so many ranks."""
    known: dict[int, str] = {}

    def state(world_size: int) -> str:
        if world_size not in known:
            run_dir = tmp_path_factory.mktemp("expected") / "run"
            settings = [*tiny_overrides, f"run_dir={run_dir}"]
            require_done(ranks(*world_size * [settings], master_port=free_ports(1)[0]))
            known[world_size] = str(facts_of_run(run_dir)["state_sha256"])
        return known[world_size]

    return state
