"""hours= where every image of every network takes equally long."""

import pytest

from pggan.cli.commands import COMMANDS
from pggan.cli.recipe import with_choices
from pggan.performance import hours
from pggan.performance.hours import MeasuredCosts
from pggan.run import compose as composing
from pggan.training import timing
from tests.composed import composed

SECONDS_PER_IMAGE = 0.01


@pytest.fixture
def even_costs(monkeypatch):
    """Every image of every network is expected to take a hundredth of a second, and commands begin at once."""
    of = MeasuredCosts.__call__
    for module in (hours, composing):
        monkeypatch.setattr(module, "command_seconds", lambda: 0.0)
    monkeypatch.setattr(MeasuredCosts, "measure", lambda *_: None)
    monkeypatch.setattr(MeasuredCosts, "__call__", lambda *asked: dict.fromkeys(of(*asked), SECONDS_PER_IMAGE))


@pytest.fixture
def chosen(even_costs, monkeypatch):
    """The values of `pggan train` with some words, on a machine of 1 GFLOP/s."""
    monkeypatch.setattr(timing, "product_rate", lambda *_: 1e9)
    monkeypatch.setattr(hours, "configure_process", lambda *_, **__: None)
    return lambda *words: with_choices(COMMANDS["train"], composed("train", [*words]), [*words])
