"""From overrides to the values of a command, with errors that name the override at fault.  Without torch."""

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pggan.cli.commands import COMMANDS, Command
from pggan.cli.recipe_file import RECIPE_GROUPS, keys_of_recipe, options_of_choices, with_recipes
from pggan.cli.suggestions import explanation, missing_choice, refuse_typos, unreadable
from pggan.core.errors import UserError, nearest_name
from pggan.core.next_command import key_of

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass(frozen=True)
class ConfigSource:
    """The YAML that overrides are applied to, and the groups that it chooses files of."""

    file: Path
    groups: dict[str, str]
    changes: list[str]  # overrides that make a configuration out of it

    @classmethod
    def of(cls, command: Command, overrides: list[str]) -> "ConfigSource":
        """The file of the command; or config.yaml in the run directory that training resumes in.

        A run knows its configuration: `run_dir=DIR` alone resumes it, or with RESUME_KEYS beside it.  With other keys
        the command is composed from the beginning, as it was for the first time: all ranks have to find the same, also
        those on machines without this directory.  Raises UserError where there is no run to resume.
        """
        from pggan.config.train import RESUME_KEYS  # slow to import, which --help does without

        groups = command.groups
        names = {key_of(override) for override in overrides}
        run_dir = next((one.partition("=")[2].strip("'\"") for one in overrides if one.startswith("run_dir=")), None)
        if command.name == "train" and run_dir and names <= RESUME_KEYS:
            saved = Path(run_dir).absolute() / "config.yaml"
            if saved.is_file() and "\nversions:" in saved.read_text():
                return cls(saved, {}, ["~versions"])
            if "resume" not in names or {"resume=auto", "resume=never"} & {*overrides}:  # or another run is resumed
                require_run(Path(run_dir))
        return cls(command.config_file, groups, [])


def require_run(run_dir: Path) -> None:
    """Raise UserError unless `run_dir` has checkpoints: without a configuration, nothing says what to train there."""
    from pggan.checkpoints.read import has_checkpoints

    if has_checkpoints(run_dir):
        return
    beside = {found.parent.name for found in run_dir.absolute().parent.glob("*/checkpoints")}
    meant = nearest_name(run_dir.absolute().name, beside)
    resume = f"Did you mean run_dir={run_dir.parent / meant}?" if meant else "Name the directory of a run."
    new = f"pggan train data.path=photos hours=2 run_dir={run_dir}, or with experiment=demo"
    raise UserError(f"There is no run in run_dir={run_dir} to resume.", f"{resume} A new one needs more keys: {new}.")


def config_folder(arguments: Sequence[str]) -> str | None:
    """The folder that `--config-dir` or `-cd` names; raises UserError if there is none of that name."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    folder = next((folder for flag, folder in pairwise([*words, ""]) if flag in ("--config-dir", "-cd")), None)
    if folder is not None and not (folder and Path(folder).is_dir()):
        remedy = "Name the folder that experiment/, with files of your own, is in."
        raise UserError(f"--config-dir: there is no folder '{folder}'.", remedy)
    return folder


def compose(name: str, overrides: list[str], folder: str | None = None) -> dict[str, Any]:
    """The values of a command, resolved, with files of `folder` and recipes that `overrides` name by their paths.

    Raises UserError that names the wrong override.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    source = ConfigSource.of(COMMANDS[name], overrides)
    overrides = with_recipes(overrides, folder)
    refuse_typos(overrides, sweeps=False)
    file, groups = source.file, source.groups
    more = [] if folder is None else [f"hydra.searchpath=['file://{Path(folder).absolute()}']"]
    more += source.changes
    with initialize_config_dir(str(file.parent), version_base="1.3", job_name="pggan"):
        try:
            given = [*allow_new_keys(allow_plain_lists(overrides, groups)), *options_of_others(overrides, folder)]
            values = to_plain(hydra_compose(file.stem, [*given, *more]))
            if file == COMMANDS[name].config_file:
                return values
            from pggan.config.files import of_earlier_version

            return of_earlier_version(values)
        except RecursionError as error:
            if folder is None:  # the files of this program do not
                raise
            remedy = "Look at defaults: of the files that the command names; they must not lead back."
            raise UserError(f"A configuration file in {folder} is based on itself.", remedy) from error
        except YAMLError as error:
            raise UserError(f"A configuration file is not plain YAML: {error}", "Correct it where it says.") from error
        except OverrideParseException as error:
            raise unreadable(str(error.override)) from error
        except MissingConfigException as error:
            group, _, choice = (error.missing_cfg_file or "").rpartition("/")
            raise missing_choice(group, choice, error.options or []) from error
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            for chosen in ([one for one in overrides if one.partition("=")[0] in groups], []):
                try:
                    composed = hydra_compose(file.stem, [*chosen, *more])
                    break
                except (HydraException, OmegaConfBaseException, ValueError):
                    continue  # what is chosen can't be composed either
            raise explanation(overrides, OmegaConf.to_container(composed, resolve=False), set(groups), error) from error


def allow_new_keys(overrides: list[str]) -> list[str]:
    """Let `key={…}` bring new entries into a mapping, which Hydra takes with `++` only; the schema checks the key."""
    return [f"++{override}" if re.match(r"[\w.]+=\s*\{", override) else override for override in overrides]


def allow_plain_lists(overrides: list[str], groups: Container[str]) -> list[str]:
    """Let `key=1,5,9-12` be the list `key=[1,5,9-12]`; without --multirun, Hydra refuses it as several jobs."""
    plain = re.compile(r"([\w.]+)=([^\s,=(){}\[\]'\"]+(?:,[^\s,=(){}\[\]'\"]+)+)")
    found = [(override, plain.fullmatch(override)) for override in overrides]
    return [f"{match[1]}=[{match[2]}]" if match and match[1] not in groups else given for given, match in found]


def to_plain(composed: "DictConfig") -> dict[str, Any]:
    """A composed configuration as plain values, interpolations resolved, without Hydra's own part.

    Raises UserError for an interpolation that asks for more than another key, such as `${oc.env:HOME}`: a configuration
    is untrusted, and what it fetches would be written into the run's files.
    """
    from omegaconf import OmegaConf

    from pggan.config.describe import flatten

    own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    for key, value in flatten(OmegaConf.to_container(own, resolve=False)):  # type: ignore[arg-type]
        if re.search(r"\$\{[^}]*:", str(value)):
            raise UserError(f"{key}={value} can't be used.", "Write the value itself; '${key}' takes another key's.")
    values: Any = numbered(OmegaConf.to_container(own, resolve=True))
    return {str(key): value for key, value in values.items()}


def options_of_others(overrides: Sequence[str], folder: str | None) -> list[str]:
    """Overrides that delete the options that a recipe has for another choice than the one in `overrides`.

    Args: folder: of configuration files of one's own.
    `experiment=demo loss=wgan_gp` leaves out the demo's gamma, which this loss does not know.  What is typed stays, and
    is refused by the schema.
    """
    own = options_of_choices(overrides, folder)
    typed = {key_of(override) for override in overrides}
    recipes = [(key_of(one), one.partition("=")[2]) for one in overrides if key_of(one) in RECIPE_GROUPS]
    keys = set[str]().union(*(keys_of_recipe(group, name, folder) for group, name in recipes)) - typed
    parts = [(key, *key.partition(".")[::2]) for key in sorted(keys)]
    return [f"~{key}" for key, group, name in parts if name and group in own and name not in own[group]]


def numbered(values: Any) -> Any:
    """`values` with the resolutions of mappings as numbers, which JSON and a saved configuration have as text."""
    if not isinstance(values, dict):
        return values
    return {int(key) if str(key).isdecimal() else key: numbered(value) for key, value in values.items()}
