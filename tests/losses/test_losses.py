"""Losses by name: their files, their YAML files and the options they take."""

import dataclasses
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import pggan.losses
from pggan.losses import LOSSES, build_loss
from pggan.losses.base import PenaltyResolution
from pggan.losses.wgan_gp import WganGp

CONFIGS = Path(__file__).parents[2] / "configs" / "loss"


def options_of(name):
    return dict(OmegaConf.load(CONFIGS / f"{name}.yaml"))


def test_every_loss_file_has_a_yaml_and_every_yaml_a_file():
    files = {path.stem for path in Path(pggan.losses.__file__).parent.glob("*.py")} - {
        "__init__",
        "base",
        "gradient_penalty",
    }
    assert files == set(LOSSES) == {path.stem for path in CONFIGS.glob("*.yaml")}
    assert files


@pytest.mark.parametrize("name", LOSSES)
def test_the_yaml_of_a_loss_has_exactly_its_fields(name):
    options = options_of(name)
    assert options["name"] == name
    loss = build_loss(options)
    assert set(options) == {"name", *(field.name for field in dataclasses.fields(loss))}
    assert type(loss).__module__ == f"pggan.losses.{name}"
    for key, value in options.items():
        if key != "name":
            found = getattr(loss, key)
            assert getattr(found, "value", found) == value


def test_the_default_wgan_gp_is_that_of_the_official_code():
    assert build_loss(options_of("wgan_gp")) == WganGp(
        penalty_weight=10.0, target=1.0, drift=0.001, penalty_resolution=PenaltyResolution.final, reg_interval=1
    )
