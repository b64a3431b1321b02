"""The keys of all commands: YAML and schema agree, every key is explained, what cannot work is refused."""

import re

import pytest
import yaml

from pggan.cli.commands import COMMANDS
from pggan.config.defaults import CONFIGS, choices_of, of_earlier_version
from pggan.config.train import TrainConfig
from pggan.config.validation import kinds_of, validated
from pggan.config.values import flatten
from pggan.core.errors import UserError
from tests.composed import composed, train_config

GROUPS = ("augmentation", "data", "gradients", "loss", "model", "schedule")
CHOICES = [f"{group}={choice}" for group in GROUPS for choice in choices_of(group)]
MAX_KEYS = 70  # of `train`

# Besides those of tests/faults.
REFUSED = {
    "train schedule.batch={8: 16}": "no entry for 4x4",
    "train schedule.learning_rate_g=inf": "a number at least 0, or a table {resolution: a number at least 0}",
    "train schedule.batch={4: 16, 12: 8}": "a table {resolution: a whole number at least 1}",
    "train schedule.stable_images=0 schedule.fade_images=0": "above 0 for one resolution",
    "train checkpoint.every_minutes=0": "above 0, or null",
    "train model.fmap_max=99999999999": "at most 65536",
    "train model.features=resnet": "efficientnet-lite0, or null",
    "train model.features_from=4": "a power of two at least 4 and at least 8",
    "train gradients=bf16 elastic=true": "exact gradients",
    "train distributed.nnodes=2": "HOST:PORT",
    "sample run=x truncation=nan": "a number",
    "sample run=x seeds=1 latents=y": "Leave out one",
    "inspect run=x data=y": "one thing at a time",
    "bench stages=[4,12]": "a power of two",
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
def test_every_choice_of_every_group_makes_a_valid_configuration(choice):
    assert isinstance(train_config(choice), TrainConfig)


@pytest.mark.parametrize(("words", "hint"), REFUSED.items())
def test_a_value_that_cannot_work_is_refused_with_what_would_do(words, hint):
    name, _, rest = words.partition(" ")
    with pytest.raises(UserError) as caught:
        validated(COMMANDS[name].schema_type, composed(name, [rest] if "{" in rest else rest.split(" ")))
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("words", "gamma"),
    [
        ([], 1.6),  # 0.0002 x 256^2 / 8 = 1.64
        (["schedule.final_resolution=64"], 1.0),  # 0.0002 x 64^2 / 32 = 0.026
        (["loss.gamma=3"], 3.0),
        (["loss=relativistic", "loss.gamma=auto"], 1.6),
    ],
)
def test_gamma_is_that_of_the_final_resolution_and_its_batch_where_it_is_auto(words, gamma):
    assert train_config("experiment=modern", *words).loss.gamma == gamma


def test_a_configuration_of_an_earlier_version_loses_what_is_withdrawn_and_gains_what_is_new():
    now = composed("train", ["loss=logistic"])
    before = {**now, "compute": {"compile": False, **now["compute"]}, "loss": {"name": "logistic", "reg_interval": 8}}
    del before["seed"]
    assert of_earlier_version(before) == now
