"""Bounds of values, and plain values to dataclasses."""

from dataclasses import dataclass, field
from enum import Enum
from math import inf, nan

import pytest

from pggan.core.errors import UserError
from pggan.core.validation import require, require_bounds, validated, with_defaults


class Colour(Enum):
    red = "red"
    blue = "blue"


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int
    rate: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    inner: Inner
    colour: Colour = Colour.red
    limit: float | None = None
    sizes: list[int] = field(default_factory=list)


@dataclass
class Bounded:
    value: float | None
    number: float = 0.0


VALUES = {"name": "a", "inner": {"size": 1, "rate": 2}, "colour": "blue", "limit": None, "sizes": [1, 2]}


@pytest.mark.parametrize(
    ("bounds", "fits", "breaks"),
    [
        (">=1", [1, 1.5, 1e300], [0.999999, 0, -1]),
        (">0", [1e-300, 1], [0, -1]),
        ("<=1", [1, 0, -1e300], [1.000001, 2]),
        ("<1", [0.999999, -1], [1, 2]),
        (">=0 <1", [0, 0.5, 0.999999], [-1e-9, 1]),
        (">0 <=0.25", [0.25, 1e-9], [0, 0.250001]),
        (">=5 <=65536", [5, 65536], [4, 65537]),
        ("", [-1e300, 0, 1e300], []),
    ],
)
def test_bounds_hold_to_the_number(bounds, fits, breaks):
    for value in fits:
        require_bounds(Bounded(value), value=bounds)
    for value in [*breaks, inf, -inf, nan]:
        with pytest.raises(UserError, match=r"prefix\.value="):
            require_bounds(Bounded(value), "prefix.", value=bounds)


def test_bounds_are_told_in_words():
    for bounds, words in {">=0 <1": "at least 0 and below 1", ">0 <=9": "above 0 and at most 9", "": "finite"}.items():
        with pytest.raises(UserError) as caught:
            require_bounds(Bounded(0.0, number=nan), "key.", number=bounds)
        assert str(caught.value) == f"key.number=nan does not work.\n  It has to be {words}."


def test_infinity_is_told_what_it_lacks():
    with pytest.raises(UserError, match="at least 1 and finite"):
        require_bounds(Bounded(0.0, number=inf), number=">=1")


def test_null_passes_where_it_is_allowed_and_is_then_mentioned():
    require_bounds(Bounded(None), value=">=1")
    with pytest.raises(UserError, match=r"at least 1, or null\."):
        require_bounds(Bounded(0), value=">=1")
    with pytest.raises(UserError, match=r"at least 1\."):
        require_bounds(Bounded(None), number=">=1")


def test_what_is_required_is_said_with_key_and_value():
    require(True, "key", 3, "even")
    with pytest.raises(UserError) as caught:
        require(False, "key", 3, "even")
    assert str(caught.value) == "key=3 does not work.\n  It has to be even."


def test_values_take_the_types_of_the_fields():
    made = validated(Outer, VALUES)
    assert made == Outer(name="a", inner=Inner(size=1, rate=2.0), colour=Colour.blue, sizes=[1, 2])
    assert type(made.inner.rate) is float
    assert type(made.sizes) is list
    assert validated(Outer, {**VALUES, "sizes": 3}).sizes == [3]  # a list of one, as it is typed


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"naem": "a"}, "There is no key 'top.naem'.\n  Did you mean 'top.name'?"),
        ({"inner": {"size": 1, "rate": 1, "siez": 2}}, "Did you mean 'top.inner.size'?"),
        ({"inner": {"rate": 1}}, "'top.inner.size' needs a value.\n  Add top.inner.size=… to the command."),
        ({"inner": {"size": "???", "rate": 1}}, "'top.inner.size' needs a value"),
        ({"inner": 5}, "'top.inner.size' needs a value"),
        ({"inner": {"size": "many", "rate": 1}}, "to Integer.\n  --help all explains top.inner.size."),
        ({"inner": {"size": 1.5, "rate": 1}}, "top.inner.size=1.5 does not work"),
        ({"colour": "violet"}, "expected one of [red, blue].\n  --help all explains top.colour."),
        ({"colour": "bleu"}, "expected one of [red, blue].\n  Did you mean 'blue'?"),
        ({"name": None}, "top.name=None does not work"),
        ({"sizes": ["many"]}, "does not work"),
        ({"sizes": "many"}, "top.sizes=many does not work"),
        ({"sizes": {"a": 1}}, "it takes a list.\n  Write top.sizes=a,b."),
    ],
)
def test_the_first_key_that_does_not_fit_is_named(changes, hint):
    with pytest.raises(UserError) as caught:
        validated(Outer, {**VALUES, **changes}, "top.")
    assert hint in str(caught.value)


def test_a_key_that_is_left_out_is_missing_even_where_the_dataclass_has_a_default():
    """The YAML files are complete, so that --help shows every key."""
    with pytest.raises(UserError, match="'colour' needs a value"):
        validated(Outer, {key: value for key, value in VALUES.items() if key != "colour"})


def test_what_values_lack_is_filled_with_the_defaults_of_the_dataclasses():
    """The keys that there were not yet when a run began; those without a default stay missing."""
    values = {"name": "a", "inner": {"size": 1}, "sizes": [1]}
    filled = with_defaults(Outer, values)
    assert filled == values | {"inner": {"size": 1, "rate": 0.5}, "colour": "red", "limit": None}
    assert validated(Outer, filled).colour is Colour.red
    assert with_defaults(Outer, VALUES) == VALUES
    assert "name" not in with_defaults(Outer, {})
