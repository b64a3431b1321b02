"""From overrides to the values of a command, with errors that name the override at fault.  Without torch."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pggan.cli.commands import COMMANDS, CONFIGS
from pggan.core.errors import UserError, nearest

if TYPE_CHECKING:
    from omegaconf import DictConfig


def compose(name: str, overrides: list[str], folder: str | None = None) -> dict[str, Any]:
    """The values of command `name` under `overrides`, interpolations resolved; `folder` has more files to choose from.

    Raises UserError that names the override at fault.
    """
    more = [] if folder is None else [f"hydra.searchpath=['file://{Path(folder).absolute()}']"]
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    command = COMMANDS[name]
    with initialize_config_dir(str(command.config_file.parent), version_base="1.3", job_name="pggan"):
        try:
            return to_plain(hydra_compose(command.stem, [*allow_new_keys(overrides), *more]))
        except YAMLError as error:
            raise UserError(f"A configuration file is not plain YAML: {error}", "Correct it where it says.") from error
        except OverrideParseException as error:
            raise UserError(
                f"'{error.override}' can't be read.",
                "Write key=value; quote values with spaces, commas, brackets or '=': \"data.path='my, photos'\".",
            ) from error
        except MissingConfigException as error:
            group, _, choice = (error.missing_cfg_file or "").rpartition("/")
            raise UserError(f"There is no {group}={choice}.", nearest(choice, error.options or [])) from error
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            groups = command.groups
            for chosen in ([one for one in overrides if one.partition("=")[0] in groups], []):
                try:
                    keys = OmegaConf.to_container(hydra_compose(command.stem, [*chosen, *more]), resolve=False)
                    break
                except (HydraException, OmegaConfBaseException, ValueError):
                    continue  # what is chosen can't be composed either
            raise explanation(overrides, {*all_keys(keys), *groups}, error) from error


def allow_new_keys(overrides: list[str]) -> list[str]:
    """Let `key={…}` bring new entries into a table, which Hydra takes with `++` only; the schema checks the key."""
    return [f"++{override}" if re.match(r"[\w.]+=\s*\{", override) else override for override in overrides]


def to_plain(composed: "DictConfig") -> dict[str, Any]:
    """A composed configuration as plain values, interpolations resolved, without Hydra's own part."""
    from omegaconf import OmegaConf

    own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    refuse_resolvers(OmegaConf.to_container(own, resolve=False))
    values = OmegaConf.to_container(own, resolve=True)
    assert isinstance(values, dict), "a YAML file with keys"
    return {str(key): value for key, value in values.items()}


def refuse_resolvers(values: Any, key: str = "") -> None:
    """Raise UserError for a value that asks for more than another key: the environment, say, as `${oc.env:HOME}` does.

    A configuration can come from anywhere, and what it fetches would be written into the run's files.
    """
    if isinstance(values, dict):
        for name, value in values.items():
            refuse_resolvers(value, f"{key}.{name}".removeprefix("."))
    elif isinstance(values, list):
        for value in values:
            refuse_resolvers(value, key)
    elif isinstance(values, str) and re.search(r"\$\{[^}]*:", values):
        raise UserError(f"{key}={values} can't be used.", "Write the value itself; '${key}' takes that of another key.")


def explanation(overrides: list[str], known: set[str], error: Exception) -> UserError:
    """Why composing failed, in terms of the override at fault; `known` are the keys that the chosen groups have."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    for override in OverridesParser.create().parse_overrides(overrides):
        key = override.key_or_group
        if isinstance(error, ValueError) and key and (CONFIGS / key).is_dir() and not isinstance(override.value(), str):
            choices = sorted(file.stem for file in (CONFIGS / key).glob("*.yaml"))
            return UserError(f"There is no {override.input_line}.", nearest(str(override.value()), choices))
        parent, _, last = key.rpartition(".")
        if parent in known and last.isdecimal():
            return UserError(
                f"'{override.input_line}' can't be given like this.",
                f"Write '{parent}={{{last}: …}}' (in quotes).",
            )
        if key not in known:
            return UserError(f"There is no key '{key}'.", nearest(key, known))
    return UserError(" ".join(str(error).split("\n")[:2]), "See --help for the keys and their values.")


def all_keys(values: Any, prefix: str = "") -> list[str]:
    """All keys of nested dictionaries, with dots."""
    if not isinstance(values, dict):
        return []
    keys: list[str] = []
    for key, value in values.items():
        keys += [f"{prefix}{key}", *all_keys(value, f"{prefix}{key}.")]
    return keys
