"""Read default values from configs/, and the configurations that runs have saved."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pggan.config.withdrawn import WITHDRAWN
from pggan.core.errors import UserError

# In a checkout, configs/ lies beside the package; in an installed wheel, inside the package.
CONFIGS = next(folder / "configs" for folder in Path(__file__).parents[2:0:-1] if (folder / "configs").is_dir())


def choices_of(group: str) -> list[str]:
    """The choices of a config group: the names of the YAML files in the folder configs/GROUP/."""
    return sorted(file.stem for file in (CONFIGS / group).glob("*.yaml"))


def default_values(choices: Mapping[str, str]) -> dict[str, Any]:
    """The default values of `pggan train` for `choices` {config group: choice}; references `${…}` stay unresolved."""
    from yaml import safe_load

    values: dict[str, Any] = safe_load((CONFIGS / "train.yaml").read_text("utf-8"))
    defaults = {group: name for entry in values.pop("defaults") if entry != "_self_" for group, name in entry.items()}
    for group, name in {**defaults, **choices}.items():
        file = CONFIGS / group / f"{name}.yaml"
        values |= {group: safe_load(file.read_text("utf-8"))} if file.is_file() else {}
    return values


def saved_config(file: Path) -> dict[str, Any]:
    """Read config.yaml or state.json of a run; makes data paths absolute if the working directory has changed."""
    from omegaconf import OmegaConf

    try:
        values: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
        values = values.get("config", values)  # a state.json has the configuration under this key
        before = values.pop("versions").get("directory") or os.getcwd()
        values = of_earlier_version(values)
        data = {key: values["data"][key] for key in ("path", "cache")}
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # for example an empty file, or half a file
        remedy = "Remove it. The run then takes the configuration in its newest checkpoint."
        raise UserError(f"{file} is damaged.", remedy) from error
    for key, value in data.items():
        if before != os.getcwd() and value is not None and Path(before, value).exists():
            values["data"][key] = str(Path(before, value))
    return dict(values)


def of_earlier_version(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the `values` of an older config.yaml: drop withdrawn keys, and add the defaults of newer keys."""
    chosen = {name: values[name]["name"] for name in ("loss", "augmentation", "gradients") if name in values}
    return updated(values, default_values(chosen))


def updated(given: Mapping[str, Any], default: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Merge `given` into a copy of `default`, also in nested dictionaries; withdrawn keys are left out."""
    found = {**default, **{key: value for key, value in given.items() if f"{prefix}{key}" not in WITHDRAWN}}
    for key, value in found.items():
        if isinstance(value, Mapping) and isinstance(default.get(key), Mapping):
            found[key] = updated(value, default[key], f"{prefix}{key}.")
    return found
