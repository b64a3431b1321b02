"""Bounds of the keys of plan, sample and interpolate."""

import pytest

from pggan import config
from pggan.cli.commands import COMMANDS
from pggan.core.errors import UserError
from pggan.core.validation import validated
from tests.composed import composed

REFUSED = {
    "sample run=x zoom=0": "at least 1",
    "sample run=x truncation=nan": "finite",
    "sample run=x truncation=inf": "finite",
    "interpolate run=x frames=1": "at least 2",
    "interpolate run=x fps=0": "at least 1",
    "interpolate run=x smoothness=-1": "at least 0",
    "interpolate run=x zoom=0": "at least 1",
    "interpolate run=x path=spiral": "walk",
    "sample seeds=1": "'run' needs a value",
    "plan steps=0": "at least 1",
    "plan limit_seconds=0": "above 0",
    "plan watts=-1": "above 0, or null",
    "plan calibrate=true tflops=3": "Leave out one",
    "plan processes=[]": "at least 1",
    "plan processes=[0]": "at least 1",
    "plan schedule.batch=6": "groups",
    "prepare source=x keep=0": "above 0 and at most 1",
    "prepare source=x keep=1.5": "at most 1",
    "prepare source=x num_workers=0": "at least 1, or null",
    "prepare source=x labels=[1]": "path of a file",
    "prepare source=x on_bad=ignore": "report",
}


@pytest.mark.parametrize(("words", "hint"), REFUSED.items())
def test_a_value_out_of_bounds_is_refused(words, hint):
    name, *overrides = words.split()
    with pytest.raises(UserError) as caught:
        validated(getattr(config, COMMANDS[name].schema), composed(name, overrides))
    assert hint in str(caught.value)


def test_any_finite_truncation_is_accepted():
    for truncation in (-1.0, 0.0, 0.5, 2.0):
        values = composed("sample", ["run=x", f"truncation={truncation}"])
        assert validated(config.SampleConfig, values).truncation == truncation
