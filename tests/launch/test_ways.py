"""Every way of starting several processes gives one run: one directory, one log, one stream, the same bits."""

import json
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pggan.checkpoints.read import newest_checkpoint
from pggan.run.inspect import facts_of_run

ROOT = Path(__file__).parents[2]
TRAIN = (sys.executable, str(ROOT / "train.py"))
LOCAL = {"GLOO_SOCKET_IFNAME": "lo"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="network interfaces are named as on Linux"),
]


@pytest.fixture
def run_dir(tmp_path) -> Path:
    return tmp_path / "runs" / "run"


@pytest.fixture
def settings(tiny_overrides, run_dir) -> list[str]:
    """Of one machine."""
    return [*tiny_overrides, f"run_dir={run_dir}"]


@pytest.fixture
def agents(settings, port) -> list[str]:
    """Of each of two machines that are both this one."""
    there = f"127.0.0.1:{port}"
    return [
        *settings,
        "devices=cpu:1",
        "distributed.nnodes=2",
        f"distributed.rdzv_endpoint={there}",
        "distributed.local_addr=127.0.0.1",
    ]


def require_one_run(run_dir: Path, output: str, *, starts: int = 1) -> None:
    """One directory with one file of events per start; no line, point or message twice."""
    assert [path.name for path in run_dir.parent.iterdir()] == [run_dir.name]
    names = sorted(path.name.split(".tfevents.")[0] for path in run_dir.iterdir())
    files = ["config.yaml", *starts * ["events.out"], "generator.safetensors", "metrics.jsonl"]
    assert names == ["checkpoints", *files, "samples", "train.log"]
    metrics = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    images = [point["images"] for point in metrics]
    assert images == sorted(set(images))
    assert {32, 64, 96, 128, 160} <= set(images)
    log = (run_dir / "train.log").read_text().splitlines()
    ticks = [line for line in log if " img/s " in line]
    assert len(ticks) == len(metrics)
    assert len(set(log)) == len(log)
    for text in (output, "\n".join(log)):
        assert text.count("Done: 160 images") == 1


def test_train_starts_its_own_processes(launch, settings, run_dir, expected_state):
    launch.start(*TRAIN, *settings, "devices=cpu:2")
    assert launch.codes() == [0], launch.output()
    require_one_run(run_dir, launch.output())
    assert facts_of_run(run_dir)["state_sha256"] == expected_state


def test_machines_that_share_a_disk_prepare_the_images_once(launch, agents, run_dir, tmp_path):
    photos, cache = tmp_path / "photos", tmp_path / "cache"
    photos.mkdir()
    source = np.random.default_rng(0)
    for number in range(8):
        Image.fromarray(source.integers(0, 256, (16, 16, 3), np.uint8)).save(photos / f"{number}.png")
    for _ in range(2):
        launch.start(*TRAIN, *agents, f"data.path={photos}", f"data.cache={cache}", "schedule.total_images=8", **LOCAL)
    assert launch.codes() == [0, 0], launch.output()
    assert launch.output().count("Preparing ") == 1
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1


# ---- signals ---------------------------------------------------------------------------------------------


def wait_for_steps(run_dir: Path, launch) -> None:
    metrics = run_dir / "metrics.jsonl"
    end = time.monotonic() + 100
    while not (metrics.is_file() and metrics.stat().st_size):
        assert time.monotonic() < end, launch.output()
        time.sleep(0.05)


def require_saved(run_dir: Path, output: str) -> int:
    """The images of the newest checkpoint, which was made because of a signal."""
    checkpoint = newest_checkpoint(run_dir)[0]
    assert checkpoint is not None
    assert output.count(f"Interrupted at {checkpoint.images:,} images; all is saved") == 1
    return checkpoint.images


def test_train_joins_the_processes_of_torchrun(launch, settings, run_dir, expected_state):
    """Stopped and started again; torchrun has no exit code for what was only interrupted."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", TRAIN[1]]
    launch.start(*torchrun, *settings, "monitor.tick_images=8", **LOCAL)
    wait_for_steps(run_dir, launch)
    launch.processes[0].send_signal(signal.SIGTERM)
    assert launch.codes() == [1], launch.output()
    assert require_saved(run_dir, launch.output()) < 160
    launch.start(*torchrun, *settings, **LOCAL)
    assert launch.codes() == [1, 0], launch.output()
    require_one_run(run_dir, launch.output(), starts=2)
    assert facts_of_run(run_dir)["state_sha256"] == expected_state


def test_sigterm_to_one_machine_stops_all_and_one_machine_goes_on(
    launch, ranks, port, agents, settings, run_dir, expected_state
):
    for _ in range(2):
        launch.start(*TRAIN, *agents, "monitor.tick_images=8", **LOCAL)
    wait_for_steps(run_dir, launch)
    launch.processes[1].send_signal(signal.SIGTERM)
    assert launch.codes() == [75, 75], launch.output()
    assert require_saved(run_dir, launch.output()) < 160
    ended = ranks(*2 * [settings], master_port=port)
    assert [process.code for process in ended] == [0, 0], ended
    require_one_run(run_dir, launch.output() + ended[0].output, starts=2)
    assert facts_of_run(run_dir)["state_sha256"] == expected_state
