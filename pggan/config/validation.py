"""Build a dataclass from YAML values, and check types and bounds such as `Annotated[int, ">=1"]`."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from math import isfinite
from operator import ge, gt, le, lt
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pggan.config.withdrawn import withdrawal
from pggan.core.errors import UserError, nearest, nearest_name
from pggan.core.text import three_digits

Conf = TypeVar("Conf")
MISSING = "???"  # OmegaConf's placeholder for a value that the user has to set
HOURS = {"s": 1 / 3600, "m": 1 / 60, "h": 1, "d": 24}
BOUND = re.compile(r"([<>]=?)(\S+)")
COMPARISONS = {">=": ("at least", ge), ">": ("above", gt), "<=": ("at most", le), "<": ("below", lt)}
NAMES = {Any: "a value", NoneType: "null", bool: "true or false", str: "text", int: "a whole number", float: "a number"}


def validated(schema: type[Conf], values: Mapping[str, Any], prefix: str = "") -> Conf:
    """Convert nested `values` into the dataclass `schema`; raises UserError, which names the first wrong key."""
    kinds = kinds_of(schema)
    if unknown := next((key for key in values if key not in kinds), None):
        key = f"{prefix}{unknown}"
        raise withdrawal(key) or UserError(f"There is no key '{key}'.", nearest(unknown, kinds))
    return schema(**{name: of_key(f"{prefix}{name}", kind, values.get(name, MISSING)) for name, kind in kinds.items()})


def of_key(key: str, kind: Any, value: Any) -> Any:
    """Convert `value` into the type `kind`; raises UserError, which names `key`, if this is not possible."""
    kinds = alternatives(kind)
    if is_dataclass(kinds[0]):
        values = value if isinstance(value, Mapping) else {}
        return validated(chosen(key, kinds, values), values, f"{key}.")
    if value == MISSING:
        raise UserError(f"'{key}' needs a value.", f"Add {key}=… to the command.")
    if value == "":
        remedy = f"If the value is a shell variable, set this variable. To set no value, write {key}=null."
        raise UserError(f"{key}= has no value.", remedy)
    try:
        return converted(kind, value)
    except ValueError as error:
        remedy = f"It has to be {described(kind)}."
        if key == "data.labels":
            remedy += " To take labels from a table, prepare the images first: pggan prepare labels=FILE."
        if meant := key != "checkpoint" and nearest_name(str(value), [word for one in kinds for word in words_of(one)]):
            remedy = f"Did you mean '{meant}'?"
        elif isinstance(value, list) and not any(get_origin(one) is list for one in kinds):
            if "a number" in remedy and len(value) == 2 and all(str(one).isdecimal() for one in value):
                remedy = f"Write {key}={value[0]}.{value[1]}."
            remedy = f"{remedy} To run once per value, add --multirun."
        elif key == "hours" and (found := re.fullmatch(r"(\d*\.?\d+) ?([smhd]).*", str(value))):
            remedy = f"{remedy} {value} are hours={three_digits(float(found[1]) * HOURS[found[2]])}."
        raise UserError(f"{key}={value} does not work.", remedy) from error


def chosen(key: str, schemas: tuple[Any, ...], values: Mapping[str, Any]) -> Any:
    """The dataclass among `schemas` that `values["name"]` chooses; raises UserError if there is no such dataclass."""
    if len(schemas) == 1:
        return schemas[0]
    by_name, name = by_names(schemas), str(values.get("name"))
    if name not in by_name:
        raise withdrawal(f"{key}={name}") or UserError(f"There is no {key}={name}.", nearest(name, by_name))
    return by_name[name]


def converted(kind: Any, value: Any) -> Any:
    """Convert `value` into the type `kind`, or the first fitting type of a union; raises ValueError if none fits."""
    for one in alternatives(kind):
        with suppress(KeyError, OverflowError, TypeError, ValueError):
            return of_one(one, value)
    raise ValueError


def of_one(kind: Any, value: Any) -> Any:
    """Convert `value` into the type `kind`, not a union; raises KeyError, TypeError or ValueError if this fails."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        found = converted(arguments[0], value)
        if not all(COMPARISONS[sign][1](found, float(limit)) for sign, limit in BOUND.findall(arguments[1])):
            raise ValueError
        return found
    if origin is list:
        return [converted(arguments[0], one) for one in (value if isinstance(value, list) else [value])]
    if origin is dict:
        return {converted(arguments[0], key): converted(arguments[1], one) for key, one in dict(value).items()}
    if origin is Literal:
        return arguments[[*map(str, arguments)].index(str(value))]
    if issubclass(kind, Enum):
        return kind[value]
    return primitive(kind, value)


def primitive(kind: Any, value: Any) -> Any:
    """Convert `value` into `kind` (a number, text, bool or None); raises TypeError or ValueError if this fails."""
    if kind in (int, float):
        found = kind(value)  # `value` may be text, for example from an environment variable
        if isinstance(value, bool) or not isfinite(found) or (found != value and not isinstance(value, str)):
            raise ValueError
        return found
    if kind is str and type(value) in (int, float):
        return str(value)
    if kind is Any or isinstance(value, kind):
        return value
    raise ValueError


def kinds_of(schema: type) -> dict[str, Any]:
    """Map the name of each field of a dataclass to the field's type; the type of a number has its bounds."""
    hints = get_type_hints(schema, include_extras=True)
    return {field.name: hints[field.name] for field in fields(schema)}


def keys_of(schema: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the full name (such as 'loss.gamma') and the type of each key in a dataclass and its nested dataclasses."""
    for name, kind in kinds_of(schema).items():
        yield f"{prefix}{name}", kind
        for part in filter(is_dataclass, alternatives(kind)):
            yield from keys_of(part, f"{prefix}{name}.")


def named_tables(schema: type) -> dict[str, dict[str, Any]]:
    """{field: {choice: dataclass}} of fields that are unions of dataclasses: {'loss': {'wgan_gp': WganGpConfig, …}}."""
    kinds = {field: alternatives(kind) for field, kind in kinds_of(schema).items()}
    several = {field: kinds for field, kinds in kinds.items() if len(kinds) > 1 and all(map(is_dataclass, kinds))}
    return {field: by_names(kinds) for field, kinds in several.items()}


def by_names(schemas: tuple[Any, ...]) -> dict[str, Any]:
    """Map each value that a dataclass allows for its field `name` to this dataclass: {'ada': AdaConfig, …}."""
    return {word: schema for schema in schemas for word in words_of(kinds_of(schema)["name"])}


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The member types of the union `kind`; (kind,) if `kind` is no union."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def words_of(kind: Any) -> list[str]:
    """The words that the type `kind` allows if `kind` is a Literal or an Enum; else an empty list."""
    if get_origin(kind) is Literal:
        return [word for word in get_args(kind) if isinstance(word, str)]
    return list(kind.__members__) if isinstance(kind, type) and issubclass(kind, Enum) else []


def described(kind: Any) -> str:
    """The values that the type `kind` allows, in words for error messages: 'a whole number at least 1'."""
    if len(alternatives(kind)) > 1:
        return ", or ".join(map(described, alternatives(kind)))
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        limits = [f"{COMPARISONS[sign][0]} {limit}" for sign, limit in BOUND.findall(arguments[1])]
        return f"{described(arguments[0])} {' and '.join(limits)}"
    if origin is list:
        return f"a list, each {described(arguments[0])}"
    if origin is dict:
        return f"a table {{resolution: {described(arguments[1])}}}"
    return NAMES.get(kind) or " or ".join(map(str, arguments or words_of(kind)))
