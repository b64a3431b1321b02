"""A recipe as a file: the differences to the defaults, each with its reason; `experiment=FILE.yaml` takes it.

Without torch.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from pggan.config.values import roots
from pggan.core.atomic_io import atomic_write
from pggan.core.errors import UserError
from pggan.core.text import key_of

RECIPE_FILE = "recipe.yaml"
WIDTH = 118
RECIPE_GROUPS = ("experiment", "debug")  # whose files have keys of all groups
REMEDY = "Name the recipe.yaml of a run, or a file like those of configs/experiment/."


class Difference(NamedTuple):
    """A key that is not as by default, or a group of which another file is chosen."""

    key: str
    value: Any
    reason: str
    is_group: bool


def write_recipe(path: Path, title: str, differences: Sequence[Difference]) -> None:
    """Write `differences`, of one or two levels of keys; `title` says what they are, in sentences.

    Of several for one key, the last one counts, as on the command line.
    """
    differences = [*{each.key: each for each in differences}.values()]
    lines = ["# @package _global_", *(f"# {line}" for line in wrap(title, WIDTH))]
    groups = [each for each in differences if each.is_group]
    if groups:
        lines.append("defaults:")
    lines += [f"  - {_group(each)}  # {each.reason}" for each in groups]
    sections: dict[str, list[str]] = {}
    for key, value, reason, is_group in differences:
        section, _, name = key.rpartition(".")
        if not is_group:
            sections.setdefault(section, []).append(f"{name}: {_written(value)}  # {reason}")
    for section, entries in sections.items():
        lines += [f"{section}:", *(f"  {entry}" for entry in entries)] if section else entries
    with atomic_write(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n")


def _group(each: Difference) -> str:
    return str(each.value) if each.key == "experiment" else f"override /{each.key}: {each.value}"


def _written(value: Any) -> str:
    """A value as YAML takes it, and the command line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_written(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def overrides_of(differences: Sequence[Difference]) -> list[str]:
    """The same as overrides of the command line."""
    return [f"{each.key}={each.value if each.is_group else _written(each.value)}" for each in differences]


def read_recipe(path: Path) -> list[str]:
    """The overrides that a recipe stands for; raises UserError unless it is one."""
    from omegaconf import OmegaConf
    from yaml import YAMLError

    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (OSError, YAMLError, ValueError) as error:
        raise UserError(f"{path} can't be read: {error}.", REMEDY) from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a recipe.", REMEDY)
    overrides = []
    for entry in content.pop("defaults", []):
        if entry == "_self_":
            continue
        group, value = next(iter(entry.items())) if isinstance(entry, dict) else ("experiment", entry)
        overrides.append(f"{str(group).removeprefix('override /')}={value}")
    for section, value in content.items():
        entries = value.items() if isinstance(value, dict) else [("", value)]
        overrides += [f"{'.'.join(filter(None, map(str, (section, name))))}={_written(each)}" for name, each in entries]
    if any(re.search(r"\bhydra\b", key_of(one)) for one in overrides):
        raise UserError(f"{path} is no recipe: it has a part that is Hydra's.", REMEDY)
    return overrides


def keys_of_recipe(group: str, name: str, folder: str | None) -> set[str]:
    """The keys that file `name` of `group` sets, and the groups that it chooses a file of; those of its bases, too.

    Args: group: `experiment` or `debug`; name: may be a path; folder: of configuration files of one's own, where it is
    looked for, too.
    """
    file = named_file(f"{group}={name}")
    if file is None:
        file = next((file for root in roots(folder) if (file := root / group / f"{name}.yaml").is_file()), None)
    keys: set[str] = set()
    for override in [] if file is None else read_recipe(file):
        key, _, value = override.partition("=")
        keys |= keys_of_recipe(group, value, folder) if key == "experiment" else {key}
    return keys


def named_file(override: str) -> Path | None:
    """The file of `experiment=FILE.yaml`; None for every other override."""
    key, _, value = override.lstrip("+").partition("=")
    quoted = re.fullmatch(r"(['\"])(.*)\1", value)
    path = quoted[2].replace(f"\\{quoted[1]}", quoted[1]) if quoted else value
    return Path(path) if key == "experiment" and path.endswith(".yaml") else None


def with_recipes(overrides: Sequence[str]) -> list[str]:
    """`overrides` with what stands in the file for each `experiment=FILE.yaml`; keys that are given have priority."""
    found = [one for override in overrides if (file := named_file(override)) is not None for one in read_recipe(file)]
    return merged(found, [one for one in overrides if named_file(one) is None])


def merged(recipe: Sequence[str], given: Sequence[str]) -> list[str]:
    """Overrides of a recipe that are not given otherwise, and those that are given."""
    keys = {key_of(one) for one in given}
    return [*(one for one in recipe if key_of(one) not in keys), *given]
