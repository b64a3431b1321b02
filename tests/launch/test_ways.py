"""Every way of starting several ranks gives one run: one directory, one log, one stream, the same bits."""

import json
import os
import signal
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pggan.checkpoints.read import newest_checkpoint
from pggan.cli.main import main
from pggan.core.errors import EXIT_USER_ERROR
from pggan.run.inspect import facts_of_run
from tests.launch.conftest import ROOT, SLOW, listens, require_done, wait_for

LOCAL = {"GLOO_SOCKET_IFNAME": "lo"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="network interfaces are named as on Linux"),
]


@pytest.fixture
def agents(settings, port) -> list[str]:
    """Of each of two machines that are both this one."""
    return [*(*settings, "devices=cpu:1", "distributed.nnodes=2"), f"distributed.rdzv_endpoint=127.0.0.1:{port}"]


def require_one_run(run_dir: Path, output: str, *, starts: int = 1) -> None:
    """One directory with one file of events per start; no line, point or message twice."""
    assert [path.name for path in run_dir.parent.iterdir()] == [run_dir.name]
    assert len(list(run_dir.glob("events.out.tfevents.*"))) == starts
    metrics = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    images = [point["images"] for point in metrics]
    assert images == sorted(set(images))
    assert {32, 64, 96, 128, 160} <= set(images)
    log = (run_dir / "train.log").read_text().splitlines()
    ticks = [line for line in log if " img/s " in line]
    assert len(ticks) == len(metrics)
    begins = [number for number, line in enumerate(log) if "  Run directory  " in line]
    assert (len(begins), begins[0]) == (starts, 0)
    for start, end in pairwise([*begins, len(log)]):  # two starts may fall into one second
        assert len(set(log[start:end])) == end - start
    for text in (output, "\n".join(log)):
        assert text.count("Done: 160 images") == 1


def test_train_starts_its_own_ranks(settings, run_dir, expected_state, capfd):
    environment = dict(os.environ)
    assert main(["train", *settings, "devices=cpu:2"]) == 0
    assert {**os.environ, **environment} == os.environ
    require_one_run(run_dir, capfd.readouterr().err)
    assert facts_of_run(run_dir)["state_sha256"] == expected_state(2)


def test_machines_that_share_a_disk_prepare_the_images_once(ranks, settings, port, tmp_path):
    photos, cache = tmp_path / "photos", tmp_path / "cache"
    photos.mkdir()
    source = np.random.default_rng(0)
    for number in range(8):
        Image.fromarray(source.integers(0, 256, (16, 16, 3), np.uint8)).save(photos / f"{number}.png")
    shared = [*settings, f"data.path={photos}", f"data.cache={cache}", "schedule.total_images=8"]
    ended = ranks(shared, shared, master_port=port, alone=True)
    require_done(ended)
    assert "".join(rank.output for rank in ended).count(" for this run and later runs:") == 1
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1


# ---- signals, and a machine that is lost -----------------------------------------------------------------


def wait_for_steps(run_dir: Path, launch) -> None:
    metrics = run_dir / "metrics.jsonl"
    wait_for(lambda: metrics.is_file() and metrics.stat().st_size, launch)


def require_saved_and_resumed(run_dir: Path, output: str, ranks, settings: list[str], port: int, state: str) -> None:
    """The newest checkpoint was made because of a signal; two ranks go on from there, and end with `state`."""
    checkpoint = newest_checkpoint(run_dir)[0]
    assert checkpoint is not None
    assert checkpoint.images < 160
    assert output.count(f"Interrupted at {checkpoint.images:,} images; everything is saved") == 1
    ended = ranks(*2 * [settings], master_port=port)
    require_done(ended)
    require_one_run(run_dir, output + ended[0].output, starts=2)
    assert facts_of_run(run_dir)["state_sha256"] == state


def test_train_joins_the_ranks_of_torchrun(launch, ranks, port, settings, run_dir, expected_state):
    """Stopped and resumed; torchrun has no exit code for what was only interrupted."""
    train = ["--standalone", "--nproc-per-node", "2", str(ROOT / "train.py"), *settings, *SLOW]
    launch.start(sys.executable, "-m", "torch.distributed.run", *train, **LOCAL)
    wait_for_steps(run_dir, launch)
    launch.processes[0].send_signal(signal.SIGTERM)
    assert launch.codes() == [1], launch.output()
    require_saved_and_resumed(run_dir, launch.output(), ranks, settings, port, expected_state(2))


def test_sigterm_to_one_machine_stops_all_and_one_machine_resumes(
    launch, ranks, port, agents, settings, run_dir, expected_state
):
    for _ in range(2):
        launch.train(*agents, *SLOW, **LOCAL)
    wait_for_steps(run_dir, launch)
    launch.processes[1].send_signal(signal.SIGTERM)
    assert launch.codes() == [75, 75], launch.output()
    require_saved_and_resumed(run_dir, launch.output(), ranks, settings, port, expected_state(2))


def test_when_the_rendezvous_host_is_lost_the_others_end_and_the_run_can_be_resumed(
    launch, ranks, port, agents, settings, run_dir, expected_state
):
    for _ in range(2):
        launch.train(*agents, *SLOW, **LOCAL)
        wait_for(lambda: listens(port), launch)  # the first one keeps the rendezvous
    wait_for_steps(run_dir, launch)
    host = launch.processes[0].pid
    for pid in (host, *map(int, Path(f"/proc/{host}/task/{host}/children").read_text().split())):
        os.kill(pid, signal.SIGKILL)
    assert launch.processes[1].wait(60) == EXIT_USER_ERROR, launch.output()
    assert "or were disconnected: " in launch.output()
    require_done(ranks(*2 * [settings], master_port=port))
    assert facts_of_run(run_dir)["state_sha256"] == expected_state(2)
