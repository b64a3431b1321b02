"""hours= on the command line: what is given stays, the choice is kept, and the run ends in time."""

import re
import time
from shutil import rmtree
from types import SimpleNamespace

import pytest

from pggan.checkpoints.read import newest_checkpoint
from pggan.cli.commands import COMMANDS
from pggan.cli.compose import compose, read_recipe
from pggan.cli.main import main
from pggan.cli.recipe import with_choices, write
from pggan.metrics import Evaluator
from pggan.performance import hours
from pggan.performance.recipe import Choice
from pggan.run import compose as composing
from pggan.run import evaluation, loop, report
from tests.cli.conftest import SECONDS_PER_IMAGE
from tests.composed import composed

SECONDS = 4
HEADINGS = ["Resolution", "Images", "End", "More"]
HOURS = f"hours={SECONDS / 3600}"


@pytest.fixture
def old_recipe(tmp_path):
    """A recipe file with the values of a run, whose names are odd."""
    file, words = tmp_path / "old recipe.yaml", ["experiment=avatars_32", "loss=relativistic", "loss.gamma=2.5"]
    words += ["seed=7", "threads=1", "name=2025_01_02", "data.path=it's [mine], yes"]
    words += ["schedule.stable_images={4: 100, 8: 100, 16: 100, 32: 900}", "schedule.fade_images=100"]
    write(file, compose("train", words), about=["A test."])
    return file


def test_a_recipe_is_read_as_it_was_written_and_given_keys_have_priority(old_recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert old_recipe.read_text().splitlines()[:2] == ["# @package _global_", "# A test."]
    values = compose("train", [f"experiment={old_recipe}", "seed=9"])
    assert (values["seed"], values["threads"], values["name"]) == (9, 1, "2025_01_02")
    assert (values["loss"]["name"], values["loss"]["gamma"]) == ("relativistic", 2.5)
    assert (values["schedule"]["stable_images"][8], values["data"]["path"]) == (100, "it's [mine], yes")
    assert values["model"]["fmap_base"] == 256  # of the experiment
    assert compose("train", [f"experiment={old_recipe}", "loss=wgan_gp"])["loss"]["penalty_weight"] == 10
    (tmp_path / "mine.yaml").write_text("defaults:\nseed: 5\nrun_dir: 2024_05_06\ndata: {path: ~/x}")
    values = compose("train", ["experiment=~/mine.yaml"])
    assert (values["seed"], values["run_dir"], values["data"]["path"]) == (5, "2024_05_06", str(tmp_path / "x"))


def test_what_is_no_recipe_is_refused(tmp_path, capsys):
    for name, text in {"none.yaml": None, "list.yaml": "- a", "bad.yaml": "a: [1"}.items():
        if text is not None:
            (tmp_path / name).write_text(text)
        assert main(["train", f"experiment={tmp_path / name}"]) == 2
        assert "Set experiment= to the recipe.yaml of a run" in capsys.readouterr().err


def test_a_recipe_is_chosen_anew_as_long_as_the_run_has_no_checkpoint(tmp_path, monkeypatch, make_pyramid, capsys):
    """One that a refused command has left says nothing about the images of the next command."""
    make_pyramid(tmp_path / "images")
    words, asked = ["hours=1", f"data.path={tmp_path / 'images'}", f"run_dir={tmp_path / 'run'}"], []

    def find_recipe(*_, **__):
        asked.append(len(asked) + 1)
        return [Choice("schedule.batch", {4: 8 * len(asked)}, "a test")], "a test"

    def chosen():
        return with_choices(COMMANDS["train"], composed("train", words), words)["schedule"]["batch"]

    monkeypatch.setattr(hours, "find_recipe", find_recipe)
    assert [chosen()[4], chosen()[4]] == [8, 16]
    (tmp_path / "run" / "checkpoints" / "000000008").mkdir(parents=True)
    assert chosen()[4] == 16
    assert asked == [1, 2]
    (tmp_path / "run" / "recipe.yaml").unlink()
    assert main(["train", *words]) == 2
    assert "leave out hours=" in capsys.readouterr().err


def test_typed_lengths_stay_in_the_recipe_and_what_is_shown(chosen, tmp_path, capsys):
    words = ["hours=0.01", "experiment=avatars_32", "devices=cpu", "evaluation.metrics=[]", "data.count=64"]
    typed = ["schedule.fade_images={8: 200, 16: 300, 32: 400}", "schedule.lr_decay_images=77"]
    values = chosen(*words, f"run_dir={tmp_path}", *typed)
    shown, written, schedule = capsys.readouterr().err, (tmp_path / "recipe.yaml").read_text(), values["schedule"]
    assert [line.split()[0] for line in shown.splitlines() if re.match("  [A-Z]", line)] == HEADINGS
    assert all(len(line) <= 80 for line in shown.replace(str(tmp_path), "run").splitlines())
    assert "  # schedule.stable_images=" in written  # its reason
    assert not any(f"  # schedule.{key}=" in written for key in ("fade_images", "lr_decay_images"))
    fades = [schedule["fade_images"][side] for side in (8, 16, 32)]
    assert (fades, schedule["lr_decay_images"]) == ([200, 300, 400], 77)
    assert compose("train", [f"experiment={tmp_path}/recipe.yaml"])["schedule"] == schedule
    assert (sum(schedule["stable_images"].values()) + 900) * SECONDS_PER_IMAGE == pytest.approx(36, rel=0.06)


def test_the_lengths_of_a_file_are_scaled_and_the_new_recipe_needs_it_no_more(
    chosen, old_recipe, tmp_path, monkeypatch
):
    run_dir = tmp_path / "run"
    words = ["hours=0.01", f"experiment={old_recipe}", "data.path=null", "data.count=64", "seed=3", "loss=logistic"]
    words += ["devices=cpu", "evaluation.metrics=[]"]
    values = chosen(*words, f"run_dir={run_dir}")
    schedule = values["schedule"]
    assert schedule["total_images"] is None
    assert schedule["stable_images"] == {4: 240, 8: 240, 16: 240, 32: 2100}
    assert (values["loss"]["name"], values["threads"], values["seed"]) == ("logistic", 1, 3)
    (run_dir / "checkpoints" / "000000008").mkdir(parents=True)
    monkeypatch.setattr(hours, "find_recipe", None)
    assert chosen(*words, f"run_dir={run_dir}") == values  # the same command resumes the run
    old_recipe.unlink()
    repeated = compose("train", [f"experiment={run_dir}/recipe.yaml", "devices=cpu", f"run_dir={run_dir}"])
    assert repeated | {"hours": 0.01} == values


# ---- whole runs --------------------------------------------------------------------------------------------


@pytest.fixture
def even_clock(monkeypatch, after_step):
    """A run's clock, by which every step takes as long as expected, or so many `times`, however busy the machine is."""
    clock = SimpleNamespace(now=1000.0, times=1.0)

    def pass_by(state) -> None:
        clock.now += clock.times * 8 * SECONDS_PER_IMAGE

    after_step(pass_by)
    for module in (loop, composing, report):
        of_clock = dict.fromkeys(("monotonic", "perf_counter"), lambda: clock.now)
        monkeypatch.setattr(module, "time", SimpleNamespace(**of_clock, strftime=time.strftime))
    return clock


@pytest.mark.slow
def test_a_run_of_hours_keeps_its_recipe_and_ends_in_time(toy_data, tmp_path, even_costs, even_clock, capsys):
    words = ["train", f"data.path={toy_data}", "devices=cpu", "monitor.tick_images=32", f"run_dir={tmp_path}"]
    assert main([*words, HOURS]) == 0
    assert "  Resolution  " in capsys.readouterr().err
    recipe, (checkpoint, _) = read_recipe(tmp_path / "recipe.yaml"), newest_checkpoint(tmp_path)
    assert recipe["monitor.tick_images"] == "32"
    assert not {"run_dir", "hours", "devices"} & recipe.keys()
    assert 0.8 * SECONDS < checkpoint.header["spent_seconds"] < 1.1 * SECONDS
    before = (tmp_path / "recipe.yaml").read_bytes()
    for command in ([*words, HOURS], [*words, "hours=1"], ["train", f"run_dir={tmp_path}"]):
        assert main(command) == 0  # the run is complete, and its recipe is not chosen anew
        assert newest_checkpoint(tmp_path)[0].images == checkpoint.images
    assert (tmp_path / "recipe.yaml").read_bytes() == before


@pytest.mark.slow
def test_the_last_evaluation_ends_within_the_hours(toy_data, tmp_path, even_costs, even_clock, monkeypatch):
    evaluate = Evaluator.evaluate

    def take_a_fifth(*asked, **keys):
        even_clock.now += SECONDS / 5
        return evaluate(*asked, **keys)

    monkeypatch.setattr(Evaluator, "evaluate", take_a_fifth)
    monkeypatch.setattr(evaluation, "time", loop.time)
    words = [f"schedule.{key}_resolution=8" for key in ("first", "final")] + ["monitor.tick_images=32", HOURS]
    words += [f"evaluation.{word}" for word in ("metrics=[swd]", "count=16", "interval_images=64")]
    assert main(["train", f"data.path={toy_data}", "devices=cpu", f"run_dir={tmp_path}", *words]) == 0
    assert "swd" in (tmp_path / "metrics.jsonl").read_text().splitlines()[-1]
    assert 0.8 * SECONDS < newest_checkpoint(tmp_path)[0].header["spent_seconds"] < 1.1 * SECONDS


@pytest.mark.slow
def test_growth_becomes_shorter_on_a_slow_machine_and_a_resumed_run_keeps_the_plan(
    toy_data, tmp_path, even_costs, even_clock
):
    even_clock.times = 5.0
    words = ["train", f"data.path={toy_data}", "devices=cpu", "monitor.tick_images=16", "schedule.final_resolution=8"]
    words += ["checkpoint.every_images=40", "checkpoint.keep=99", f"hours={5 * SECONDS / 3600}"]
    words += [f"run_dir={tmp_path}"]
    assert main(words) == 0
    log, (checkpoint, _) = (tmp_path / "train.log").read_text(), newest_checkpoint(tmp_path)
    assert "was faded in" not in log
    assert "images were planned" in log
    assert checkpoint.header["growth_images"][1] < checkpoint.header["config"]["schedule"]["fade_images"]["8"]
    rmtree(checkpoint.directory)
    grown = newest_checkpoint(tmp_path)[0]
    assert main(words) == 0
    resumed = newest_checkpoint(tmp_path)[0]
    assert resumed.images == pytest.approx(checkpoint.images, rel=0.1)  # the hours before count
    assert resumed.header["growth_images"] == grown.header["growth_images"]
    assert "Changed since the checkpoint" not in (tmp_path / "train.log").read_text()
