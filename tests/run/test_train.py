"""The main job, small: grow, stop, resume, and leave a run directory that keeps its promises."""

import shutil

import numpy as np
import pytest

from pggan.cli.compose import compose
from pggan.cli.main import main
from pggan.core.errors import UserError
from pggan.run import train
from pggan.run.inspect import facts_of_run
from pggan.run.summary import records_of

# ---- what a run leaves -----------------------------------------------------------------------------------


def test_a_run_leaves_everything_the_design_promises(finished_run):
    names = {path.name for path in finished_run.iterdir()}
    assert {"config.yaml", "train.log", "metrics.jsonl", "samples", "checkpoints", "generator.safetensors"} <= names
    assert sum(name.startswith("events.out.tfevents.") for name in names) == 1
    pictures = sorted(path.name for path in (finished_run / "samples").glob("*.png"))
    assert pictures == ["fakes-000000000.png", "fakes-000000080.png", "fakes-000000160.png", "reals.png"]
    assert len(list((finished_run / "samples" / "timelapse").iterdir())) == 21  # one per update, and the first
    checkpoint = {path.name for path in (finished_run / "checkpoints" / "000000160").iterdir()}
    assert checkpoint == {"weights.safetensors", "state.safetensors", "state.json"}
    facts = facts_of_run(finished_run)
    assert (facts["images"], facts["resolution"], facts["alpha"], facts["phase"]) == (160, 16, 1.0, "16x16 stable")


def test_metrics_are_written_once_per_tick_with_all_that_people_watch(finished_run):
    metrics = records_of(finished_run)
    assert [line["images"] for line in metrics] == [32, 64, 96, 128, 160]
    assert [line["resolution"] for line in metrics] == [4, 8, 8, 16, 16]
    assert [line["alpha"] for line in metrics] == [1.0, 0.75, 1.0, 0.75, 1.0]
    wanted = {"D/gradient_norm", "G/loss", "G/gradient_norm", "scores/reals", "scores/fakes", "images_per_second"}
    wanted |= {"memory_bytes", "eta_seconds", "batch", "learning_rate_g", "learning_rate_d"}
    assert all(wanted <= set(line) for line in metrics)
    for line in metrics:
        terms = line["D/wasserstein"] + line["D/drift"] + line["D/gradient_penalty"]
        assert line["D/loss"] == pytest.approx(terms, rel=1e-5)


# ---- the same command again ------------------------------------------------------------------------------


def test_a_finished_run_is_left_as_it_is_but_for_files_that_a_kill_has_left(run_dir, tiny_config, capsys):
    """And says what it has reached and how to go on, as at its end, instead of what it will do."""
    checkpoints = run_dir / "checkpoints"
    for name in ("000000096", ".partial-old-000000064"):
        shutil.copytree(checkpoints / "000000128", checkpoints / name)
    before = facts_of_run(run_dir)["state_sha256"], (run_dir / "metrics.jsonl").read_text()
    log = (run_dir / "train.log").read_text()
    assert train.run(tiny_config(f"run_dir={run_dir}")) == 0
    said = capsys.readouterr().err
    assert "has ended" in said
    assert f"pggan train grow={run_dir} hours=1" in said
    assert f"{run_dir}/samples/fakes-000000160.png" in said
    assert "Schedule" not in said
    assert (run_dir / "train.log").read_text() == log
    assert (facts_of_run(run_dir)["state_sha256"], (run_dir / "metrics.jsonl").read_text()) == before
    assert sorted(path.name for path in checkpoints.iterdir()) == ["000000128", "000000160"]


@pytest.mark.slow
def test_a_finished_run_resumes_when_more_images_are_asked_for_here_or_in_another_directory(
    run_dir, tiny_config, tmp_path
):
    more = "schedule.total_images=200"
    train.run(tiny_config(f"run_dir={tmp_path / 'new'}", f"resume={run_dir}", more))
    train.run(tiny_config(f"run_dir={run_dir}", more))
    train.run(tiny_config(f"run_dir={tmp_path / 'whole'}", more))
    wanted = facts_of_run(tmp_path / "whole")["state_sha256"]
    assert facts_of_run(run_dir)["state_sha256"] == facts_of_run(tmp_path / "new")["state_sha256"] == wanted
    assert "schedule.total_images: None -> 200" in (run_dir / "train.log").read_text()


def test_run_dir_alone_reads_the_configuration_in_a_checkpoint_if_config_yaml_is_lost(run_dir, capsys):
    before, checkpoint = compose("train", [f"run_dir={run_dir}"]), run_dir / "checkpoints" / "000000160"
    (run_dir / "config.yaml").unlink()
    assert compose("train", [f"run_dir={run_dir}"]) == before
    for content in ("name: caf\xe9".encode("latin1"), b"", b"data: photos", b"- a"):
        (run_dir / "config.yaml").write_bytes(content)
        with pytest.raises(UserError, match=r"config\.yaml is damaged.\s+Remove it"):
            compose("train", [f"run_dir={run_dir}"])
    assert main(["train", f"run_dir={checkpoint}"]) == 2
    assert f"set run_dir={run_dir}." in capsys.readouterr().err
    assert {path.name for path in checkpoint.iterdir()} == {"weights.safetensors", "state.safetensors", "state.json"}


# ---- kinds of images -------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 4])
def test_grey_and_transparent_images_train(tiny_config, make_pyramid, tmp_path, channels):
    make_pyramid(tmp_path / "data", channels=channels, resolution=8)
    small = ("schedule.final_resolution=8", "schedule.total_images=40")
    assert train.run(tiny_config(f"run_dir={tmp_path / 'run'}", f"data.path={tmp_path / 'data'}", *small)) == 0
    assert facts_of_run(tmp_path / "run")["architecture"]["channels"] == channels


@pytest.mark.slow
def test_labels_train_and_their_losses_are_reported(tiny_config, tmp_path, labelled_data):
    config = tiny_config(f"run_dir={tmp_path}", f"data.path={labelled_data}", "data.labels=true")
    assert train.run(config) == 0
    assert {"D/class_loss_reals", "D/class_loss_fakes", "G/class_loss_fakes"} <= set(records_of(tmp_path)[-1])
    assert facts_of_run(tmp_path)["architecture"]["num_classes"] == 3


@pytest.mark.rare
def test_the_same_command_really_runs_every_level_to_1024(tiny_config, make_pyramid, tmp_path):
    make_pyramid(tmp_path / "data", resolution=1024, images=2)
    schedule = ["final_resolution=1024", "stable_images=1", "fade_images=1", "batch=1"]
    words = [f"run_dir={tmp_path / 'run'}", f"data.path={tmp_path / 'data'}", *(f"schedule.{key}" for key in schedule)]
    words += ["model.fmap_max=2", "model.fmap_base=2048", "model.stddev_group=1"]
    words += ["monitor.tick_images=1", "monitor.grid_images=1000", "monitor.grid=1x1"]
    assert train.run(tiny_config(*words)) == 0
    phases = [line["phase"] for line in records_of(tmp_path / "run")]
    sides = [4, 8, 16, 32, 64, 128, 256, 512, 1024]
    assert phases == ["4x4 stable", *(f"{side}x{side} {kind}" for side in sides[1:] for kind in ("fade", "stable"))]
    assert all(np.isfinite(line["D/loss"]) and np.isfinite(line["G/loss"]) for line in records_of(tmp_path / "run"))
