"""hours= on the command line: what is given stays, the choice is kept, and the run repeats without a clock."""

from shutil import rmtree
from types import SimpleNamespace

import pytest

from pggan.checkpoints.read import newest_checkpoint
from pggan.cli.auto_recipe import with_choices
from pggan.cli.commands import COMMANDS
from pggan.cli.compose import compose
from pggan.cli.main import main
from pggan.cli.recipe_file import Difference, read_recipe, write_recipe
from pggan.core.errors import UserError
from pggan.performance import hours
from pggan.performance.hours import MeasuredCosts
from pggan.performance.recipe import Choice
from pggan.run import compose as composing
from pggan.run import loop, report
from pggan.training import timing
from tests.composed import composed

SECONDS = 4
SECONDS_PER_IMAGE = 0.01
HOURS = f"hours={SECONDS / 3600}"


def test_hours_choose_nothing_for_a_run_that_exists(tmp_path, capsys):
    assert main(["train", "hours=1", "resume=elsewhere"]) == 2
    assert "new run" in capsys.readouterr().err
    (tmp_path / "checkpoints" / "000000008").mkdir(parents=True)
    assert main(["train", "hours=1", f"run_dir={tmp_path}"]) == 2
    assert "leave out hours=" in capsys.readouterr().err
    assert not (tmp_path / "recipe.yaml").exists()


def test_hours_choose_nothing_for_a_card_that_is_elsewhere(capsys):
    assert main(["plan", "hours=1", "device=h200"]) == 2
    assert "Leave out one of them" in capsys.readouterr().err


def test_a_recipe_is_chosen_anew_as_long_as_the_run_has_no_checkpoint(tmp_path, monkeypatch, make_pyramid):
    """One that a refused command has left says nothing about the images of the next command."""
    make_pyramid(tmp_path / "images")
    words, asked = ["hours=1", f"data.path={tmp_path / 'images'}", f"run_dir={tmp_path / 'run'}"], []

    def find_recipe(*_):
        asked.append(len(asked) + 1)
        return [Choice("schedule.batch", {4: 8 * len(asked)}, "a test")], "a test"

    def chosen():
        return with_choices(COMMANDS["train"], composed("train", words), words, None)["schedule"]["batch"]

    monkeypatch.setattr(hours, "find_recipe", find_recipe)
    assert [chosen(), chosen()] == [{4: 8}, {4: 16}]
    (tmp_path / "run" / "checkpoints" / "000000008").mkdir(parents=True)
    assert chosen() == {4: 16}
    assert asked == [1, 2]


@pytest.fixture
def even_costs(monkeypatch):
    """Every image of every network is expected to take a hundredth of a second, and commands begin at once.

    Returns the networks that were measured.
    """
    measured, of = [], MeasuredCosts.__call__

    def measure(self, config, recipe, seconds):
        is_new = recipe.sizes not in measured
        measured.extend([recipe.sizes] * is_new)
        return is_new

    for module in (hours, composing):
        monkeypatch.setattr(module, "command_seconds", lambda: 0.0)
    monkeypatch.setattr(MeasuredCosts, "measure", measure)
    monkeypatch.setattr(MeasuredCosts, "__call__", lambda *asked: dict.fromkeys(of(*asked), SECONDS_PER_IMAGE))
    return measured


@pytest.fixture
def chosen(even_costs, monkeypatch):
    """The values that a command has with hours=, on a machine of 1 GFLOP/s."""
    monkeypatch.setattr(timing, "product_rate", lambda *_: 1e9)
    monkeypatch.setattr(hours, "configure_process", lambda *_, **__: None)

    def values_of(name, *words):
        words = [*words, "devices=cpu", "evaluation.metrics=[]"]
        return with_choices(COMMANDS[name], composed(name, words), words, None)

    return values_of


def test_typed_lengths_stay_in_the_recipe_and_what_is_shown(chosen, tmp_path, capsys):
    typed = ["schedule.fade_images={8: 200, 16: 300, 32: 400}", "schedule.lr_decay_images=77"]
    values = chosen("train", "hours=0.01", "experiment=avatars_32", "data.count=64", f"run_dir={tmp_path}", *typed)
    shown, schedule = capsys.readouterr().err, values["schedule"]
    assert "schedule.stable_images=" in shown
    assert not any(key in shown for key in ("fade_images=", "lr_decay_images="))
    assert (schedule["fade_images"], schedule["lr_decay_images"]) == ({8: 200, 16: 300, 32: 400}, 77)
    assert compose("train", read_recipe(tmp_path / "recipe.yaml"))["schedule"] == schedule
    images = sum(schedule["stable_images"].values()) + 900
    assert images * SECONDS_PER_IMAGE == pytest.approx(36, rel=0.06)


def test_a_typed_end_is_refused_and_that_of_a_file_of_the_schedule_yields_to_the_hours(chosen):
    with pytest.raises(UserError, match="both say when to end"):
        chosen("plan", "hours=0.01", "schedule.total_images=1000")
    words = ["schedule=official_1gpu", "schedule.final_resolution=8"]
    assert composed("plan", words)["schedule"]["total_images"] is not None
    schedule = chosen("plan", "hours=0.01", "data.count=64", *words)["schedule"]
    assert schedule["total_images"] is None
    assert schedule["batch"] == {4: 128, 32: 64, 64: 32, 128: 16, 256: 8, 512: 4}  # the file's


# ---- a recipe that is named by its path --------------------------------------------------------------------


@pytest.fixture
def recipe_file(tmp_path):
    """A recipe as a run of given hours leaves it: it ends after so many images."""
    lengths = {"stable_images": {4: 100, 8: 100, 16: 100, 32: 900}, "fade_images": {8: 100, 16: 100, 32: 100}}
    keys = {f"schedule.{key}": value for key, value in lengths.items()} | {"schedule.total_images": 1500}
    keys |= {"loss.gamma": 2.5, "threads": 1, "seed": 7}
    differences = [Difference(key, value, "because", is_group=False) for key, value in keys.items()]
    path = tmp_path / "old recipe.yaml"
    write_recipe(path, "A test.", [Difference("experiment", "avatars_32", "given", is_group=True), *differences])
    return path


def test_the_lengths_of_a_file_are_scaled_and_the_new_recipe_needs_it_no_more(recipe_file, chosen, tmp_path):
    run_dir = tmp_path / "run"
    words = ["hours=0.01", f"experiment={recipe_file}", "data.count=64", "seed=3", f"run_dir={run_dir}"]
    values = chosen("train", *words)
    schedule = values["schedule"]
    assert schedule["total_images"] is None
    assert schedule["stable_images"] == {4: 240, 8: 240, 16: 240, 32: 2100}
    assert (values["loss"]["gamma"], values["threads"], values["seed"]) == (2.5, 1, 3)
    recipe_file.unlink()
    assert f"experiment={recipe_file}" in " ".join((run_dir / "recipe.yaml").read_text().replace("\n#", "").split())
    recipe = read_recipe(run_dir / "recipe.yaml")
    assert {"experiment=avatars_32", "loss.gamma=2.5", "threads=1", "seed=3"} < {*recipe}
    repeated = compose("train", [*recipe, "devices=cpu", f"run_dir={run_dir}"])
    assert repeated | {"hours": 0.01} == values


def test_a_run_from_a_file_resumes_with_its_recipe_by_the_same_command(recipe_file, chosen, tmp_path, monkeypatch):
    words = ["hours=0.01", f"experiment={recipe_file}", "data.count=64", f"run_dir={tmp_path / 'run'}"]
    values = chosen("train", *words)
    (tmp_path / "run" / "checkpoints" / "000000008").mkdir(parents=True)
    monkeypatch.setattr(hours, "find_recipe", None)
    assert chosen("train", *words) == values


# ---- whole runs --------------------------------------------------------------------------------------------


@pytest.fixture
def even_clock(monkeypatch, after_step):
    """A run's clock, by which every step takes as long as expected, or so many `times`, however busy the machine is."""
    clock = SimpleNamespace(now=1000.0, times=1.0)

    def pass_by(state) -> None:
        clock.now += clock.times * 8 * SECONDS_PER_IMAGE

    after_step(pass_by)
    for module in (loop, composing, report):
        time = SimpleNamespace(monotonic=lambda: clock.now, perf_counter=lambda: clock.now)
        monkeypatch.setattr(module, "time", time)
    return clock


@pytest.mark.slow
def test_a_run_of_hours_keeps_its_recipe_and_ends_in_time(toy_data, tmp_path, even_costs, even_clock, capsys):
    words = ["train", f"data.path={toy_data}", "devices=cpu", "monitor.tick_images=32", f"run_dir={tmp_path}"]
    assert main([*words, HOURS]) == 0
    assert "schedule.final_resolution=" in capsys.readouterr().err
    recipe, (checkpoint, _) = read_recipe(tmp_path / "recipe.yaml"), newest_checkpoint(tmp_path)
    assert "monitor.tick_images=32" in recipe
    assert not any(one.startswith(("run_dir", "hours", "devices")) for one in recipe)
    assert 0.8 * SECONDS < checkpoint.header["spent_seconds"] < 1.1 * SECONDS
    before = (tmp_path / "recipe.yaml").read_bytes()
    for command in ([*words, HOURS], [*words, "hours=1"], ["train", f"run_dir={tmp_path}"]):
        assert main(command) == 0  # the run is complete, and its recipe is not chosen anew
        assert newest_checkpoint(tmp_path)[0].images == checkpoint.images
    assert (tmp_path / "recipe.yaml").read_bytes() == before


@pytest.mark.slow
def test_growth_becomes_shorter_on_a_slow_machine_and_a_resumed_run_keeps_the_plan(
    toy_data, tmp_path, even_costs, even_clock
):
    even_clock.times = 5.0
    words = ["train", f"data.path={toy_data}", "devices=cpu", "monitor.tick_images=16", "schedule.final_resolution=8"]
    words += ["checkpoint.every_images=320", "checkpoint.milestones=phases", f"hours={5 * SECONDS / 3600}"]
    words += [f"run_dir={tmp_path}"]
    assert main(words) == 0
    log, (checkpoint, _) = (tmp_path / "train.log").read_text(), newest_checkpoint(tmp_path)
    assert log.count("growth becomes shorter, so that 8x8 has time.") == 1
    assert "was faded in" not in log
    assert checkpoint.header["growth_images"][1] < checkpoint.header["config"]["schedule"]["fade_images"]["8"]
    rmtree(checkpoint.directory)
    grown = newest_checkpoint(tmp_path)[0]
    assert main(words) == 0
    assert newest_checkpoint(tmp_path)[0].header["growth_images"] == grown.header["growth_images"]
    assert "Changed since then" not in (tmp_path / "train.log").read_text()
