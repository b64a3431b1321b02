"""hours= on the command line: what is given stays, the choice is kept, and the run repeats without a clock."""

from types import SimpleNamespace

import pytest

from pggan.checkpoints.read import newest_checkpoint
from pggan.cli.auto_recipe import GivenKeys, with_choices
from pggan.cli.commands import COMMANDS
from pggan.cli.main import main
from pggan.cli.recipe_file import read_recipe
from pggan.config import TrainConfig
from pggan.config.describe import describe
from pggan.core.validation import validated
from pggan.performance.recipe import hours
from pggan.performance.recipe.choices import Choice
from pggan.performance.recipe.hours import MeasuredCosts
from pggan.run import events, open_run, report
from pggan.run.run_dir import write_config
from tests.composed import composed

SECONDS = 4
SECONDS_PER_IMAGE = 0.01
HOURS = f"hours={SECONDS / 3600}"


def test_keys_are_given_by_the_command_line_and_by_recipes():
    given = GivenKeys.of(["experiment=avatars_32", "loss.gamma=3", "model=paper", "schedule.batch={4: 16}"])
    assert all(map(given.in_command, ("loss.gamma", "model.fmap_max", "schedule.batch")))
    assert not any(map(given.in_command, ("loss.name", "schedule.stable_images", "seed")))
    assert all(map(given.has, ("loss.gamma", "loss.name", "schedule.stable_images", "schedule.final_resolution")))
    assert not given.has("precision")


def test_a_recipe_gives_what_it_sets_to_the_default_and_what_its_base_sets(tmp_path):
    values = composed("train", ["experiment=avatars_64"])
    # Or hours= would choose another.
    assert values["schedule"]["final_resolution"] == composed("train", [])["schedule"]["final_resolution"]
    assert GivenKeys.of(["experiment=avatars_64"]).has("schedule.final_resolution")
    assert GivenKeys.of(["experiment=avatars_64"]).has("loss.reg_interval")  # of avatars_32
    own = tmp_path / "experiment" / "mine.yaml"
    own.parent.mkdir()
    own.write_text("# @package _global_\ndefaults:\n  - demo\n  - _self_\nprecision: bf16\n")
    given = GivenKeys.of(["+experiment=mine", "debug=profile"], str(tmp_path))
    assert all(map(given.has, ("precision", "schedule.batch", "monitor.profile_steps")))
    assert not given.has("optimizer.beta1")


def test_an_option_of_a_loss_holds_the_loss_that_has_it():
    assert GivenKeys.of(["experiment=cifar10_32"]).has("loss.name")  # it sets the target of wgan_gp, the default
    assert GivenKeys.of(["loss.drift=0"]).has("loss.name")
    assert not GivenKeys.of(["schedule.batch=8"]).has("loss.name")


def test_a_loss_that_is_chosen_leaves_its_options_free():
    given = GivenKeys.of(["loss=logistic"])
    assert given.in_command("loss.name")
    assert not given.in_command("loss.gamma")


def test_without_hours_and_for_a_run_that_resumes_nothing_is_chosen(monkeypatch, tmp_path):
    monkeypatch.setattr(hours, "find_recipe", None)
    train = COMMANDS["train"]
    given, resumed = ["seed=1", f"run_dir={tmp_path}"], [f"run_dir={tmp_path}", "devices=cpu"]
    values = composed("train", given)
    assert with_choices(train, values, given, None) is values
    write_config(tmp_path, describe(validated(TrainConfig, values | {"hours": 1.0})))
    values = composed("train", resumed)
    assert values["hours"] == 1.0
    assert with_choices(train, values, resumed, None) is values


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
    """Every image of every network is expected to take a hundredth of a second, and commands begin at once."""
    for module in (hours, open_run):
        monkeypatch.setattr(module, "command_seconds", lambda: 0.0)
    of = MeasuredCosts.__call__
    monkeypatch.setattr(MeasuredCosts, "measure", lambda self, _, networks, *__: self.known.setdefault(networks, {}))
    monkeypatch.setattr(MeasuredCosts, "__call__", lambda *asked: dict.fromkeys(of(*asked), SECONDS_PER_IMAGE))


@pytest.fixture
def even_clock(monkeypatch, after_step):
    """A run's clock, by which every step takes as long as expected, however busy the machine is."""
    now = [1000.0]

    def pass_by(state) -> None:
        now[0] += 8 * SECONDS_PER_IMAGE

    after_step(pass_by)
    for module in (events, open_run, report):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))


@pytest.mark.slow
def test_a_run_of_hours_keeps_its_recipe_ends_in_time_and_is_repeated_by_it(
    toy_data, tmp_path, even_costs, even_clock, capsys
):
    run_dir, again = tmp_path / "run", tmp_path / "again"
    words = ["train", f"data.path={toy_data}", "devices=cpu", "monitor.tick_images=32"]
    assert main([*words, HOURS, f"run_dir={run_dir}"]) == 0
    shown = capsys.readouterr().err
    assert "schedule.final_resolution=" in shown
    recipe = read_recipe(run_dir / "recipe.yaml")
    checkpoint, _ = newest_checkpoint(run_dir)
    assert f"schedule.total_images={checkpoint.header['total_images']}" in recipe
    assert "monitor.tick_images=32" in recipe
    assert not any(one.startswith(("run_dir", "hours", "devices")) for one in recipe)
    assert checkpoint.header["spent_seconds"] > 0.5 * SECONDS
    assert main(["train", f"experiment={run_dir}/recipe.yaml", "devices=cpu", f"run_dir={again}"]) == 0
    repeated, _ = newest_checkpoint(again)
    assert repeated.header["state_sha256"] == checkpoint.header["state_sha256"]
    before = (run_dir / "recipe.yaml").read_bytes()
    for command in ([*words, HOURS], [*words, "hours=0.0001"], ["train"]):
        command.append(f"run_dir={run_dir}")
        assert main(command) == 0  # the run is complete, and its recipe is not chosen anew
        assert newest_checkpoint(run_dir)[0].images == checkpoint.images
        assert (run_dir / "recipe.yaml").read_bytes() == before
    assert "total_images" not in (run_dir / "train.log").read_text()  # nobody has changed it
    capsys.readouterr()
    assert main(["train", "hours=1", f"run_dir={run_dir}"]) == 2
    assert f"init_from={run_dir}" in capsys.readouterr().err


@pytest.mark.slow
def test_a_plan_with_hours_is_that_of_the_recipe(toy_data, even_costs, capsys):
    words = ["plan", f"data.path={toy_data}", "devices=cpu", "schedule.final_resolution=4", "model.fmap_max=8"]
    assert main([*words, HOURS]) == 0
    shown = capsys.readouterr()
    assert "schedule.stable_images={4: " in shown.err
    assert "4 stable" in shown.out
    assert "keeps to its hours" in " ".join(shown.out.split())
