"""Mistakes with several ranks: reported once, exit code 2 everywhere, nothing written, no rank waits for ever."""

import os
import signal
import socket
import time

import pytest

from pggan.cli.main import main
from pggan.core.errors import EXIT_INTERRUPTED, EXIT_USER_ERROR
from tests.launch.conftest import listens


def require_reported_once(ended, *words: str) -> None:
    assert [process.code for process in ended] == [EXIT_USER_ERROR] * len(ended), ended
    output = "".join(process.output for process in ended)
    assert output.count("Error: ") == 1, output
    assert "Traceback" not in output
    for word in words:
        assert word in output


# ---- ranks that differ -----------------------------------------------------------------------------------


def test_ranks_with_different_settings(ranks, settings, run_dir, port):
    ended = ranks(settings, [*settings, "compute.micro_batch_size=4"], master_port=port)
    require_reported_once(ended, "Rank 1 has another compute.micro_batch_size than rank 0: 4 instead of None")
    assert not run_dir.parent.exists()


def test_ranks_with_different_images(ranks, settings, run_dir, port, make_pyramid, tmp_path):
    """The same path holds other images on another machine."""
    machines = (tmp_path / "a", tmp_path / "b")
    for number, folder in enumerate(machines):
        make_pyramid(folder / "faces", images=48 - number)
    ended = ranks(*2 * [[*settings, "data.path=faces"]], master_port=port, folders=machines)
    require_reported_once(ended, "Rank 1 has another set of images (fingerprint) than rank 0")
    assert not run_dir.parent.exists()


# ---- ranks that do not find each other -------------------------------------------------------------------


def test_a_port_that_is_in_use(ranks, settings):
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        (first,) = ranks(settings, master_port=port, size=2)
    assert first.code == EXIT_USER_ERROR
    assert f"Error: Rank 0 of 2 did not find the other ranks at 127.0.0.1:{port}: The server socket" in first.output


@pytest.mark.slow
@pytest.mark.parametrize("here", [True, False])
def test_a_signal_while_a_machine_waits_for_the_others(launch, settings, run_dir, port, here):
    """It keeps the rendezvous, or looks for the machine that does."""
    place = f"127.0.0.1:{port}" if here else f"192.0.2.1:{port}"  # an address for documentation
    process = launch.train(*settings, "devices=cpu:1", "distributed.nnodes=2", f"distributed.rdzv_endpoint={place}")
    while here and not listens(port):
        assert process.poll() is None, launch.output()
        time.sleep(0.1)
    time.sleep(0 if here else 5)
    process.send_signal(signal.SIGTERM)
    assert launch.codes() == [EXIT_INTERRUPTED], launch.output()
    assert launch.output().startswith("Stopped at once. There is no checkpoint yet.")
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody is left
    assert not run_dir.parent.exists()


# ---- before anything starts ------------------------------------------------------------------------------

BEFORE = {
    ("devices=cpu:3",): "each of 3 ranks needs equally many groups",
    ("devices=cpu:2", "elastic=true", "schedule.batch=4"): "too few for 2 ranks",
    ("distributed.nnodes=2", "distributed.rdzv_endpoint=node0"): "It has to be HOST:PORT",
    ("distributed.nnodes=2", "distributed.rdzv_endpoint=node0:65536"): "It has to be HOST:PORT",
}


@pytest.mark.parametrize(("given", "words"), BEFORE.items())
def test_what_the_parent_refuses(settings, run_dir, capfd, given, words):
    assert main(["train", *settings, *given]) == EXIT_USER_ERROR
    assert words in capfd.readouterr().err
    assert not run_dir.parent.exists()


def test_copies_of_the_command_under_srun(settings, run_dir, capsys, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert main(["train", *settings]) == 2
    assert "each copy would train a run of its own" in capsys.readouterr().err
    assert not run_dir.parent.exists()
