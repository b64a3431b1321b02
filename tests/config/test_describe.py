"""Configurations as plain values, and what differs between two of them."""

import json

from pggan.config.train import TrainConfig
from pggan.config.validation import validated
from pggan.config.values import COMMAND_VARIABLE, changes, describe, to_plain, versions
from tests.composed import train_config


def test_a_configuration_can_be_made_again_from_its_plain_values():
    one = train_config("schedule=official_1gpu", "loss.target=750", "precision=bf16")
    assert validated(TrainConfig, to_plain(one)) == one


def test_a_description_comes_back_from_json_as_it_is():
    description = describe(train_config("schedule.batch={4: 16, 8: 8}", "gradients=dgc"))
    assert json.loads(json.dumps(description)) == description
    assert description["schedule"]["batch"] == {"4": 16, "8": 8}
    assert description["compute"]["kernels"] == "auto"
    assert description["versions"] == versions()


def test_changes_name_the_keys_that_differ():
    before, now = describe(train_config()), describe(train_config("seed=1", "loss=logistic", "schedule.batch={4: 8}"))
    found = dict(changes(before, {**now, "versions": {}}))
    assert found["seed"] == "seed: 0 -> 1"
    assert found["loss.gamma"] == "loss.gamma: None -> 1.0"
    assert found["loss.target"] == "loss.target: 1.0 -> None"
    assert {key.split(".")[0] for key in found} == {"seed", "loss", "schedule"}
    assert dict(changes(before, before)) == {}


def test_the_command_line_is_recorded_and_makes_no_difference(monkeypatch):
    monkeypatch.setenv(COMMAND_VARIABLE, "pggan train seed=0")
    before = describe(train_config())
    assert before["versions"]["command"] == "pggan train seed=0"
    monkeypatch.delenv(COMMAND_VARIABLE)
    assert dict(changes(before, describe(train_config()))) == {}
