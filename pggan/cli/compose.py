"""From overrides to the values of a command, with errors that name the override at fault.  Without torch."""

import re
from collections.abc import Container
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pggan.cli.commands import COMMANDS, choices_of
from pggan.core.errors import UserError, nearest

if TYPE_CHECKING:
    from omegaconf import DictConfig


def compose(name: str, overrides: list[str], folder: str | None = None) -> dict[str, Any]:
    """The values of a command, resolved, with files of `folder` too; raises UserError that names the wrong override."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    file, groups = COMMANDS[name].config_file, COMMANDS[name].groups
    more = [] if folder is None else [f"hydra.searchpath=['file://{Path(folder).absolute()}']"]
    with initialize_config_dir(str(file.parent), version_base="1.3", job_name="pggan"):
        try:
            return to_plain(hydra_compose(file.stem, [*allow_new_keys(allow_plain_lists(overrides, groups)), *more]))
        except YAMLError as error:
            raise UserError(f"A configuration file is not plain YAML: {error}", "Correct it where it says.") from error
        except OverrideParseException as error:
            remedy = "Write key=value; quote values with spaces, commas, brackets or '=': \"data.path='my, photos'\"."
            raise UserError(f"'{error.override}' can't be read.", remedy) from error
        except MissingConfigException as error:
            group, _, choice = (error.missing_cfg_file or "").rpartition("/")
            raise UserError(f"There is no {group}={choice}.", nearest(choice, error.options or [])) from error
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            for chosen in ([one for one in overrides if one.partition("=")[0] in groups], []):
                try:
                    composed = hydra_compose(file.stem, [*chosen, *more])
                    break
                except (HydraException, OmegaConfBaseException, ValueError):
                    continue  # what is chosen can't be composed either
            raise explanation(overrides, OmegaConf.to_container(composed, resolve=False), set(groups), error) from error


def allow_new_keys(overrides: list[str]) -> list[str]:
    """Let `key={…}` bring new entries into a table, which Hydra takes with `++` only; the schema checks the key."""
    return [f"++{override}" if re.match(r"[\w.]+=\s*\{", override) else override for override in overrides]


def allow_plain_lists(overrides: list[str], groups: Container[str]) -> list[str]:
    """Let `key=1,5,9-12` be the list `key=[1,5,9-12]`; without --multirun, Hydra refuses it as several jobs."""
    plain = re.compile(r"([\w.]+)=([^\s,=(){}\[\]'\"]+(?:,[^\s,=(){}\[\]'\"]+)+)")
    found = [(override, plain.fullmatch(override)) for override in overrides]
    return [f"{match[1]}=[{match[2]}]" if match and match[1] not in groups else given for given, match in found]


def to_plain(composed: "DictConfig") -> dict[str, Any]:
    """A composed configuration as plain values, interpolations resolved, without Hydra's own part.

    Raises UserError for an interpolation that asks for more than another key, such as `${oc.env:HOME}`: a configuration
    can come from anywhere, and what it fetches would be written into the run's files.
    """
    from omegaconf import OmegaConf

    from pggan.config.describe import flatten

    own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    for key, value in flatten(OmegaConf.to_container(own, resolve=False)):  # type: ignore[arg-type]
        if re.search(r"\$\{[^}]*:", str(value)):
            raise UserError(f"{key}={value} can't be used.", "Write the value itself; '${key}' takes another key's.")
    values: Any = OmegaConf.to_container(own, resolve=True)
    return {str(key): value for key, value in values.items()}


def explanation(overrides: list[str], values: Any, groups: set[str], error: Exception) -> UserError:
    """Why composing failed, in terms of the override at fault; `values` are those of the chosen `groups`."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from pggan.config.describe import flatten

    # All keys, those of tables included: a.b.c gives a, a.b and a.b.c.
    known = groups | {part for key, _ in flatten(values) for part in accumulate(key.split("."), "{}.{}".format)}
    for override in OverridesParser.create().parse_overrides(overrides):
        key, given = override.key_or_group, override.input_line
        if override.is_sweep_override():
            return UserError(f"'{given}' are several choices for one run.", "Take one, or add --multirun to run each.")
        if isinstance(error, ValueError) and choices_of(key) and not isinstance(override.value(), str):
            return UserError(f"There is no {given}.", nearest(str(override.value()), choices_of(key)))
        parent, _, last = key.rpartition(".")
        if parent in known and last.isdecimal():
            return UserError(f"'{given}' can't be given like this.", f"Write '{parent}={{{last}: …}}' (in quotes).")
        if key not in known:
            return UserError(f"There is no key '{key}'.", nearest(key, known))
    return UserError(" ".join(str(error).split("\n")[:2]), "See --help for the keys and their values.")
