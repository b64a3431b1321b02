"""Plain values to dataclasses: types, bounds, tables chosen by name, and what is said about those that do not fit."""

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Annotated, Literal

import pytest

from pggan.config.train import Positive, Whole
from pggan.config.validation import validated
from pggan.core.errors import UserError

Colour = StrEnum("Colour", "red blue")


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: Annotated[int, ">=1 <=9"]
    rate: Annotated[float, ">=0 <1"]


@dataclass(frozen=True, kw_only=True)
class Round:
    name: Literal["circle", "ball"]
    radius: Positive


@dataclass(frozen=True, kw_only=True)
class Square:
    name: Literal["square"]
    side: float


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    inner: Inner
    shape: Round | Square
    colour: Colour
    limit: float | None
    sizes: list[Whole]
    label: int | str


VALUES = {
    "name": "a",
    "inner": {"size": 1, "rate": 0},
    "shape": {"name": "ball", "radius": 2},
    "colour": "blue",
    "limit": None,
    "sizes": [1, 2],
    "label": "007",
}


def test_values_take_the_types_of_the_fields():
    made = validated(Outer, VALUES)
    shape = Round(name="ball", radius=2.0)
    expected = {"inner": Inner(size=1, rate=0.0), "shape": shape, "colour": Colour.blue}
    assert made == Outer(**{**VALUES, **expected})
    assert type(made.inner.rate) is float
    assert validated(Outer, {**VALUES, "sizes": 3}).sizes == [3]  # a list of one, as it is typed
    assert validated(Outer, {**VALUES, "limit": "2.5"}).limit == 2.5  # of an environment variable


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"naem": "a"}, "There is no key 'top.naem'.\n  Did you mean 'top.name'?"),
        ({"inner": {"size": 1, "rate": 0, "siez": 2}}, "Did you mean 'top.inner.size'?"),
        ({"inner": 5}, "'top.inner.size' needs a value"),
        ({"inner": {"size": "many", "rate": 0}}, "It has to be a whole number at least 1 and at most 9."),
        ({"inner": {"size": 1.5, "rate": 0}}, "top.inner.size=1.5 does not work"),
        ({"inner": {"size": 0, "rate": 0}}, "top.inner.size=0 does not work"),
        ({"inner": {"size": 1, "rate": 1}}, "It has to be a number at least 0 and below 1."),
        ({"limit": inf}, "It has to be a number, or null."),
        ({"shape": {"name": "bal", "radius": 2}}, "There is no top.shape=bal.\n  Did you mean 'ball'?"),
        ({"shape": {"name": "square", "radius": 2}}, "There is no key 'top.shape.radius'"),
        ({"colour": "bleu"}, "Did you mean 'blue'?"),
        ({"colour": ["red", "blue"]}, "For one run with each value: --multirun."),
        ({"name": None}, "top.name=None does not work.\n  It has to be text."),
        ({"name": ""}, "If a shell variable was meant, it is not set"),
        ({"sizes": [1, -1]}, "It has to be a list, each a whole number at least 0."),
    ],
)
def test_the_first_key_that_does_not_fit_is_named(changes, hint):
    with pytest.raises(UserError) as caught:
        validated(Outer, {**VALUES, **changes}, "top.")
    assert hint in str(caught.value)


def test_a_key_that_is_left_out_is_missing():
    """The YAML files are complete, so that --help shows every key."""
    with pytest.raises(UserError, match="'colour' needs a value"):
        validated(Outer, {key: value for key, value in VALUES.items() if key != "colour"})
