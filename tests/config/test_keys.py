"""The keys of all commands: YAML and schema agree, every key is explained, what cannot work is refused."""

import json
import re
from dataclasses import asdict

import pytest
import yaml

from pggan.cli.commands import COMMANDS
from pggan.config.defaults import CONFIGS, choices_of, of_earlier_version
from pggan.config.train import TrainConfig
from pggan.config.validation import kinds_of, validated
from pggan.config.values import COMMAND_VARIABLE, changes, describe, flatten, versions
from pggan.core.errors import UserError
from tests.composed import composed, train_config

GROUPS = ("augmentation", "data", "gradients", "loss", "model", "schedule")
CHOICES = [f"{group}={choice}" for group in GROUPS for choice in choices_of(group)]
MAX_KEYS = 70  # of `train`

# One mistake of each kind, besides those of tests/cli and tests/faults.
REFUSED = {
    # types
    "train seed=true": "seed=True does not work.\n  It has to be a whole number.",
    "train data.mirror=1": "true or false",
    "train compute.cuda_graphs=of": "Did you mean 'off'?",
    "train compute=5": "'compute.kernels' needs a value",
    "train schedule.learning_rate_g=inf": "a number at least 0, or a table {resolution: a number at least 0}",
    "train schedule.batch={4: 16, 12: 8}": "a table {resolution: a whole number at least 1}",
    "sample run=x truncation=nan": "a number",
    "prepare": "'source' needs a value",
    # bounds
    "train model.fmap_max=99999999999": "at least 1 and at most 65536",
    "train model.features_from=4": "or 2048 at least 8",
    "train ema.half_life_images=null ema.decay_per_update=1": "It has to be a number at least 0 and below 1",
    "train checkpoint.every_minutes=0": "a number above 0, or null",
    "bench stages=[4,12]": "a list, each 4 or 8 or 16",
    # between keys
    "train schedule.batch={8: 16}": "a table that begins at resolution 4 or lower",
    "train schedule.stable_images=0 schedule.fade_images=0": "above 0 for one resolution",
    "train gradients=bf16 elastic=true": "bf16 and dgc do not support",
    "train distributed.nnodes=2": "HOST:PORT of one of the machines",
    "train schedule.first_resolution=32 schedule.final_resolution=16": "at most schedule.final_resolution=16",
    "train ema.decay_per_update=0.9": "null if ema.decay_per_update= is a number",
    "train monitor.grid=100x101": "maximum number of images: 10000",
    "inspect run=x data=y": "run=, data= and image=",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_every_command_has_exactly_the_keys_of_its_schema(command):
    assert set(composed(command.name, [])) == set(kinds_of(command.schema_type))


def test_train_has_no_more_keys_than_a_person_can_know():
    assert len([*flatten(composed("train", []))]) <= MAX_KEYS


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_key_that_a_file_introduces_is_explained(path):
    lines = path.read_text().splitlines()
    inherits = "defaults" in (yaml.safe_load(path.read_text()) or {}) and path.parent != CONFIGS
    if inherits or path.parent.name in ("experiment", "debug"):  # a variation of a file that explains its keys
        assert lines[0].startswith("#")
        return
    explained = False
    for line in lines:
        if not line.startswith(("defaults:", "  - ", "name: ")):
            is_comment = re.match(r" *#", line)
            explained = bool(line.strip()) and (explained or is_comment is not None)
            assert explained or not line.strip(), f"{path.name}: no comment above '{line.strip()}'"


@pytest.mark.parametrize("choice", CHOICES)
def test_a_configuration_with_any_choice_can_be_made_again_from_its_plain_values_and_from_json(choice):
    one = train_config(choice, "precision=bf16")
    assert validated(TrainConfig, asdict(one)) == one
    description = describe(one)
    assert description.pop("versions") == versions()
    assert validated(TrainConfig, json.loads(json.dumps(description))) == one


@pytest.mark.parametrize(("words", "hint"), REFUSED.items())
def test_a_value_that_cannot_work_is_refused_with_what_would_do(words, hint):
    name, _, rest = words.partition(" ")
    overrides = [rest] if "{" in rest else rest.split()
    with pytest.raises(UserError) as caught:
        validated(COMMANDS[name].schema_type, composed(name, overrides))
    assert hint in str(caught.value)


def test_values_take_the_types_of_their_keys():
    given = ["data.path=7", "ema.rampup='0.5'", "checkpoint.every_minutes=2", "evaluation.metrics=kid"]
    found = train_config(*given, "loss.target=750")
    assert (found.data.path, found.ema.rampup, found.evaluation.metrics) == ("7", 0.5, ["kid"])
    assert [type(one) for one in (found.checkpoint.every_minutes, found.loss.target)] == [float, float]


def test_changes_name_the_keys_that_differ_and_the_command_line_makes_no_difference(monkeypatch):
    before, now = describe(train_config()), describe(train_config("seed=1", "loss=logistic", "schedule.batch={4: 8}"))
    found = dict(changes(before, now))
    assert found["seed"] == "seed: 0 -> 1"
    assert found["loss.gamma"] == "loss.gamma: None -> 1.0"
    assert found["loss.target"] == "loss.target: 1.0 -> None"
    assert {key.split(".")[0] for key in found} == {"seed", "loss", "schedule"}
    monkeypatch.setenv(COMMAND_VARIABLE, "pggan train seed=0")
    again = describe(train_config())
    assert again["versions"]["command"] == "pggan train seed=0"
    assert dict(changes(before, again)) == {}


def test_a_configuration_of_an_earlier_version_loses_what_is_withdrawn_and_gains_what_is_new():
    now = composed("train", ["loss=logistic"])
    before = {**now, "compute": {"compile": False, **now["compute"]}, "loss": {"name": "logistic", "reg_interval": 8}}
    del before["seed"]
    assert of_earlier_version(before) == now
