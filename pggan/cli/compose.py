"""From the words of a command to its values, by Hydra; a mistake becomes one sentence.  Without torch."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pggan.cli.commands import COMMANDS, Command
from pggan.config.validation import kinds_of, named_tables, names_of
from pggan.config.withdrawn import withdrawal  # WITHDRAWN is the table there
from pggan.core.errors import UserError, nearest, nearest_name
from pggan.core.text import as_hydra_reads_it, key_of

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
LIST = re.compile(r"[^\s,=(){}\[\]'\"]+(,[^\s,=(){}\[\]'\"]+)+")  # 1,5,9-12
RESUME_KEYS = {"run_dir", "resume", "devices", "threads"}  # say where and how a run resumes, not what it is
Task = Callable[[dict[str, Any], list[str]], int]  # takes composed values and the overrides that they are of

# What other programs call it, and what it is here.
SYNONYMS = {
    "batch_size": "schedule.batch=, in images per update",
    "dataset": "data.path=",
    "epochs": "schedule.total_images=, in images shown",
    "fp16": "precision=fp16",
    "gpus": "devices=",
    "kimg": "schedule.total_images=, in images: 25000 kimg are 25000000",
    "lambda": "loss.penalty_weight=, with loss=wgan_gp",
    "lr": "schedule.learning_rate_g= and schedule.learning_rate_d=",
    "outdir": "run_dir=",
    "psi": "truncation=",
    "resolution": "schedule.final_resolution=",
    "workers": "devices=, one rank each",
}


def compose(name: str, overrides: list[str]) -> dict[str, Any]:
    """The values of a command, resolved; raises UserError where they can't be composed.

    Keys that the command has not are among the values: its schema refuses them.
    """
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    command = COMMANDS[name]
    with plain_errors(ValueError):  # of a group that is null
        file, words = command.config_file, words_for_hydra(command, overrides)
        initialize = partial(hydra.initialize_config_dir, str(file.parent), version_base="1.3", job_name="pggan")
        with nullcontext() if GlobalHydra.instance().is_initialized() else initialize():  # in a job, it is
            return finished(command, hydra.compose(file.stem, words), overrides)


def run_with_flags(command: Command, words: list[str], task: Task) -> int:
    """Be a Hydra application, whose flags are among `words`: --multirun, --cfg, --info …; returns the exit code."""
    import hydra
    from hydra.core.hydra_config import HydraConfig

    flags = [word for word in words if word.startswith("-")]
    for flag in flags:
        if "=" in flag and not flag.startswith(("--config-dir=", "--package=")):
            raise UserError(f"'{flag}' is not how keys are given.", f"Leave out the dashes: {flag.lstrip('-')}")
    overrides = [word for word in words if "=" in word and word not in flags]
    names = {key_of(one) for one in overrides}
    if command.name == "train" and "run_dir" not in names and names & {"hydra", "hydra/launcher"}:
        remedy = "Add run_dir=, a different one for each job: run_dir='outputs/seeds/${seed}'"
        raise UserError("Jobs that are queued again need a run directory to resume from.", remedy)
    files = [one for one in overrides if named_file(one) is not None]

    def run(config: "DictConfig") -> None:
        words = [one.removeprefix("++") for one in HydraConfig.get().overrides.task]
        given = [*files, *(one for one in words if key_of(one) in names.difference(map(key_of, files)))]
        if code := task(finished(command, config, given), given):
            sys.exit(code)

    rest = [word for word in words if word not in overrides]
    if not {"-sc", "--shell-completion"} & {*flags}:
        overrides = words_for_hydra(command, overrides, several=bool({"-m", "--multirun"} & {*flags}))
    before, sys.argv = sys.argv, [sys.argv[0], *OWN_SETTINGS, *overrides, *rest]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come out as they are, not as Hydra's summary of them
    if sys.version_info >= (3, 14):
        argparse.ArgumentParser = ParserOfText  # type: ignore[misc]
    try:
        with plain_errors():
            file = command.config_file
            hydra.main(version_base="1.3", config_path=str(file.parent), config_name=file.stem)(run)()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    finally:
        sys.argv = before
    return 0


@contextmanager
def plain_errors(*others: type[Exception]) -> Iterator[None]:
    """Let Hydra's errors inside, and `others`, be a UserError."""
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        yield
    except OverrideParseException as error:
        raise unreadable(str(error.override)) from error
    except MissingConfigException as error:
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        raise missing_choice(group, choice, error.options or []) from error
    except (HydraException, OmegaConfBaseException, YAMLError, *others) as error:
        raise UserError(" ".join(str(error).split()), "See --help for the keys and their values.") from error


def unreadable(override: str) -> UserError:
    """The error for an override that Hydra's grammar refuses, with the same one quoted for the shell and for Hydra."""
    key, equals, value = override.removeprefix("++").partition("=")
    remedy = "Write key=value; quote values with spaces, commas, brackets or '=': \"data.path='my, photos'\"."
    if equals and value.startswith("~"):
        remedy = f"The shell does not replace ~ here: {key}={value.replace('~', '$HOME', 1)}"
    elif equals and not re.search(r"['\"$`\\]", value):
        remedy = f"Values with spaces, brackets, '=' or letters like ä are quoted twice: \"{key}='{value.strip()}'\""
    return UserError(f"'{override.removeprefix('++')}' can't be read.", remedy)


def missing_choice(group: str, choice: str, options: Sequence[str]) -> UserError:
    """The error for a file that a config group has not."""
    remedy = nearest(choice, options)
    if group == "data" and not remedy.startswith("Did"):
        remedy = f"Images of your own are data.path={choice}; data= takes: {', '.join(sorted(options))}."
    return withdrawal(f"{group}={choice}") or UserError(f"There is no {group}={choice}.", remedy)


def suggestion(command: Command, key: str) -> str:
    """A sentence that suggests a key for the unknown `key`: its name here, a key of this name, or the nearest one."""
    names = {*command.groups, *names_of(command.schema_type)}
    table, _, last = key.rpartition(".")
    here = SYNONYMS.get(last, "")
    if key not in names and here.startswith(table) and here.partition("=")[0] in names:
        return f"Here it is {here}."
    same = [name for name in sorted(names) if f".{name}".endswith(f".{key}")]
    found = same[0] if same else nearest_name(key, names)
    meant = "" if found == key else f"Did you mean '{found}'? " if found else "--help lists the keys."
    table, _, last = (found or "").partition(".")
    choices = named_tables(command.schema_type).get(table, {})  # of losses, augmentations or kinds of gradients
    having = [f"{table}={choice}" for choice, schema in choices.items() if last in kinds_of(schema)]
    return f"{meant}It is a key of {' and '.join(having)}." if having else meant.rstrip()


class ParserOfText(argparse.ArgumentParser):
    """Makes plain text of Hydra's help, some of which are objects: argparse of Python 3.14 refuses these."""

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """An argument, with its help as text."""
        if options.get("help"):
            options["help"] = str(options["help"])
        return super().add_argument(*names, **options)


def words_for_hydra(command: Command, overrides: Sequence[str], *, several: bool = False) -> list[str]:
    """Overrides as Hydra reads them: recipes written out, every key forced, plain lists in brackets.

    A forced key may be new to a mapping, or one of another loss; the schema refuses what does not exist.  With
    `several` jobs, a list is their values.
    """
    words = []
    for word in with_recipes(overrides):
        key, equals, value = word.partition("=")
        if key in command.groups or re.match(r"hydra\b", key) or not (equals and re.fullmatch(r"[\w.]+", key)):
            words.append(word)
        else:
            words.append(f"++{key}=[{value}]" if LIST.fullmatch(value) and not several else f"++{word}")
    return words


def named_file(override: str) -> Path | None:
    """The file of `experiment=FILE.yaml`; None for every other override."""
    key, _, value = override.lstrip("+").partition("=")
    path = value.strip("'\"").replace("\\'", "'")
    return Path(path) if key == "experiment" and path.endswith(".yaml") else None


def with_recipes(overrides: Sequence[str]) -> list[str]:
    """`overrides` with what stands in the file for each `experiment=FILE.yaml`; keys that are given have priority."""
    files = [file for one in overrides if (file := named_file(one)) is not None]
    given, keys = [one for one in overrides if named_file(one) is None], {key_of(one) for one in overrides}
    found = [one for file in files for one in read_recipe(file).items()]
    return [*(f"{key}={as_hydra_reads_it(value)}" for key, value in found if key not in keys - {"experiment"}), *given]


def read_recipe(file: Path) -> dict[str, Any]:
    """The values of an experiment file by key, and the files that it chooses by group; raises UserError for others."""
    from omegaconf import OmegaConf
    from yaml import YAMLError

    remedy = "Name the recipe.yaml of a run, or a file like those of configs/experiment/."
    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except (OSError, YAMLError, ValueError) as error:
        raise UserError(f"{file} can't be read: {error}.", remedy) from error
    if not isinstance(content, dict):
        raise UserError(f"{file} is not a recipe.", remedy)
    found: dict[str, Any] = {}
    for entry in content.pop("defaults", []):
        group, name = next(iter(entry.items())) if isinstance(entry, dict) else ("experiment", entry)
        found |= {} if name == "_self_" else {str(group).removeprefix("override /"): name}
    for section, value in content.items():
        table = value.items() if isinstance(value, dict) else [("", value)]
        found |= {f"{section}.{key}".removesuffix("."): one for key, one in table}
    if any(re.search(r"\bhydra\b", key) for key in found):
        raise UserError(f"{file} is no recipe: it has a part that is Hydra's.", remedy)
    return found


def finished(command: Command, composed: "DictConfig", overrides: Sequence[str]) -> dict[str, Any]:
    """A composed configuration as plain values, without Hydra's own part; or of a run that resumes, its own.

    Options that a recipe has for another choice are left out: `experiment=demo loss=wgan_gp` has no gamma.  Those in
    `overrides` stay, and are refused by the schema.
    """
    from omegaconf import OmegaConf

    own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    values: dict[str, Any] = OmegaConf.to_container(own, resolve=True)  # type: ignore[assignment]
    typed = {key_of(one) for one in overrides}
    if command.name == "train" and resumes(overrides):
        return own_config({key: values[key] for key in typed}) or values
    for table, choices in named_tables(command.schema_type).items():
        given, options = values.get(table), {field for one in choices.values() for field in one.__dataclass_fields__}
        if isinstance(given, dict) and (chosen := choices.get(str(given.get("name")))) is not None:
            foreign = options - {*chosen.__dataclass_fields__} - {key.removeprefix(f"{table}.") for key in typed}
            values[table] = {key: value for key, value in given.items() if key not in foreign}
    return values


def resumes(overrides: Sequence[str]) -> bool:
    """Whether `overrides` say no more than which run resumes, where and how.

    With other keys the command is composed as for the first time: all ranks have to find the same, also those on
    machines without this directory.
    """
    names = {key_of(override) for override in overrides}
    return "run_dir" in names and names <= RESUME_KEYS


def own_config(given: dict[str, Any]) -> dict[str, Any] | None:
    """The configuration of the run whose directory is in `given`, with these values; None where it has none.

    It is read as plain data: nothing in it is looked up.  Raises UserError where there is no run to resume.
    """
    from omegaconf import OmegaConf

    from pggan.checkpoints.read import has_checkpoints
    from pggan.config.defaults import of_earlier_version

    run_dir = Path(str(given["run_dir"]))
    if (saved := run_dir / "config.yaml").is_file():
        values: Any = OmegaConf.to_container(OmegaConf.load(saved), resolve=False)
        values.pop("versions")
        return {**of_earlier_version(values), **given}
    if given.get("resume", "auto") in ("auto", "never") and not has_checkpoints(run_dir):  # nor is another run resumed
        new = f"pggan train data.path=photos hours=2 run_dir={run_dir}, or with experiment=demo"
        raise UserError(f"There is no run in run_dir={run_dir} to resume.", f"A new one needs more keys: {new}.")
    return None
