"""Every YAML file composes, fits the schema and explains itself."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from pggan import config
from pggan.cli.main import COMMANDS, CONFIGS, compose
from pggan.config import TrainConfig
from pggan.config import notation as values
from pggan.core.errors import UserError
from pggan.core.validation import validated

GROUPS = [folder.name for folder in CONFIGS.iterdir() if folder.is_dir() and folder.name != "commands"]
CHOICES = [(group, file.stem) for group in GROUPS for file in sorted((CONFIGS / group).glob("*.yaml"))]
FILES = sorted(CONFIGS.rglob("*.yaml"))


def train_config(*overrides: str) -> TrainConfig:
    return validated(TrainConfig, compose("train", list(overrides)))


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_of_every_group_makes_a_valid_configuration(group, choice):
    assert isinstance(train_config(f"{group}={choice}"), TrainConfig)


@pytest.mark.parametrize("verb", COMMANDS.values(), ids=lambda verb: verb.name)
def test_every_command_has_exactly_the_keys_of_its_schema(verb):
    schema = {field.name for field in fields(getattr(config, verb.schema))}
    assert set(compose(verb.name, [])) == schema


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_key_that_a_file_introduces_is_explained(path):
    lines = path.read_text().splitlines()
    inherits = "defaults" in (yaml.safe_load(path.read_text()) or {}) and path.parent != CONFIGS
    if inherits or path.parent.name == "experiment":  # a variation of a file that explains its keys
        assert lines[0].startswith("#")
        return
    explained = False
    for line in lines:
        if line.startswith(("defaults:", "  - ", "name: ")):
            continue
        if re.match(r" *#", line):
            explained = True
        elif not line.strip():
            explained = False
        else:
            assert explained, f"{path.name}: no comment above '{line.strip()}'"


def test_experiments_are_named_after_their_file():
    for file in (CONFIGS / "experiment").glob("*.yaml"):
        assert train_config(f"experiment={file.stem}").name == file.stem


MISTAKES = {
    "schedule.final_resolution=48": "power of two",
    "schedule.first_resolution=2": "power of two",
    "schedule.first_resolution=128": "above",
    "schedule.batch=0": "at least 1",
    "schedule.batch=6": "groups",
    "schedule.batch=2.5": "whole number",
    "schedule.batch=many": "whole number",
    "schedule.batch={8: 16}": "no entry for 4x4",
    "schedule.batch={five: 16}": "not a resolution",
    "schedule.learning_rate_g=-0.1": "at least 0",
    "schedule.stable_images=-1": "at least 0",
    "schedule.total_images=0": "at least 1",
    "optimizer.beta1=1": "below 1",
    "optimizer.beta2=-0.5": "below 1",
    "ema.half_life_images=null": "exactly one",
    "ema.decay_per_update=0.9": "exactly one",
    "monitor.grid=8": "8x4",
    "monitor.tick_images=0": "at least 1",
    "checkpoint.every_images=0": "at least 1",
    "checkpoint.keep=0": "at least 1",
    "model.fmap_max=0": "at least 1",
    "model.fmap_base=0": "at least 1",
    "model.latent_size=0": "at least 1",
    "model.stddev_group=0": "at least 1",
    "model.resampling=cubic": "fused",
    "data.count=0": "at least 1",
    "data.device_budget_mib=-1": "at least 0",
    "data.verify=perhaps": "bool",
    "schedule.lr_decay_images=-1": "at least 0",
    "data.crop=middle": "center",
    "seed=one": "Integer",
    "seed=null": "seed",
    "data.mirror=perhaps": "bool",
}


@pytest.mark.parametrize(("override", "hint"), MISTAKES.items())
def test_a_value_that_cannot_work_is_refused_with_its_key_and_what_would_do(override, hint):
    with pytest.raises(UserError) as caught:
        train_config(override)
    key = override.split("=")[0]
    assert key.split(".")[-1] in str(caught.value) or key.split(".")[0] in str(caught.value)
    assert hint in str(caught.value)


def test_adam_betas_given_as_whole_numbers_become_floats():
    assert isinstance(train_config("optimizer.beta1=0").optimizer.beta1, float)


def test_per_level_values_take_a_number_or_a_table_and_tables_merge():
    assert train_config("schedule.batch=8").schedule.build().at(0).batch == 8
    merged = train_config("schedule=official_1gpu", "schedule.batch={4: 64}").schedule.build()
    assert (merged.phases[0].batch, merged.phases[-1].batch) == (64, 4)
    extended = train_config("schedule=official_1gpu", "schedule.batch={16: 100}").schedule.build()
    assert [extended.batch[side] for side in (4, 16, 32)] == [128, 100, 64]
    replaced = train_config("schedule=official_1gpu", "schedule.batch=12").schedule.build()
    assert {phase.batch for phase in replaced.phases} == {12}


def test_d_learns_at_the_rate_of_g_unless_told():
    both = train_config("schedule.learning_rate_g=0.002").schedule.build().at(0)
    assert (both.learning_rate_g, both.learning_rate_d) == (0.002, 0.002)
    split = train_config("schedule.learning_rate_d=0.004").schedule.build().at(0)
    assert (split.learning_rate_g, split.learning_rate_d) == (0.001, 0.004)


def test_seeds_are_read_in_all_their_forms():
    assert values.parse_seeds(5) == [5]
    assert values.parse_seeds("0-3") == [0, 1, 2, 3]
    assert values.parse_seeds("1,5,9-11") == [1, 5, 9, 10, 11]
    assert values.parse_seeds([1, 5]) == [1, 5]
    for bad in ("", "a", "3-1", "-1", [1, "x"], "1-"):
        with pytest.raises(UserError, match="seeds="):
            values.parse_seeds(bad)


def test_the_wheel_lists_every_package():
    import tomllib

    root = Path(__file__).parents[1]
    listed = set(tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {".".join(path.parent.relative_to(root).parts) for path in (root / "pggan").rglob("__init__.py")}
    assert listed == found | {"pggan.configs"}
