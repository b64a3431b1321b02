"""Composing: values of a command, typos and slips refused with what was meant."""

import pytest

from pggan.cli.compose import compose
from pggan.cli.main import main
from pggan.config import TrainConfig
from pggan.config.validation import validated
from pggan.config.values import describe
from pggan.core.errors import UserError
from pggan.run.run_dir import write_config


@pytest.fixture
def own(tmp_path):
    """A folder of configuration files of one's own, with an empty experiment/ and model/."""
    for group in ("experiment", "model"):
        (tmp_path / "conf" / group).mkdir(parents=True)
    return tmp_path / "conf"


def test_overrides_and_groups_are_composed_and_interpolations_resolved():
    values = compose("train", ["loss=logistic", "schedule.learning_rate_g=0.5", "schedule.batch={8: 4}", "seed=7"])
    assert values["loss"]["name"] == "logistic"
    assert values["schedule"]["learning_rate_d"] == 0.5
    assert values["schedule"]["batch"] == {8: 4}
    assert values["seed"] == 7
    assert "hydra" not in values
    assert "experiment" not in values


def test_options_of_a_recipe_go_with_the_choice_that_they_are_for():
    """The demo's gamma is one of the logistic loss; a typed one is refused, even so."""
    values = compose("train", ["experiment=demo", "loss=wgan_gp"])
    assert values["loss"] == compose("train", ["loss=wgan_gp"])["loss"] | {"reg_interval": 8}
    assert validated(TrainConfig, values).loss.name == "wgan_gp"
    assert compose("train", ["experiment=demo", "loss=relativistic"])["loss"]["gamma"] == 1
    values = compose("train", ["experiment=demo", "loss=wgan_gp", "loss.gamma=3"])
    assert values["loss"]["gamma"] == 3
    with pytest.raises(UserError, match=r"no key 'loss\.gamma'"):
        validated(TrainConfig, values)


TYPOS = {
    "modle.fmap_base=5": "model.fmap_base",
    "++model.fmap_bsae=5": "model.fmap_base",
    "schedule.bach=5": "schedule.batch",
    "loss=wgangp": "wgan_gp",
    "+loss.penalty_wieght=3": "loss.penalty_weight",
    "experiment=dmo": "demo",
}


@pytest.fixture
def no_image(tmp_path):
    """A folder of one file that is no image, which only a run finds out."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "broken.png").touch()
    return tmp_path / "photos"


@pytest.mark.parametrize(("typo", "meant"), TYPOS.items())
def test_a_typo_is_refused_with_the_nearest_valid_name(typo, meant, capsys, tmp_path, no_image):
    assert main(["train", f"data.path={no_image}", f"run_dir={tmp_path / 'run'}", typo]) == 2
    message = capsys.readouterr().err
    assert message.startswith("Error: ")
    assert f"'{meant}'" in message
    assert not (tmp_path / "run").exists()


def test_a_typo_in_a_yaml_file_is_refused(own, capsys):
    (own / "model" / "mine.yaml").write_text("defaults:\n  - paper\nfmap_maximum: 3\n")
    assert main(["train", "--config-dir", str(own), "model=mine", "data.path=nowhere"]) == 2
    assert "'model.fmap_maximum'" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["defaults: [override /lss: logistic]", "- a", "a: [1"])
def test_an_experiment_that_can_not_be_composed_is_refused(text, own, capsys):
    (own / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}\n")
    assert main(["train", "--config-dir", str(own), "experiment=mine", "data.path=nowhere"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("Error: ")
    assert "nowhere" not in shown


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("data.path=a=b (1)", "\"data.path='a=b (1)'\""),
        ("data.path=~/photos", "data.path=$HOME/photos"),
        ("data.path='photos", "quote"),
        ("seed", "key=value"),
        ("devices=cray", "auto"),
        ("data.path=nowhere", "nowhere"),
        ("loss=null", "must be a string"),
    ],
)
def test_other_slips_are_refused_with_advice(argument, hint, capsys, no_image):
    assert main(["train", f"data.path={no_image}", argument]) == 2
    assert hint in capsys.readouterr().err


def test_a_value_may_be_that_of_another_key_or_of_the_environment(monkeypatch):
    monkeypatch.setenv("SEED", "7")
    assert validated(TrainConfig, compose("train", ["seed=${oc.env:SEED}"])).seed == 7
    assert compose("train", ["seed=5", "run_dir=outputs/${name}-${seed}"])["run_dir"] == "outputs/default-5"


@pytest.mark.parametrize(
    ("given", "seeds"),
    [("1,5,9-12", [1, 5, "9-12"]), ("0-63", "0-63"), ("[1,5]", [1, 5]), ("'1,5'", "1,5"), ("5", 5)],
)
def test_a_list_needs_neither_brackets_nor_quotes(given, seeds):
    assert compose("sample", ["run=outputs/faces", f"seeds={given}"])["seeds"] == seeds


# ---- a run knows its configuration ------------------------------------------------------------------------


@pytest.fixture
def saved_run(tmp_path):
    """A run directory with the configuration of a run that differs from the defaults."""
    given = ["experiment=demo", "seed=7", "schedule.batch={4: 32, 8: 16}", "loss.gamma=3", f"run_dir={tmp_path}/run"]
    config = validated(TrainConfig, compose("train", given))
    (tmp_path / "run").mkdir()
    write_config(tmp_path / "run", describe(config))
    return tmp_path / "run", config


def test_run_dir_alone_takes_the_configuration_of_the_run(saved_run):
    run_dir, config = saved_run
    assert validated(TrainConfig, compose("train", [f"run_dir={run_dir}"])) == config


def test_keys_of_the_machine_change_the_configuration_of_the_run(saved_run):
    run_dir, config = saved_run
    values = compose("train", [f"run_dir={run_dir}", "threads=3", "resume=never"])
    assert (values["threads"], values["resume"]) == (3, "never")
    assert values["seed"] == config.seed


@pytest.mark.parametrize("other", ["loss=wgan_gp", "monitor.tick_images=5"])
def test_with_any_other_key_the_command_is_composed_as_for_the_first_time(saved_run, other):
    """A machine without the run directory has to come to the same configuration."""
    run_dir, _ = saved_run
    found, elsewhere = (compose("train", [f"run_dir={where}", other]) for where in (run_dir, "elsewhere"))
    assert {**found, "run_dir": ""} == {**elsewhere, "run_dir": ""}


def test_where_there_is_no_run_it_is_not_begun_by_run_dir_alone(tmp_path, capsys):
    """It would train on the images and with the recipe of the defaults, for days."""
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert main(["train", f"run_dir={tmp_path / 'rnu'}", "devices=cpu:2"]) == 2
    shown = capsys.readouterr().err
    assert f"Did you mean run_dir={tmp_path / 'run'}?" in shown
    assert "pggan train data.path=photos hours=2" in shown
    assert not (tmp_path / "rnu").exists()


def test_the_configuration_of_a_run_is_plain_data(saved_run, monkeypatch):
    """A run may come from anybody: nothing is looked up for it."""
    run_dir, _ = saved_run
    text = (run_dir / "config.yaml").read_text()
    (run_dir / "config.yaml").write_text(text.replace("name: demo", "name: ${oc.env:HOME}"))
    assert compose("train", [f"run_dir={run_dir}"])["name"] == "${oc.env:HOME}"


def test_a_run_that_began_before_there_was_a_key_resumes_with_its_default(saved_run):
    run_dir, config = saved_run
    file = run_dir / "config.yaml"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if "lr_warmup_images" not in line))
    assert "lr_warmup_images" not in file.read_text()
    assert validated(TrainConfig, compose("train", [f"run_dir={run_dir}"])) == config
