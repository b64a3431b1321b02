"""Mistakes with several processes: named once, exit code 2 everywhere, nothing written, nobody waits for ever."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pggan.cli.main import main
from pggan.core.errors import EXIT_INTERRUPTED, EXIT_USER_ERROR

ROOT = Path(__file__).parents[2]
LIMIT = 60  # seconds
LAUNCHER = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29400",
}


@pytest.fixture
def run_dir(tmp_path) -> Path:
    return tmp_path / "runs" / "run"


@pytest.fixture
def settings(tiny_overrides, run_dir) -> list[str]:
    return [*tiny_overrides, f"run_dir={run_dir}", "distributed.rdzv_timeout_seconds=3"]


def require_told_once(ended, *words: str) -> None:
    assert [process.code for process in ended] == [EXIT_USER_ERROR] * len(ended), ended
    told = "".join(process.output for process in ended)
    assert told.count("Error: ") == 1, told
    assert "Traceback" not in told
    for word in words:
        assert word in told


# ---- processes that are not alike ------------------------------------------------------------------------


UNLIKE = {
    "seed=5": "seed than process 0: 5 instead of 0",
    "schedule.batch=12": "schedule.batch than process 0: 12 instead of 8",
    "loss=logistic": "loss.",
    "compute.micro_batch_size=4": "compute.micro_batch_size than process 0: 4 instead of None",
    "schedule.batch={4: 8, 8: 16}": "schedule.batch than process 0: nothing instead of",
}


@pytest.mark.parametrize(("setting", "words"), UNLIKE.items())
def test_processes_with_different_settings(ranks, settings, run_dir, port, setting, words):
    ended = ranks(settings, [*settings, setting], master_port=port)
    require_told_once(ended, "Process 1 has another", words)
    assert not run_dir.parent.exists()


def test_processes_with_different_code(ranks, settings, run_dir, port):
    ended = ranks(settings, settings, master_port=port, commits=("0123abc", "4567def"))
    require_told_once(ended, "Process 1 has another code than process 0: 4567def with", "instead of 0123abc with")
    assert not run_dir.parent.exists()


def test_processes_with_different_images(ranks, settings, run_dir, port, make_pyramid, tmp_path):
    """The same path holds other images on another machine."""
    machines = (tmp_path / "a", tmp_path / "b")
    for number, folder in enumerate(machines):
        make_pyramid(folder / "faces", images=48 - number)
    ended = ranks(*2 * [[*settings, "data.path=faces"]], master_port=port, folders=machines)
    require_told_once(ended, "Process 1 has another set of images (checksum) than process 0")
    assert not run_dir.parent.exists()


# ---- what one process finds, all end with ----------------------------------------------------------------


def test_a_batch_that_the_processes_of_a_launcher_cannot_share(ranks, settings, port):
    ended = ranks(settings, settings, settings, master_port=port)
    require_told_once(ended, "A batch of 8 (schedule.batch) has 2 groups of 4 images", "Take 1, 2 processes")


def test_more_processes_than_devices(ranks, settings, port):
    ended = ranks(*2 * [[*settings, "devices=cpu:1"]], master_port=port)
    require_told_once(ended, "2 processes were started on this machine for 1 devices (devices=cpu:1)")


def test_a_run_directory_that_only_the_first_process_looks_at(ranks, settings, port, tmp_path):
    (tmp_path / "file").touch()
    ended = ranks(*2 * [[*settings, f"run_dir={tmp_path / 'file'}"]], master_port=port)
    require_told_once(ended, "is a file")


# ---- processes that do not find each other ---------------------------------------------------------------


@pytest.fixture
def stranger():
    """The port of something that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def full():
    """A port that leaves who calls without an answer, as an address behind a firewall does."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for caller in (first, second):
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def test_a_port_that_is_in_use(ranks, settings, stranger):
    first, second = ranks(settings, settings, master_port=stranger)
    assert (first.code, second.code) == (2, 2)
    assert f"Process 0 of 2 did not find the others at 127.0.0.1:{stranger}: The server socket" in first.output
    assert f"Process 1 of 2 did not find the others at 127.0.0.1:{stranger}: something else answers" in second.output
    for process in (first, second):
        assert len(process.output.splitlines()) == 2, process.output


def test_processes_that_were_announced_and_did_not_come(ranks, settings, port):
    ended = ranks(settings, master_port=port, size=2)
    require_told_once(ended, "Process 0 of 2 did not find the others")


def test_machines_that_do_not_meet(settings, run_dir, stranger, full, port):
    """In processes of their own, as torch's agent sets the environment; side by side, as they mostly wait."""
    command = [sys.executable, "-m", "pggan", "train", *settings, "devices=cpu:1", "distributed.nnodes=2"]
    places = {
        f"127.0.0.1:{stranger}": "something else answers there",
        f"127.0.0.1:{port}": "not all 2 came within 3 s",
        "nowhere.invalid:29500": "Name or service not known",
        f"127.0.0.1:{full}": "nobody answers there",
    }
    started = [
        subprocess.Popen([*command, f"distributed.rdzv_endpoint={place}"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for place in places
    ]
    for process, (place, words) in zip(started, places.items(), strict=True):
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 2, errors
        assert errors.startswith(f"Error: The machines did not meet at distributed.rdzv_endpoint={place}: ")
        assert words in errors
        assert len(errors.splitlines()) == 2
    assert not run_dir.parent.exists()


# ---- a wish to stop while there is nobody to pass it on to -------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_a_machine_looks_for_the_others(settings, run_dir, port, capsys, monkeypatch, number):
    looking = threading.Event()

    def look(*_: object) -> None:
        os.kill(os.getpid(), number)
        looking.wait(LIMIT)

    monkeypatch.setattr("pggan.distributed.rendezvous._reached", look)
    before = signal.getsignal(number)
    nodes = ["devices=cpu:1", "distributed.nnodes=2", f"distributed.rdzv_endpoint=127.0.0.1:{port}"]
    assert main(["train", *settings, *nodes]) == EXIT_INTERRUPTED
    looking.set()
    assert capsys.readouterr().err.startswith(
        "Stopped while waiting for the other machines: no process has been started"
    )
    assert signal.getsignal(number) is before
    assert not run_dir.parent.exists()


def listens(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def test_a_signal_while_a_machine_waits_for_the_others(launch, settings, run_dir, port):
    nodes = [
        "devices=cpu:1",
        "distributed.nnodes=2",
        f"distributed.rdzv_endpoint=127.0.0.1:{port}",
        "distributed.rdzv_timeout_seconds=60",
    ]
    process = launch.start(sys.executable, "-m", "pggan", "train", *settings, *nodes)
    while not listens(port):  # until they could meet there
        assert process.poll() is None, launch.output()
        time.sleep(0.1)
    process.terminate()
    assert launch.codes() == [EXIT_INTERRUPTED]
    assert launch.output().splitlines() == [
        "Stopped while waiting for the other machines: no process has been started. The same command begins again."
    ]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody is left
    assert not run_dir.parent.exists()


# ---- before anything starts ------------------------------------------------------------------------------

BEFORE = {
    ("devices=cpu:3",): "3 processes can't share evenly",
    ("devices=cpu:2", "elastic=true", "schedule.batch=4"): "too few for 2 processes",
    ("devices=3",): "this machine has 0 CUDA devices",
    ("devices=cpu:0",): "devices=cpu:0 is not a choice",
    ("distributed.nnodes=2",): "Add distributed.rdzv_endpoint=HOST:PORT",
    ("distributed.nnodes=2", "distributed.rdzv_endpoint=node0"): "It has to be HOST:PORT",
    ("distributed.nnodes=2", "distributed.rdzv_endpoint=node0:port"): "It has to be HOST:PORT",
    ("distributed.nnodes=2", "distributed.rdzv_endpoint=node0:70000"): "It has to be HOST:PORT",
    ("distributed.nnodes=0",): "It has to be at least 1",
}


@pytest.mark.parametrize(("given", "words"), BEFORE.items())
def test_what_the_parent_refuses(settings, run_dir, capsys, monkeypatch, given, words):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["train", *settings, *given]) == 2
    assert words in capsys.readouterr().err
    assert not run_dir.parent.exists()


BROKEN = {
    "only RANK": ({name: "" for name in LAUNCHER if name != "RANK"}, "WORLD_SIZE, LOCAL_RANK"),
    "no address": ({"MASTER_ADDR": ""}, "but MASTER_ADDR is not"),
    "no number": ({"RANK": "first"}, "RANK=first WORLD_SIZE=2"),
    "too high a rank": ({"RANK": "2"}, "RANK=2 WORLD_SIZE=2"),
    "too high a port": ({"MASTER_PORT": "290000"}, "MASTER_PORT=290000"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_launcher_has_left_out(settings, run_dir, capsys, monkeypatch, name):
    changes, words = BROKEN[name]
    for variable, value in {**LAUNCHER, **changes}.items():
        if value:
            monkeypatch.setenv(variable, value)
        else:
            monkeypatch.delenv(variable, raising=False)
    assert main(["train", *settings]) == 2
    assert words in capsys.readouterr().err
    assert not run_dir.parent.exists()


def test_copies_of_the_command_under_srun(settings, run_dir, capsys, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert main(["train", *settings]) == 2
    assert "each would train a run of its own" in capsys.readouterr().err
    assert not run_dir.parent.exists()
