"""From the words of a command to its values, by Hydra; its errors become one sentence each.  Without torch."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pggan.cli.commands import COMMANDS, Command
from pggan.cli.recipe_file import named_file
from pggan.cli.suggestions import explained
from pggan.config.validation import named_tables
from pggan.core.errors import UserError, nearest_name
from pggan.core.text import key_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Hydra only composes: run directory, logs and working directory are this program's own.
OWN_SETTINGS = [
    "hydra.job.name=pggan",
    "hydra.output_subdir=null",
    "hydra.run.dir=.",
    "hydra.sweep.dir=outputs/multirun",
    "hydra.sweep.subdir=.",
    "hydra/hydra_logging=none",
    "hydra/job_logging=none",
]
Task = Callable[[dict[str, Any], list[str]], int]  # takes composed values and the overrides that they are of


def compose(name: str, overrides: list[str], folder: str | None = None) -> dict[str, Any]:
    """The values of a command, resolved; raises UserError that names the wrong override.

    Args: folder: of configuration files of one's own; inside of a task of `run_with_flags`, Hydra knows it.
    """
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    command = COMMANDS[name]
    with plain_errors(command, overrides, folder):
        own = own_config(command, overrides)
    if own is not None:
        return own
    words = words_for_hydra(command, overrides)
    with plain_errors(command, words, folder):
        if GlobalHydra.instance().is_initialized():
            return finished(command, hydra.compose(command.config_file.stem, words), overrides)
        with hydra.initialize_config_dir(str(command.config_file.parent), version_base="1.3", job_name="pggan"):
            return finished(command, hydra.compose(command.config_file.stem, [*words, *searched(folder)]), overrides)


def run_with_flags(command: Command, words: list[str], task: Task) -> int:
    """Be a Hydra application, whose flags are among `words`: --multirun, --cfg, --info …; returns the exit code."""
    import hydra
    from hydra.core.hydra_config import HydraConfig

    flags = [word for word in words if word.startswith("-")]
    for flag in flags:
        if "=" in flag and not flag.startswith(("--config-dir=", "--package=")):
            raise UserError(f"'{flag}' is not how keys are given.", f"Leave out the dashes: {flag.lstrip('-')}")
    overrides = [word for word in words if "=" in word and word not in flags]
    several = bool({"-m", "--multirun"} & set(flags))
    own = None if several else own_config(command, overrides)
    if own is not None and {"--cfg", "-c"} & set(flags):
        from omegaconf import OmegaConf

        print(OmegaConf.to_yaml(OmegaConf.create(own)))
        return 0
    if own is not None:
        return task(own, overrides)
    is_queued = any(key_of(one) in ("hydra", "hydra/launcher") for one in overrides)
    if is_queued and command.name == "train" and not any(one.startswith("run_dir=") for one in overrides):
        remedy = "Add run_dir=, a different one for each job: run_dir='outputs/seeds/${seed}'"
        raise UserError("Jobs that are queued again need a run directory to resume from.", remedy)

    begun: list[bool] = []
    files = {words_for_hydra(command, [one])[0]: one for one in overrides if named_file(one) is not None}

    def run(config: "DictConfig") -> None:
        given = [files.get(one, one) for one in HydraConfig.get().overrides.task]
        values = finished(command, config, given)
        begun.append(True)
        if code := task(values, given):
            sys.exit(code)

    rest = [word for word in words if word not in overrides]
    given = words_for_hydra(command, overrides, several=several)
    before, sys.argv = sys.argv, [f"pggan {command.name}", *OWN_SETTINGS, *given, *rest]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come out as they are, not as Hydra's summary of them
    try:
        with plain_errors(command, given, config_folder(words), several=several, begun=begun), text_of_help():
            file = command.config_file
            hydra.main(version_base="1.3", config_path=str(file.parent), config_name=file.stem)(run)()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    finally:
        sys.argv = before
    return 0


@contextmanager
def plain_errors(
    command: Command, words: list[str], folder: str | None, *, several: bool = False, begun: Sequence[bool] = ()
) -> Iterator[None]:
    """Let what Hydra raises inside for `words` be a UserError with the override at fault and what was meant.

    Args: several: whether there are values of several jobs; begun: not empty once a job has begun, whose errors stay.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        yield
    except YAMLError as error:
        raise UserError(f"A configuration file is not plain YAML: {error}", "Correct it where it says.") from error
    except RecursionError as error:
        remedy = "Look at defaults: of the files that the command names; they must not lead back."
        raise UserError("A configuration file is based on itself.", remedy) from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        if begun:
            raise
        raise explained(command, words, chosen_values(command, words, folder), error, several=several) from error


def chosen_values(command: Command, words: Sequence[str], folder: str | None) -> Any:
    """The values of the files that `words` choose, unresolved; or those of the default files, if they don't compose."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    file = command.config_file
    for chosen in ([word for word in words if key_of(word) in command.groups], []):
        try:
            with hydra.initialize_config_dir(str(file.parent), version_base="1.3", job_name="pggan"):
                composed = hydra.compose(file.stem, [*chosen, *searched(folder)])
            return OmegaConf.to_container(composed, resolve=False)
        except (HydraException, OmegaConfBaseException, ValueError):
            continue
    return {}


@contextmanager
def text_of_help() -> Iterator[None]:
    """Make plain text of Hydra's help texts, some of which are objects: argparse of Python 3.14 refuses these."""

    class Parser(argparse.ArgumentParser):
        def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
            text = {"help": str(options["help"])} if options.get("help") else {}
            return super().add_argument(*names, **{**options, **text})

    before = argparse.ArgumentParser
    if sys.version_info >= (3, 14):
        argparse.ArgumentParser = Parser  # type: ignore[misc]
    try:
        yield
    finally:
        argparse.ArgumentParser = before  # type: ignore[misc]


def words_for_hydra(command: Command, overrides: Sequence[str], *, several: bool = False) -> list[str]:
    """Overrides as Hydra reads them: with plain lists in brackets, unless they are values of `several` jobs.

    `key={…}` may bring new entries into a mapping; `experiment=FILE.yaml` becomes a choice that Hydra knows.
    """
    plain = re.compile(r"([\w.]+)=([^\s,=(){}\[\]'\"]+(?:,[^\s,=(){}\[\]'\"]+)+)")
    words = []
    for word in overrides:
        listed = None if several else plain.fullmatch(word)
        if (file := named_file(word)) is not None:
            words.append(choice_of_file(file))
        elif listed and listed[1] not in command.groups:
            words.append(f"{listed[1]}=[{listed[2]}]")
        else:
            words.append(f"++{word}" if re.match(r"[\w.]+=\s*\{", word) else word)
    return words


def choice_of_file(file: Path) -> str:
    """The override that takes a recipe in a file of any place; raises UserError where it is none."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import DictConfig, OmegaConf
    from yaml import YAMLError

    remedy = "Name the recipe.yaml of a run, or a file like those of configs/experiment/."
    try:
        recipe = OmegaConf.load(file)
    except (OSError, UnicodeError, YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not plain YAML"
        raise UserError(f"experiment={file} can't be read: {reason}.", remedy) from error
    parts = [*recipe, *map(str, recipe.get("defaults") or ())] if isinstance(recipe, DictConfig) else ["hydra"]
    if any(re.search(r"\bhydra\b", str(part)) for part in parts):
        raise UserError(f"experiment={file} is no recipe: it has a part that is Hydra's.", remedy)
    ConfigStore.instance().store("given_file", recipe, group="experiment", package="_global_", provider=str(file))
    return "experiment=given_file"


def finished(command: Command, composed: "DictConfig", overrides: Sequence[str]) -> dict[str, Any]:
    """A composed configuration as plain values, without Hydra's own part.

    Options that a recipe has for another choice are left out: `experiment=demo loss=wgan_gp` has no gamma.  Those in
    `overrides` stay, and are refused by the schema.
    """
    from omegaconf import OmegaConf

    own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    values: dict[str, Any] = numbered(OmegaConf.to_container(own, resolve=True))
    typed = {key_of(one) for one in overrides}
    for table, choices in named_tables(command.schema_type).items():
        given, options = values.get(table), {field for one in choices.values() for field in one.__dataclass_fields__}
        if isinstance(given, dict) and (chosen := choices.get(str(given.get("name")))) is not None:
            foreign = options - {*chosen.__dataclass_fields__} - {key.removeprefix(f"{table}.") for key in typed}
            values[table] = {key: value for key, value in given.items() if key not in foreign}
    return values


def numbered(values: Any) -> Any:
    """`values` with the resolutions of mappings as numbers, which JSON and a saved configuration have as text."""
    if not isinstance(values, dict):
        return values
    return {int(key) if str(key).isdecimal() else key: numbered(value) for key, value in values.items()}


def own_config(command: Command, overrides: Sequence[str]) -> dict[str, Any] | None:
    """The configuration of the run that `overrides` resume, if they say no more than where and how; else None.

    A run knows its configuration: `run_dir=DIR` alone resumes it, or with RESUME_KEYS beside it.  With other keys the
    command is composed as for the first time: all ranks have to find the same, also those on machines without this
    directory.  It is read as plain data: nothing in it is looked up.  Raises UserError where there is no run to resume.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    from pggan.config.train import RESUME_KEYS
    from pggan.config.values import of_earlier_version

    names = {key_of(override) for override in overrides}
    if command.name != "train" or "run_dir" not in names or not names <= RESUME_KEYS:
        return None
    given = {one.key_or_group: one.value() for one in OverridesParser.create().parse_overrides([*overrides])}
    run_dir = Path(str(given["run_dir"]))
    saved = run_dir / "config.yaml"
    if saved.is_file() and "\nversions:" in (text := saved.read_text()):
        values = numbered(OmegaConf.to_container(OmegaConf.create(text), resolve=False))
        del values["versions"]
        return of_earlier_version(values) | given
    if given.get("resume", "auto") in ("auto", "never"):  # or another run is resumed
        require_run(run_dir)
    return None


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


def config_folder(words: Sequence[str]) -> str | None:
    """The folder that `--config-dir` or `-cd` names; raises UserError if there is none of that name."""
    parts = [part for word in words for part in word.split("=", 1)]
    folder = next((folder for flag, folder in pairwise([*parts, ""]) if flag in ("--config-dir", "-cd")), None)
    if folder is not None and not (folder and Path(folder).is_dir()):
        remedy = "Name the folder that experiment/, with files of your own, is in."
        raise UserError(f"--config-dir: there is no folder '{folder}'.", remedy)
    return folder


def searched(folder: str | None) -> list[str]:
    """The override that lets Hydra look for files in a folder of one's own, too."""
    return [] if folder is None else [f"hydra.searchpath=['file://{Path(folder).absolute()}']"]
