"""Compose a command's configuration with Hydra; errors of Hydra become a UserError.  Imports no torch."""

import argparse
import os
import re
import sys
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, get_origin

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import BaseLoader, YAMLError, load

from pggan.checkpoints.generator_file import STATE_FILE
from pggan.checkpoints.read import CONFIG_FILE, checkpoints_of, has_checkpoints, run_of
from pggan.cli.commands import COMMANDS, Command
from pggan.config.defaults import CONFIGS, default_values, saved_config
from pggan.config.validation import alternatives, keys_of, kinds_of, named_tables, validated
from pggan.config.values import flatten
from pggan.config.withdrawn import withdrawal
from pggan.core.errors import UserError, nearest, nearest_name, nearest_path
from pggan.core.process import STARTED_VARIABLE, environment
from pggan.core.text import as_hydra_reads_it, command_line, key_of

# Hydra must write no run directories and no logs, and must not change the working directory.
OWN_SETTINGS = [
    *("hydra.job.name=pggan", "hydra.output_subdir=null", "hydra.run.dir=.", "hydra.sweep.dir=outputs/multirun"),
    *("hydra.sweep.subdir=.", "hydra/hydra_logging=none", "hydra/job_logging=none"),
]
QUOTED = re.compile(r"'([^'\\]|\\.)*'|\"([^\"\\]|\\.)*\"", re.DOTALL)
LIST = re.compile(r"[^\s,=(){}\[\]'\"]+(,[^\s,=(){}\[\]'\"]+)+")  # matches lists such as 1,5,9-12
WORD = re.compile(r"[\w./:+$@-]*", re.ASCII)  # matches values that Hydra reads without quotes
CHOICE = re.compile(r"[\w./,\[\]-]*", re.ASCII)
# If a command sets run_dir= and only keys of this set, `pggan train` resumes the run with its saved configuration.
RESUME_KEYS = {"run_dir", "resume", "devices", "threads", "data.path", "data.cache", "allow_changes"}
# Hydra's flags that pggan allows.  A flag must not choose another main YAML file, and must not read a pickle file.
FLAGS = ["--cfg", "--config-dir", "--hydra-help", "--info", "--multirun", "--package", "--resolve", "--run"]
SHORT_FLAGS = ["-c", "-cd", "-i", "-m", "-p", "-r", "-sc", "--shell-completion"]
HEADER = "Begin the YAML file with '# @package _global_', or give the path of the file: experiment=FILE.yaml."
Task = Callable[[dict[str, Any], list[str]], int]  # takes (values, overrides), runs a command, returns the exit code

# Maps names that other GAN programs use, such as `kimg`, to the keys of pggan with the same meaning.
SYNONYMS = {
    "batch_size": "schedule.batch=, in images per update",
    "dataset": "data.path=",
    "epochs": "schedule.total_images=, in images shown",
    "gpus": "devices=",
    "kimg": "schedule.total_images=, in images: for 25000 kimg, write 25000000",
    "lr": "schedule.learning_rate_g= and schedule.learning_rate_d=",
    "psi": "truncation=",
    "resolution": "schedule.final_resolution=",
}


def compose(name: str, overrides: list[str]) -> dict[str, Any]:
    """Compose the configuration of the command `name` from `overrides`; raises UserError if this fails."""
    command = COMMANDS[name]
    with plain_errors([ValueError]):  # Hydra raises ValueError for loss=null
        file, words = command.config_file, words_for_hydra(command, overrides)
        initialize = partial(hydra.initialize_config_dir, str(file.parent), version_base="1.3", job_name="pggan")
        with nullcontext() if GlobalHydra.instance().is_initialized() else initialize():
            return finished(command, hydra.compose(file.stem, words), overrides)


def run_with_flags(command: Command, words: list[str], task: Task) -> int:
    """Run the command as a Hydra application, for flags such as --multirun; returns the exit code."""
    flags = [word for word in words if word.startswith("-")]
    if unknown := next((flag for flag in flags if flag.partition("=")[0] not in FLAGS + SHORT_FLAGS), None):
        raise no_flag(command, unknown, words[words.index(unknown) + 1 :])
    overrides = [word for word in words if "=" in word and word not in flags]
    names = {key_of(one) for one in overrides}
    if command.name == "train" and "run_dir" not in names and names & {"hydra", "hydra/launcher"}:
        remedy = "Add run_dir= with a different directory for each job: run_dir='outputs/seeds/${seed}'"
        raise UserError("Hydra's launcher may restart a job, and the job can then resume only with run_dir=.", remedy)
    files = [one for one in overrides if named_file(one) is not None]
    early: list[type[Exception]] = [ValueError]  # before the jobs begin, Hydra raises ValueError for -m with --cfg

    def run(config: DictConfig) -> None:
        early.clear()
        words = [one.removeprefix("++") for one in HydraConfig.get().overrides.task]
        given = [*files, *(one for one in words if key_of(one) in names.difference(map(key_of, files)))]
        with environment({STARTED_VARIABLE: str(time.time())}):  # hours= counts from the start of each --multirun job
            if code := task(finished(command, config, given), given):
                sys.exit(code)

    rest = [word for word in words if word not in overrides]
    if not {"-sc", "--shell-completion"} & {*flags}:
        overrides = words_for_hydra(command, overrides, several=bool({"-m", "--multirun"} & {*flags}))
    before, sys.argv = sys.argv, [sys.argv[0], *OWN_SETTINGS, *overrides, *rest]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # without HYDRA_FULL_ERROR, Hydra prints a summary instead of raising errors
    if sys.version_info >= (3, 14):
        argparse.ArgumentParser.add_argument = add_argument  # type: ignore[method-assign]
    try:
        with plain_errors(early):
            file = command.config_file
            hydra.main(version_base="1.3", config_path=str(file.parent), config_name=file.stem)(run)()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    finally:
        sys.argv = before
    return 0


@contextmanager
def plain_errors(others: Sequence[type[Exception]]) -> Iterator[None]:
    """Inside the `with` block, turn errors of Hydra, and errors of the types `others`, into a UserError."""
    try:
        yield
    except OverrideParseException as error:
        raise unreadable(str(error.override)) from error
    except MissingConfigException as error:
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        raise missing_choice(group, choice, error.options or []) from error
    except (HydraException, OmegaConfBaseException, YAMLError, *others) as error:
        remedy = HEADER if "@experiment" in str(error) else "See --help for the keys and their values."
        if re.search(r"^$|nterpolation|\$\{", str(error)):  # the text is empty if the working directory's path has ${
            remedy = "Hydra replaces ${KEY} by the value of KEY. Rename a file or folder that has ${ in its name."
        raise UserError(" ".join(str(error).split()), remedy) from error


def unreadable(override: str) -> UserError:
    """The error for an override that Hydra can't parse, or that has no '='."""
    remedy = "Write key=value, or a list without spaces: key=1,2,3. Quote a value with spaces: 'key={4: 16, 8: 8}'."
    problem = "can't be read" if "=" in override else "is no key=value"
    return UserError(f"'{override.removeprefix('++')}' {problem}.", remedy)


def no_flag(command: Command, flag: str, following: Sequence[str]) -> UserError:
    """The error for a `flag` that does not exist, such as --seeds; `following` are the words after the flag."""
    key, is_given, value = flag.lstrip("-").partition("=")
    remedy = f"Write keys without dashes: key=value. The flags are {', '.join(FLAGS)}."
    if key in {*command.groups, *dict(keys_of(command.schema_type))}:
        typed = [word for word in following[:1] if "=" not in word and not is_given]
        remedy = f"Write {key}={''.join(typed) or value or 'VALUE'} instead of {' '.join([flag, *typed])}."
    return UserError(f"There is no flag {flag}.", remedy)


def missing_choice(group: str, choice: str, options: Sequence[str]) -> UserError:
    """The error for a `choice` that does not exist in the config group `group`."""
    remedy = nearest(choice, options)
    if group == "data" and not remedy.startswith("Did"):
        remedy = f"For your own images, write data.path={choice}; data= takes: {', '.join(sorted(options))}."
    return withdrawal(f"{group}={choice}") or UserError(f"There is no {group}={choice}.", remedy)


def suggestion(command: Command, key: str) -> str:
    """Return advice for a user who has typed the unknown `key`, such as a key that the user may have meant."""
    names = {*command.groups, *dict(keys_of(command.schema_type))}
    here = SYNONYMS.get(key, "")
    if key not in names and here.partition("=")[0] in names:
        return f"Here, the key is {here}."
    same = [name for name in sorted(names) if f".{name}".endswith(f".{key}")]
    found = same[0] if same else nearest_name(key, names)
    elsewhere = [name for name, other in COMMANDS.items() if key in dict(keys_of(other.schema_type))]
    if elsewhere and not (found and (found in key or key in found)):
        return f"It is a key of {', '.join(elsewhere)}."
    meant = "" if found == key else f"Did you mean '{found}'? " if found else "--help lists the keys."
    table, _, last = (found or "").partition(".")
    choices = named_tables(command.schema_type).get(table, {})
    having = [f"{table}={choice}" for choice, schema in choices.items() if last in kinds_of(schema)]
    return f"{meant}It needs {' or '.join(having)}." if having else meant.rstrip()


def add_argument(parser: argparse.ArgumentParser, *names: Any, **options: Any) -> argparse.Action:
    """Call argparse's `add_argument` with `help` as text: Hydra passes an object, which Python 3.14 does not accept."""
    if options.get("help"):
        options["help"] = str(options["help"])
    return super(argparse.ArgumentParser, parser).add_argument(*names, **options)


def words_for_hydra(command: Command, overrides: Sequence[str], *, several: bool = False) -> list[str]:
    """Rewrite overrides in Hydra's syntax; raises UserError for an unknown key, and for a word without '='.

    If `several` is true (--multirun), each value of a list is for a job of its own; otherwise, a list is one value.
    """
    kinds = dict(keys_of(command.schema_type))
    for key in (key_of(word) for word in overrides if "=" in word):
        entry_of = get_origin(alternatives(kinds.get(key.rpartition(".")[0]))[-1])  # dict for schedule.batch.8
        if re.fullmatch(r"(?!hydra\b)[\w.]+", key) and key not in {*kinds, *command.groups} and entry_of is not dict:
            raise withdrawal(key) or UserError(f"There is no key '{key}'.", suggestion(command, key))
    words = []
    for word in with_recipes(overrides):
        key, is_given, value = word.lstrip("+").partition("=")
        if not is_given and not word.startswith("~"):
            raise unreadable(word)
        if re.match(r"hydra\b", key) or not re.fullmatch(r"[\w.]+", key):
            words.append(word)
        elif key in command.groups:
            words.append(f"{key}={value if CHOICE.fullmatch(value) else as_hydra_reads_it(value)}")
        else:
            types = alternatives(kinds.get(key))
            parts = value.split(",") if several and str in types and "(" not in value else [value]
            is_sweep = several and len(parts) == 1 and re.search(r"[,(]", value)
            # With "++", Hydra accepts keys that the YAML files do not have, such as schedule.batch.8.
            words.append(f"++{key}={value if is_sweep else ','.join(as_typed(part, types) for part in parts)}")
    return words


def as_typed(value: str, kinds: tuple[Any, ...]) -> str:
    """Quote `value` for Hydra if the key takes text: Hydra reads 2024_12_25 as a number. Also replaces ~ by $HOME."""
    text, takes_text = os.path.expanduser(value), list[str] in kinds
    # If a file with the name `value` exists, such as a,b.png or null, `value` means this file.
    if bool not in kinds and os.path.exists(text) and (str in kinds or not WORD.fullmatch(text)):
        return as_hydra_reads_it(text)
    is_null = value == "null" and (NoneType in kinds or str not in kinds)
    if QUOTED.fullmatch(value) or value == "" or is_null or (bool in kinds and value.lower() in ("true", "false")):
        return value
    if str in kinds:
        return as_hydra_reads_it(text)
    inside = re.fullmatch(r"\[(.*)\]", text, re.DOTALL)
    if (inside and not takes_text) or ((inside or not takes_text) and re.search(r"['\"{]", text)):
        return value
    is_list = LIST.fullmatch(text) or inside
    parts = (inside[1] if inside else text).split(",") if is_list else [text]
    items = [os.path.expanduser(part.strip()) for part in parts if part]
    items = [item if WORD.fullmatch(item) and not takes_text else as_hydra_reads_it(item) for item in items]
    return f"[{','.join(items)}]" if is_list or takes_text else items[0]


def with_marked_files(words: Sequence[str]) -> list[str]:
    """Replace experiment=NAME by experiment=PATH if NAME.yaml has a byte-order mark (BOM), which Hydra misreads."""
    folders = [CONFIGS, *(Path(word.removeprefix("--config-dir=")) for word in words if word.find("=") in (-1, 12))]
    files = {f"experiment={file.stem}": file for one in folders for file in one.glob("experiment/*.yaml")}
    marked = {name: f"experiment={file}" for name, file in files.items() if file.read_bytes().startswith(BOM_UTF8)}
    return [marked.get(word.replace("=[", "=").removesuffix("]"), word) for word in words]


def named_file(override: str) -> Path | None:
    """The path in an override `experiment=FILE.yaml`; None for every other override."""
    key, _, value = override.lstrip("+").partition("=")
    path = os.path.expanduser(value.strip("'\"").replace("\\'", "'"))
    return Path(path) if key == "experiment" and path.endswith(".yaml") else None


def with_recipes(overrides: Sequence[str]) -> list[str]:
    """Replace each override `experiment=FILE.yaml` by the keys in this file; other overrides have priority."""
    given, keys = [one for one in overrides if named_file(one) is None], {key_of(one) for one in overrides}
    found = [one for word in overrides if (file := named_file(word)) for one in read_recipe(file).items()]
    return [*(f"{key}={as_word(value)}" for key, value in found if key not in keys - {"experiment"}), *given]


def as_word(value: Any) -> str:
    """Return a value from a YAML recipe as the text that a user would type on the command line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {as_word(each)}' for key, each in value.items())}}}"
    return f"[{','.join(map(as_word, value))}]" if isinstance(value, list) else value


def read_recipe(file: Path) -> dict[str, Any]:
    """Read an experiment file as {full key or config group: text, list or dict}; raises UserError for a bad file."""
    remedy = "Set experiment= to the recipe.yaml of a run, or to a file in the format of configs/experiment/."
    try:
        # All values are read as text, as on the command line: YAML would read 2024_05_06 as a number.
        content: Any = load(file.read_bytes(), BaseLoader)  # noqa: S506 - makes only text, lists and dictionaries
    except (OSError, YAMLError, ValueError) as error:
        raise UserError(f"{file} can't be read: {error}.", remedy) from error
    if not isinstance(content, dict):
        raise UserError(f"{file} is not a recipe.", remedy)
    found: dict[str, Any] = {}
    for entry in content.pop("defaults", None) or []:
        group, name = next(iter(entry.items())) if isinstance(entry, dict) else ("experiment", entry)
        found |= {} if name == "_self_" else {str(group).removeprefix("override /"): name}
    for section, value in content.items():
        table = value.items() if isinstance(value, dict) else [("", value)]
        found |= {f"{section}.{key}".removesuffix("."): one for key, one in table}
    if any(re.search(r"\bhydra\b", key) for key in found):
        raise UserError(f"{file} is not a recipe. A recipe must not have settings of Hydra.", remedy)
    return found


def finished(command: Command, composed: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Return `composed` as a dict or, to resume a run, the saved configuration; raises UserError for unknown keys."""
    own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    typed = {key_of(one) for one in overrides}
    values: dict[str, Any] = OmegaConf.to_container(own, resolve=True)  # type: ignore[assignment]
    if "experiment" in values:
        raise UserError("The file of experiment= sets no keys of pggan.", HEADER)
    if command.name == "train" and resumes(overrides):
        return own_config({key: value for key, value in flatten(values) if key in typed}) or values
    for table, choices in named_tables(command.schema_type).items():
        given, options = values.get(table), {field for one in choices.values() for field in one.__dataclass_fields__}
        if isinstance(given, dict) and (chosen := choices.get(str(given.get("name")))) is not None:
            foreign = options - {*chosen.__dataclass_fields__}
            if wrong := next((key for field in sorted(foreign) if (key := f"{table}.{field}") in typed), None):
                raise UserError(f"{table}={given['name']} has no key '{wrong}'.", suggestion(command, wrong))
            # If a recipe sets loss.gamma, loss=wgan_gp removes this key, because WGAN-GP has no gamma.
            values[table] = {key: value for key, value in given.items() if key not in foreign}
    if {"loss", "experiment"} <= typed:
        loss, others = values["loss"], [one for one in overrides if key_of(one).partition(".")[0] != "loss"]
        if compose(command.name, others)["loss"]["name"] != loss["name"]:  # the file of experiment= names another loss
            own = default_values({"loss": loss["name"]})["loss"]
            loss |= {key: value for key, value in own.items() if f"loss.{key}" not in typed}
    return values


def resumes(overrides: Sequence[str]) -> bool:
    """Whether `overrides` resume a run: they set run_dir=, and all their keys are in RESUME_KEYS."""
    names = {key_of(override) for override in overrides}
    return "run_dir" in names and names <= RESUME_KEYS


def own_config(given: dict[str, Any]) -> dict[str, Any] | None:
    """Return the saved configuration of the run to resume, updated with the values `given`; None for a new run."""
    run_dir, resume = Path(str(given["run_dir"])), str(given.get("resume", "auto"))
    for directory in (run_dir, run_of(Path(resume))):
        # If config.yaml is lost, this function reads the copy of the configuration in the run's newest checkpoint.
        files = [directory / CONFIG_FILE, *(path / STATE_FILE for path in reversed(checkpoints_of(directory)))]
        if file := next(filter(Path.is_file, files), None):
            values = saved_config(file)
            try:
                validated(COMMANDS["train"].schema_type, values)
            except UserError as error:
                remedy = f"Draw images: {command_line('sample', run=directory)}. New run with its weights: init_from=."
                raise UserError(f"The run in {directory} can't be resumed: {error.problem}", remedy) from error
            if values.get("resume") == "never":  # the run began with resume=never; it resumes with resume=auto
                values["resume"] = "auto"
            for key, value in given.items():
                section, _, name = key.rpartition(".")
                (values[section] if section else values)[name] = value
            return values
    # If data.path is given, and there is no run to resume, the command starts a new run.
    if "data.path" not in given and resume in ("auto", "never") and not has_checkpoints(run_dir):
        new = f"pggan train data.path=photos hours=2 run_dir={run_dir}"
        remedy = nearest_path(run_dir) or f"Start a new run, for example: {new}"
        raise UserError(f"There is no run in run_dir={run_dir} to resume.", remedy)
    return None
