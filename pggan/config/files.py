"""The YAML files of configs/, which hold the default and the comment of every key."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pggan.config.train import TrainerConfig
from pggan.config.validation import validated
from pggan.config.withdrawn import without_withdrawn

# In a checkout, configs/ lies beside the package; in an installed wheel, inside it.
CONFIGS = next(folder / "configs" for folder in Path(__file__).parents[2:0:-1] if (folder / "configs").is_dir())


def roots(folder: str | None) -> list[Path]:
    """Where configuration files are looked for, in this order; `folder` is one's own."""
    return [CONFIGS] if folder is None else [CONFIGS, Path(folder)]


def choices_of(group: str, folder: str | None = None) -> list[str]:
    """The files of a folder of configs/, and of the one of that name in one's own `folder`; none if there is none."""
    return sorted({file.stem for root in roots(folder) for file in (root / group).glob("*.yaml")})


def default_values(choices: Mapping[str, str]) -> dict[str, Any]:
    """The values of configs/train.yaml as they are written, with `choices` of files by their groups."""
    from yaml import safe_load  # which --help does without

    values: dict[str, Any] = safe_load((CONFIGS / "train.yaml").read_text())
    defaults = {group: name for entry in values.pop("defaults") if entry != "_self_" for group, name in entry.items()}
    for group, name in {**defaults, **choices}.items():
        file = CONFIGS / group / f"{name}.yaml"
        values |= {group: safe_load(file.read_text())} if file.is_file() else {}
    return values


def of_earlier_version(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a run's config.yaml: without what is withdrawn, and with the defaults of keys that it lacks."""

    def filled(given: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
        both = {key: (given.get(key), value) for key, value in default.items()}
        tables = {key: filled(*pair) for key, pair in both.items() if all(isinstance(one, Mapping) for one in pair)}  # type: ignore[arg-type]
        return {**default, **given, **tables}

    chosen = {name: values[name]["name"] for name in ("loss", "augmentation", "gradients") if name in values}
    return filled(without_withdrawn(values), default_values(chosen))


@cache
def default_trainer() -> TrainerConfig:
    """The trainer that configs/train.yaml describes, for what varies a part of it."""
    values = default_values({})
    return validated(TrainerConfig, {name: values[name] for name in TrainerConfig.__dataclass_fields__})
