"""Plain values to dataclasses, with errors that name the key."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, make_dataclass
from enum import Enum
from functools import cache
from math import inf, isfinite
from operator import ge, gt, le, lt
from typing import Any, TypeVar, cast, get_origin

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pggan.core.errors import UserError, nearest, nearest_name
from pggan.core.withdrawn import withdrawal

Conf = TypeVar("Conf")
COMPARISONS = {">=": ("at least", ge), ">": ("above", gt), "<=": ("at most", le), "<": ("below", lt)}


def require(holds: bool, key: str, value: object, wanted: str) -> None:
    """Raise UserError unless `holds`: `key` is `value`, and has to be as `wanted` says."""
    if not holds:
        raise UserError(f"{key}={value} does not work.", f"It has to be {wanted}.")


def require_bounds(config: object, prefix: str = "", **bounds: str) -> None:
    """Raise UserError unless fields of the dataclass `config` are finite and within `bounds`, such as ">=0 <1".

    A field that is None passes.  `prefix` leads the name of the key in the message.
    """
    optional = {field.name for field in fields(config) if "None" in str(field.type)}  # type: ignore[arg-type]
    for name, text in bounds.items():
        value = getattr(config, name)
        limits = [(*COMPARISONS[sign], float(number)) for sign, number in re.findall(r"([<>]=?)(\S+)", text)]
        words = [*(f"{word} {limit:g}" for word, _, limit in limits), *["finite"] * (not limits or value == inf)]
        wanted = " and ".join(words) + ", or null" * (name in optional)
        holds = value is None or (isfinite(value) and all(compare(value, limit) for _, compare, limit in limits))
        require(holds, f"{prefix}{name}", value, wanted)


def validated(schema: type[Conf], values: Mapping[str, Any], prefix: str = "") -> Conf:
    """`values` as an instance of the dataclass `schema`, nested dataclasses included.

    Raises UserError that names the first key that is unknown, missing or of the wrong type; `prefix` leads its name.
    """
    types = {field.name: field.type for field in fields(schema)}  # type: ignore[arg-type]
    for key in values:
        if key not in types:
            known = [f"{prefix}{name}" for name in types]
            unknown = UserError(f"There is no key '{prefix}{key}'.", nearest(f"{prefix}{key}", known))
            raise withdrawal(f"{prefix}{key}") or unknown
    typed = converter(schema)  # type: ignore[arg-type]
    arguments: dict[str, Any] = {}
    for name, kind in types.items():
        value = values.get(name, "???")
        if isinstance(kind, type) and is_dataclass(kind):
            arguments[name] = validated(kind, value if isinstance(value, Mapping) else {}, f"{prefix}{name}.")
            continue
        if value == "???":
            raise UserError(f"'{prefix}{name}' needs a value.", f"Add {prefix}{name}=… to the command.")
        alone = get_origin(kind) is list and isinstance(value, str | int | float)
        try:
            typed[name] = [value] if alone else value  # metrics=swd
            kept = typed[name]
        except OmegaConfBaseException as error:
            reason = str(error.msg or error).splitlines()[0].rstrip(".")
            choices = [str(one.value) for one in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
            meant = nearest_name(str(value), choices)
            remedy = f"--help all explains {prefix}{name}." if meant is None else f"Did you mean '{meant}'?"
            if isinstance(value, list):
                quoted = f"\"{prefix}{name}='{','.join(map(str, value))}'\""
                remedy = f"For one run with each value: --multirun. For one value with a comma: {quoted}."
            elif get_origin(kind) is list and not alone:
                reason, remedy = "it takes a list", f"Write {prefix}{name}=a,b."
            raise UserError(f"{prefix}{name}={value} does not work: {reason}.", remedy) from error
        arguments[name] = OmegaConf.to_container(kept) if OmegaConf.is_config(kept) else kept
    return schema(**arguments)


def with_defaults(schema: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with what they lack of `schema`, a dataclass with nested ones: its defaults, where it has them."""
    filled = dict(values)
    for field in fields(schema):
        if isinstance(field.type, type) and is_dataclass(field.type):
            filled[field.name] = with_defaults(field.type, values.get(field.name) or {})
        elif field.default is not MISSING:
            plain = field.default.name if isinstance(field.default, Enum) else field.default
            filled.setdefault(field.name, plain)
    return filled


@cache
def converter(schema: type) -> DictConfig:
    """A table that takes values of the types of a dataclass, nested ones left out; kept, as it is slow to make."""
    plain = [(field.name, field.type) for field in fields(schema) if not is_dataclass(field.type)]
    return cast(
        DictConfig, OmegaConf.structured(make_dataclass(schema.__name__, plain, init=False, repr=False, eq=False))
    )
