"""Composing: values of a command; a run knows its configuration."""

from pathlib import Path

import pytest

from pggan.cli.compose import compose
from pggan.config.train import TrainConfig
from pggan.config.validation import validated
from pggan.config.values import describe
from pggan.core.errors import UserError
from pggan.run.run_dir import write_config


def test_overrides_and_groups_are_composed_and_interpolations_resolved(monkeypatch):
    monkeypatch.setenv("SEED", "7")
    given = ["loss=logistic", "schedule.learning_rate_g=0.5", "schedule.batch={8: 4}", "seed=${oc.env:SEED}"]
    values = compose("train", [*given, "run_dir=outputs/${name}-${seed}"])
    assert values["loss"]["name"] == "logistic"
    assert values["schedule"]["learning_rate_d"] == 0.5  # as of G unless told
    assert values["schedule"]["batch"] == {8: 4}
    assert values["run_dir"] == "outputs/default-7"
    assert not {"hydra", "experiment"} & {*values}


def test_options_of_a_recipe_go_with_the_choice_that_they_are_for():
    """The demo's gamma is one of the logistic loss; a typed one is refused, even so."""
    values = compose("train", ["experiment=demo", "loss=wgan_gp"])
    assert values["loss"] == compose("train", ["loss=wgan_gp"])["loss"]
    for loss in (["logistic", 12, 8], ["relativistic", 1, 1]):
        assert [*compose("train", ["experiment=orl_64", f"loss={loss[0]}"])["loss"].values()] == loss
    with pytest.raises(UserError, match=r"no key 'loss\.gamma'"):
        compose("train", ["experiment=demo", "loss=wgan_gp", "loss.gamma=3"])


@pytest.mark.parametrize(
    ("given", "seeds"), [("1,5,9-12", [1, 5, "9-12"]), ("0-63", "0-63"), ("[1,5]", [1, 5]), ("'1,5'", "1,5"), ("5", 5)]
)
def test_a_list_needs_neither_brackets_nor_quotes(given, seeds):
    assert compose("sample", ["run=outputs/faces", f"seeds={given}"])["seeds"] == seeds


NAMES = ["2025_01_02", "1e2", "true", "007", "0x10", ".5", "nan", "NULL", "1,2", "写真", "é", "😀", "caf\udce9"]
NAMES += ["my photos", " a ", "photos (1)", "a,b", "[x]", "{x}", "a=b", "it's", '"a', "a\\", "choice(a,b)", "#a"]
NAMES += ["a%b", "x\ny", "~nobody-here/x"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_taken_as_typed(name):
    values = compose("train", ["seed=1", f"run_dir={name}", f"data.path={name}"])
    assert (values["run_dir"], values["data"]["path"]) == (name, name)
    assert compose("prepare", [f"source={name}", "dest=x", f"labels={name}x"])["labels"] == f"{name}x"
    assert compose("sample", ["run=x", f"label={name}"])["label"] == name


def test_null_and_truths_of_keys_of_text_keep_their_meaning(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    values = compose("prepare", ["source=~/photos", "dest='a, b'", "labels=true", "landmarks=null"])
    assert (values["source"], values["dest"]) == ("/home/me/photos", "a, b")
    assert (values["labels"], values["landmarks"]) == (True, None)


@pytest.mark.parametrize(("given", "images"), [("1e2", ["1e2"]), ("a.png,1e2", ["a.png", "1e2"]), ("it's", ["it's"])])
def test_names_in_a_list_are_taken_as_typed(given, images):
    assert compose("project", ["run=x", f"image={given}"])["image"] == images


def test_a_file_with_signs_of_hydra_is_taken_as_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a,b [1].png", "[1].png", "{3}.png", "Anna's.png", "'a'", "null"):
        (tmp_path / name).touch()
        assert compose("inspect", [f"data={name}"])["data"] == name
        assert name == "null" or compose("project", ["run=x", f"image={name}"])["image"] == name
    assert compose("sample", ["run=x", "latents=写真/a b.st,~/c"])["latents"] == ["写真/a b.st,~/c"]
    assert compose("sample", ["run=x", "latents=写真/a.st,~/c"])["latents"] == ["写真/a.st", str(Path.home() / "c")]
    assert compose("sample", ["run=x", "out=${run}/a b"])["out"] == "x/a b"


# ---- a run knows its configuration ------------------------------------------------------------------------


@pytest.fixture
def saved_run(tmp_path):
    """A run directory with the configuration of a run that differs from the defaults."""
    given = ["experiment=demo", "seed=7", "schedule.batch={4: 32, 8: 16}", "loss.gamma=3", f"run_dir={tmp_path}/run"]
    config = validated(TrainConfig, compose("train", given))
    (tmp_path / "run").mkdir()
    write_config(tmp_path / "run", describe(config) | {"resume": "never"})
    return tmp_path / "run", config


def test_run_dir_alone_takes_the_configuration_of_the_run_but_for_keys_of_the_machine(saved_run):
    run_dir, config = saved_run
    assert validated(TrainConfig, compose("train", [f"run_dir={run_dir}"])) == config
    values = compose("train", [f"run_dir={run_dir}", "data.path=moved", "data.cache=here", "allow_changes=[data]"])
    moved = validated(TrainConfig, values)
    assert (moved.data.path, moved.data.cache, moved.allow_changes, moved.seed) == ("moved", "here", ["data"], 7)
    values = compose("train", [f"run_dir={run_dir}", "threads=3", "resume=never"])
    assert (values["threads"], values["resume"], values["seed"]) == (3, "never", 7)


def test_with_any_other_key_the_command_is_composed_as_for_the_first_time(saved_run):
    """A machine without the run directory has to come to the same configuration."""
    run_dir, _ = saved_run
    found, elsewhere = (compose("train", [f"run_dir={where}", "loss=wgan_gp"]) for where in (run_dir, "elsewhere"))
    assert {**found, "run_dir": ""} == {**elsewhere, "run_dir": ""}


def test_the_configuration_of_a_run_is_plain_data_and_may_lack_a_key_that_is_new(saved_run):
    """A run may come from anybody: nothing is looked up for it."""
    run_dir, config = saved_run
    text = (run_dir / "config.yaml").read_text()
    lines = [line for line in text.splitlines(keepends=True) if "lr_warmup_images" not in line]
    (run_dir / "config.yaml").write_text("".join(lines))
    assert len(lines) < len(text.splitlines())
    assert validated(TrainConfig, compose("train", [f"run_dir={run_dir}"])) == config
    (run_dir / "config.yaml").write_text(text.replace("name: demo", "name: ${oc.env:HOME}"))
    assert compose("train", [f"run_dir={run_dir}"])["name"] == "${oc.env:HOME}"
