"""The main job, small: grow, stop, go on, and leave a run directory that keeps its promises."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from pggan.run.run import idle_cores
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pggan.checkpoints.read import load_generator, newest_checkpoint
from pggan.core.devices import choose_device
from pggan.core.errors import UserError
from pggan.distributed.membership import batch_partition
from pggan.distributed.process_group import ProcessGroup
from pggan.run import train
from pggan.run.inspect import facts_of_run


def metrics_of(run_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_everything_the_design_promises(tiny_config, tmp_path):
    run_dir = tmp_path / "run"
    assert train.run(tiny_config(f"run_dir={run_dir}")) == 0
    names = {path.name for path in run_dir.iterdir()}
    assert {"config.yaml", "train.log", "metrics.jsonl", "samples", "checkpoints", "generator.safetensors"} <= names
    assert sum(name.startswith("events.out.tfevents.") for name in names) == 1
    pictures = sorted(path.name for path in (run_dir / "samples").iterdir())
    assert pictures == ["fakes-000000000.png", "fakes-000000080.png", "fakes-000000160.png", "reals.png"]
    checkpoint = sorted(path.name for path in (run_dir / "checkpoints" / "000000160").iterdir())
    parts = ("generator_ema", "discriminator", "generator", "grad_scaler", "optimizer_d", "optimizer_g")
    assert checkpoint == [*(f"{part}.safetensors" for part in parts), "state.json"]
    facts = facts_of_run(run_dir)
    assert (facts["images"], facts["resolution"], facts["alpha"], facts["phase"]) == (160, 16, 1.0, "16x16 stable")


def test_metrics_are_written_once_per_tick_with_all_that_people_watch(tiny_config, tmp_path):
    train.run(tiny_config(f"run_dir={tmp_path}"))
    metrics = metrics_of(tmp_path)
    assert [line["images"] for line in metrics] == [32, 64, 96, 128, 160]
    assert [line["resolution"] for line in metrics] == [4, 8, 8, 16, 16]
    assert [line["alpha"] for line in metrics] == [1.0, 0.75, 1.0, 0.75, 1.0]
    wanted = {"D/loss", "D/critic", "D/drift", "D/gradient_penalty", "D/gradient_norm", "G/loss", "G/gradient_norm"}
    wanted |= {"scores/reals", "scores/fakes", "images_per_second", "memory_bytes", "eta_seconds", "batch"}
    wanted |= {"learning_rate_g", "learning_rate_d"}
    assert all(wanted <= set(line) for line in metrics)
    for line in metrics:
        parts = line["D/critic"] + line["D/drift"] + line["D/gradient_penalty"]
        assert line["D/loss"] == pytest.approx(parts, rel=1e-5)


def test_tensorboard_shows_the_scalars_and_both_grids(tiny_config, tmp_path):
    train.run(tiny_config(f"run_dir={tmp_path}"))
    board = EventAccumulator(str(tmp_path)).Reload()
    assert {"D/loss", "G/loss", "schedule/alpha", "schedule/resolution", "speed/images_per_second"} <= set(
        board.Tags()["scalars"]
    )
    assert set(board.Tags()["images"]) == {"reals", "fakes"}
    assert [event.step for event in board.Scalars("G/loss")] == [32, 64, 96, 128, 160]


def test_the_reals_grid_shows_the_data(tiny_config, tmp_path):
    config = tiny_config(f"run_dir={tmp_path}")
    train.run(config)
    picture = np.asarray(Image.open(tmp_path / "samples" / "reals.png"))
    assert picture.shape == (2 * 16, 3 * 16, 3)
    top_level = np.fromfile(Path(str(config.data.path)) / "r0016-00000.bin", np.uint8).reshape(-1, 16, 16, 3)
    assert np.array_equal(picture[:16, :16], top_level[0])
    assert np.array_equal(picture[16:, 16:32], top_level[4])


def test_a_finished_run_is_left_as_it_is(tiny_config, tmp_path):
    config = tiny_config(f"run_dir={tmp_path}")
    train.run(config)
    before = facts_of_run(tmp_path)["state_sha256"], (tmp_path / "metrics.jsonl").read_text()
    assert train.run(config) == 0
    assert (facts_of_run(tmp_path)["state_sha256"], (tmp_path / "metrics.jsonl").read_text()) == before


def test_a_finished_run_goes_on_when_more_images_are_asked_for(tiny_config, tmp_path):
    train.run(tiny_config(f"run_dir={tmp_path / 'a'}"))
    train.run(tiny_config(f"run_dir={tmp_path / 'a'}", "schedule.total_images=200"))
    train.run(tiny_config(f"run_dir={tmp_path / 'b'}", "schedule.total_images=200"))
    assert facts_of_run(tmp_path / "a")["state_sha256"] == facts_of_run(tmp_path / "b")["state_sha256"]
    assert "schedule.total_images: None -> 200" in (tmp_path / "a" / "train.log").read_text()


def test_seeds_differ_and_runs_repeat(tiny_config, tmp_path):
    hashes = []
    for number, seed in enumerate((0, 0, 1)):
        train.run(tiny_config(f"run_dir={tmp_path / str(number)}", f"seed={seed}"))
        hashes.append(facts_of_run(tmp_path / str(number))["state_sha256"])
    assert hashes[0] == hashes[1] != hashes[2]


def test_other_networks_are_refused_by_name_before_anything_changes(tiny_config, tmp_path):
    train.run(tiny_config(f"run_dir={tmp_path}"))
    before = (tmp_path / "config.yaml").read_text()
    with pytest.raises(UserError, match="fmap_max: 8 -> 4"):
        train.run(tiny_config(f"run_dir={tmp_path}", "model.fmap_max=4"))
    assert (tmp_path / "config.yaml").read_text() == before


def test_resume_never_refuses_a_used_directory(tiny_config, tmp_path):
    train.run(tiny_config(f"run_dir={tmp_path}"))
    with pytest.raises(UserError, match="resume=never"):
        train.run(tiny_config(f"run_dir={tmp_path}", "resume=never"))


def test_resume_takes_the_path_of_another_run(tiny_config, tmp_path):
    train.run(tiny_config(f"run_dir={tmp_path / 'a'}"))
    train.run(tiny_config(f"run_dir={tmp_path / 'b'}", f"resume={tmp_path / 'a'}", "schedule.total_images=200"))
    train.run(tiny_config(f"run_dir={tmp_path / 'c'}", "schedule.total_images=200"))
    assert facts_of_run(tmp_path / "b")["state_sha256"] == facts_of_run(tmp_path / "c")["state_sha256"]
    with pytest.raises(UserError, match="no checkpoint"):
        train.run(tiny_config(f"run_dir={tmp_path / 'd'}", f"resume={tmp_path / 'nowhere'}"))
    assert not (tmp_path / "d").exists()


def test_data_below_the_final_resolution_is_refused(tiny_config, tmp_path):
    with pytest.raises(UserError, match="goes up to 16x16"):
        train.run(tiny_config(f"run_dir={tmp_path / 'run'}", "schedule.final_resolution=32"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("channels", [1, 4])
def test_grey_and_transparent_images_train(tiny_config, make_pyramid, tmp_path, channels):
    make_pyramid(tmp_path / "data", channels=channels)
    config = tiny_config(f"run_dir={tmp_path / 'run'}", f"data.path={tmp_path / 'data'}")
    assert train.run(config) == 0
    assert facts_of_run(tmp_path / "run")["architecture"]["channels"] == channels


def test_labels_train_and_their_losses_are_reported(tiny_config, tmp_path, labelled_data):
    config = tiny_config(f"run_dir={tmp_path}", f"data.path={labelled_data}", "data.labels=true")
    assert train.run(config) == 0
    assert {"D/labels_reals", "D/labels_fakes", "G/labels_fakes"} <= set(metrics_of(tmp_path)[-1])
    assert facts_of_run(tmp_path)["architecture"]["labels"] == 3


def test_checkpoints_beyond_keep_are_dropped_oldest_first(tiny_config, tmp_path):
    train.run(tiny_config(f"run_dir={tmp_path}", "checkpoint.every_images=64", "checkpoint.keep=2"))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["000000128", "000000160"]


def test_the_saved_generator_is_the_averaged_one(tiny_config, tmp_path):
    train.run(tiny_config(f"run_dir={tmp_path}"))
    loaded = load_generator(str(tmp_path), choose_device("cpu"))
    checkpoint, _ = newest_checkpoint(tmp_path)
    assert checkpoint is not None
    from_checkpoint = load_generator(str(checkpoint.directory), choose_device("cpu"))
    for name, value in loaded.network.state_dict().items():
        assert value.equal(from_checkpoint.network.state_dict()[name])
    assert (loaded.resolution, loaded.alpha, loaded.images) == (16, 1.0, 160)


def test_control_c_exits_with_75_and_the_same_command_goes_on(tiny_overrides, tmp_path):
    run_dir = tmp_path / "run"
    command = [sys.executable, "train.py", *tiny_overrides, f"run_dir={run_dir}", "schedule.total_images=100000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, cwd=Path(__file__).parents[1], text=True)
    log = run_dir / "train.log"
    while not (log.is_file() and "Phase 2" in log.read_text()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    stopped_at = facts_of_run(run_dir)["images"]
    total = f"schedule.total_images={max(stopped_at + 8, 160)}"
    done = subprocess.run(
        [*command, total], stderr=subprocess.PIPE, cwd=Path(__file__).parents[1], text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"Going on from {stopped_at:,} images" in done.stderr


@pytest.mark.slow
def test_the_same_command_really_runs_every_level_to_1024(tiny_config, make_pyramid, tmp_path):
    make_pyramid(tmp_path / "data", resolution=1024, images=4)
    config = tiny_config(
        f"run_dir={tmp_path / 'run'}",
        f"data.path={tmp_path / 'data'}",
        "schedule.final_resolution=1024",
        "schedule.stable_images=2",
        "schedule.fade_images=2",
        "schedule.batch=2",
        "model.fmap_max=4",
        "model.fmap_base=4096",
        "monitor.tick_images=2",
        "monitor.grid=1x1",
    )
    assert train.run(config) == 0
    phases = [line["phase"] for line in metrics_of(tmp_path / "run")]
    sides = [4, 8, 16, 32, 64, 128, 256, 512, 1024]
    assert phases == ["4x4 stable", *(f"{side}x{side} {kind}" for side in sides[1:] for kind in ("fade", "stable"))]
    assert all(np.isfinite(line["D/loss"]) and np.isfinite(line["G/loss"]) for line in metrics_of(tmp_path / "run"))


def test_elastic_training_says_how_to_use_all_cores(tiny_config):
    config = tiny_config("elastic=true", "distributed.elastic_chunks=3", "schedule.batch=16")
    alone = ProcessGroup.single_process(torch.device("cpu"))
    (remark,) = idle_cores(config, batch_partition(config, 1), alone, 8)
    assert "devices=cpu:2" in remark  # of 4 groups, at most 2 in each of 3 shards
    assert not idle_cores(config, batch_partition(config, 1), alone, 1)
    plain = tiny_config("schedule.batch=16")
    assert not idle_cores(plain, batch_partition(plain, 1), alone, 8)
