"""A small run to plan, whose steps are counted once."""

import pytest
import torch

from pggan.config import PlanConfig
from pggan.core.validation import validated
from pggan.distributed.process_group import ProcessGroup
from pggan.performance.plan.phases import phase_costs
from pggan.training.trainer_factory import TrainerFactory
from tests.composed import composed

TINY = [
    "schedule.final_resolution=8",
    "schedule.stable_images=32",
    "schedule.fade_images=20",
    "schedule.batch=8",
    "model.fmap_max=8",
    "loss=logistic",
    "devices=cpu",
]


@pytest.fixture(scope="session")
def tiny():
    """The overrides of the small run."""
    return TINY


@pytest.fixture(scope="session")
def make_config():
    """The configuration of the small run, with more overrides."""
    return lambda *overrides: validated(PlanConfig, composed("plan", [*TINY, *overrides]))


@pytest.fixture(scope="session")
def costs(make_config):
    """What its phases cost on one rank."""
    config, group = make_config(), ProcessGroup.single_process(torch.device("cpu"))
    factory = TrainerFactory.of(config, group.device, 1)
    return phase_costs(config, config.model.architecture(8, 3, 0), factory, group, lambda text: None)


@pytest.fixture
def counted(monkeypatch, costs):
    """Let commands take these costs as theirs: to count a step takes most of the time of a plan."""
    monkeypatch.setattr("pggan.performance.plan.command.phase_costs", lambda *_: costs)
