"""Mistakes with several ranks: reported once, exit code 2 everywhere, nothing written, no rank waits for ever."""

import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from pggan.cli.main import main
from pggan.core.errors import EXIT_INTERRUPTED, EXIT_USER_ERROR

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
    return [*tiny_overrides, f"run_dir={run_dir}"]


def require_reported_once(ended, *words: str) -> None:
    assert [process.code for process in ended] == [EXIT_USER_ERROR] * len(ended), ended
    output = "".join(process.output for process in ended)
    assert output.count("Error: ") == 1, output
    assert "Traceback" not in output
    for word in words:
        assert word in output


# ---- ranks that differ -----------------------------------------------------------------------------------


UNLIKE = {
    "compute.micro_batch_size=4": "compute.micro_batch_size than rank 0: 4 instead of None",
    "schedule.batch={4: 8, 8: 16}": "schedule.batch than rank 0: nothing instead of",
}


@pytest.mark.parametrize(("setting", "words"), UNLIKE.items())
def test_ranks_with_different_settings(ranks, settings, run_dir, port, setting, words):
    ended = ranks(settings, [*settings, setting], master_port=port)
    require_reported_once(ended, "Rank 1 has another", words)
    assert not run_dir.parent.exists()


def test_ranks_with_different_code(ranks, settings, run_dir, port):
    ended = ranks(settings, settings, master_port=port, commits=("0123abc", "4567def"))
    require_reported_once(ended, "Rank 1 has another code than rank 0: 4567def with", "instead of 0123abc with")
    assert not run_dir.parent.exists()


def test_ranks_with_different_images(ranks, settings, run_dir, port, make_pyramid, tmp_path):
    """The same path holds other images on another machine."""
    machines = (tmp_path / "a", tmp_path / "b")
    for number, folder in enumerate(machines):
        make_pyramid(folder / "faces", images=48 - number)
    ended = ranks(*2 * [[*settings, "data.path=faces"]], master_port=port, folders=machines)
    require_reported_once(ended, "Rank 1 has another set of images (fingerprint) than rank 0")
    assert not run_dir.parent.exists()


# ---- what one rank finds ends all of them ----------------------------------------------------------------


def test_a_batch_that_the_ranks_of_a_launcher_cannot_share(ranks, settings, port):
    ended = ranks(settings, settings, settings, master_port=port)
    require_reported_once(ended, "A batch of 8 (schedule.batch) has 2 groups of 4 images", "Use 1, 2 ranks")


def test_more_ranks_than_devices(ranks, settings, port):
    ended = ranks(*2 * [[*settings, "devices=cpu:1"]], master_port=port)
    require_reported_once(ended, "2 ranks were started on this machine for 1 devices (devices=cpu:1)")


def test_a_run_directory_that_only_rank_0_looks_at(ranks, settings, port, tmp_path):
    (tmp_path / "file").touch()
    ended = ranks(*2 * [[*settings, f"run_dir={tmp_path / 'file'}"]], master_port=port)
    require_reported_once(ended, "is a file")


@pytest.mark.fault(29)
def test_data_that_is_not_there(ranks, settings, run_dir, port, tmp_path):
    ended = ranks(*2 * [[*settings, f"data.path={tmp_path / 'nothing'}"]], master_port=port)
    require_reported_once(ended, "nothing")
    assert not run_dir.parent.exists()


# ---- ranks that do not find each other -------------------------------------------------------------------


WAIT = ["distributed.rdzv_timeout_seconds=1"]


@pytest.fixture
def stranger():
    """The port of something that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_port_that_is_in_use(ranks, settings, stranger):
    first, second = ranks([*settings, *WAIT], [*settings, *WAIT], master_port=stranger)
    assert (first.code, second.code) == (2, 2)
    assert f"Rank 0 of 2 did not find the others at 127.0.0.1:{stranger}: The server socket" in first.output
    assert f"Rank 1 of 2 did not find the others at 127.0.0.1:{stranger}: something else answers" in second.output
    for process in (first, second):
        assert len(process.output.splitlines()) == 2, process.output


def test_ranks_that_were_announced_and_did_not_come(ranks, settings, port):
    ended = ranks([*settings, *WAIT], master_port=port, size=2)
    require_reported_once(ended, "Rank 0 of 2 did not find the others")


def test_machines_that_do_not_join(settings, run_dir, port, capsys):
    """Other reasons why a rendezvous fails are in tests/distributed/test_rendezvous.py."""
    place = f"distributed.rdzv_endpoint=127.0.0.1:{port}"
    assert main(["train", *settings, *WAIT, "devices=cpu:1", "distributed.nnodes=2", place]) == EXIT_USER_ERROR
    errors = capsys.readouterr().err
    assert errors.startswith(f"Error: The rendezvous at {place} failed: not all 2 machines joined within 1 s.")
    assert len(errors.splitlines()) == 2
    assert not run_dir.parent.exists()


# ---- signals while there are no ranks --------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_a_machine_looks_for_the_others(settings, run_dir, port, capsys, monkeypatch, number):
    looking = threading.Event()

    def look(*_: object) -> None:
        os.kill(os.getpid(), number)
        looking.wait(LIMIT)

    monkeypatch.setattr("pggan.distributed.rendezvous._handler", look)
    before = signal.getsignal(number)
    nodes = ["devices=cpu:1", "distributed.nnodes=2", f"distributed.rdzv_endpoint=127.0.0.1:{port}"]
    assert main(["train", *settings, *nodes]) == EXIT_INTERRUPTED
    looking.set()
    assert capsys.readouterr().err.startswith("Stopped while waiting for the other machines: no rank was started")
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
    process = launch.train(*settings, *nodes)
    while not listens(port):  # until they could meet there
        assert process.poll() is None, launch.output()
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert launch.codes() == [EXIT_INTERRUPTED]
    assert launch.output().splitlines() == [
        "Stopped while waiting for the other machines: no rank was started. The same command begins again."
    ]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody is left
    assert not run_dir.parent.exists()


# ---- before anything starts ------------------------------------------------------------------------------

BEFORE = {
    ("devices=cpu:3",): "3 ranks can't share evenly",
    ("devices=cpu:2", "elastic=true", "schedule.batch=4"): "too few for 2 ranks",
    ("devices=3",): "this machine has 0 CUDA devices",
    ("devices=cpu:0",): "devices=cpu:0 is not a choice",
    ("distributed.nnodes=2",): "Add distributed.rdzv_endpoint=HOST:PORT",
    ("distributed.nnodes=2", "distributed.rdzv_endpoint=node0"): "It has to be HOST:PORT",
    ("distributed.nnodes=2", "distributed.rdzv_endpoint=node0:port"): "It has to be HOST:PORT",
    ("distributed.nnodes=2", "distributed.rdzv_endpoint=node0:70000"): "It has to be HOST:PORT",
    ("distributed.nnodes=0",): "It has to be at least 1",
    ("devices=cpu:2", "loss.reg_interval=0"): "loss.reg_interval=0",
    ("devices=cpu:2", "augmentation=ada", "augmentation.target=2"): "augmentation.target=2",
}


@pytest.mark.parametrize(("given", "words"), BEFORE.items())
def test_what_the_parent_refuses(settings, run_dir, capsys, monkeypatch, given, words):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("pggan.distributed.agent.launch", None)
    assert main(["train", *settings, *given]) == 2
    assert words in capsys.readouterr().err
    assert not run_dir.parent.exists()


BROKEN = {
    "only RANK": ({name: "" for name in LAUNCHER if name != "RANK"}, "WORLD_SIZE, LOCAL_RANK"),
    "no address": ({"MASTER_ADDR": ""}, "but not MASTER_ADDR."),
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
