"""Losses by name: their files, their YAML files and the options they take."""

import dataclasses
from math import inf, nan
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import pggan.losses
from pggan.core.errors import UserError
from pggan.losses import LOSSES, build_loss
from pggan.losses.gradient_penalty import PenaltyResolution
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


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_refuses_an_option_it_does_not_have(name):
    with pytest.raises(UserError, match=r"loss\.penalty_wieght"):
        build_loss({**options_of(name), "penalty_wieght": 3.0})


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_refuses_to_be_built_without_one_of_its_options(name):
    for key in options_of(name):
        if key == "name":
            continue
        options = options_of(name)
        del options[key]
        with pytest.raises(UserError, match=rf"loss\.{key}"):
            build_loss(options)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_refuses_options_of_the_wrong_type(name):
    for key in options_of(name):
        if key == "name":
            continue
        for wrong in ("often", [1, 2], None):
            with pytest.raises(UserError, match=rf"loss\.{key}"):
                build_loss({**options_of(name), key: wrong})
    with pytest.raises(UserError, match=r"loss\.reg_interval"):
        build_loss({**options_of(name), "reg_interval": 1.5})


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_refuses_numbers_that_are_negative_or_not_finite(name):
    for key in [key for key, value in options_of(name).items() if isinstance(value, float)]:
        for wrong in (nan, inf, -1.0):
            with pytest.raises(UserError, match=rf"loss\.{key}=.*\n.*from 0 up to below infinity"):
                build_loss({**options_of(name), key: wrong})


@pytest.mark.parametrize("name", ["wgan", "base", "gradient_penalty"])
def test_an_unknown_loss_is_refused(name):
    with pytest.raises(UserError, match=name):
        build_loss({**options_of("wgan_gp"), "name": name})
