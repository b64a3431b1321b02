"""Hydra's own flags: --cfg, --multirun, --info, --config-dir …, through Hydra's own entry point.

Two things in Hydra itself are changed: no code that a configuration names is called, and help works on Python 3.14.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pggan.cli.auto_recipe import with_choices
from pggan.cli.commands import Command
from pggan.cli.compose import ConfigSource, allow_new_keys, allow_plain_lists, compose, config_folder, options_of_others
from pggan.cli.recipe_file import named_file, with_recipes
from pggan.cli.suggestions import is_of_jobs, missing_choice, refuse_typos
from pggan.cli.sweep import OWN_RUN_DIR, SweepJob, jobs_of, run_sweep, sum_up
from pggan.core.errors import UserError
from pggan.core.next_command import key_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Hydra only composes: run directory, logs and working directory stay this program's own.
QUIET = [
    "hydra.job.name=pggan",
    "hydra.output_subdir=null",
    "hydra.run.dir=.",
    "hydra.sweep.dir=outputs/multirun",
    "hydra.sweep.subdir=.",
    "hydra/hydra_logging=none",
    "hydra/job_logging=none",
]
FLAGS = ("--cfg", "-c", "--config-dir", "-cd", "--info", "-i", "--package", "-p")  # those with a value
SWITCHES = ("--hydra-help", "--multirun", "-m", "--resolve", "--run", "-r")
OWN_FILES = "A run resumes with run_dir=DIR. Experiments of your own are files in DIR/experiment: --config-dir DIR."
COMPLETION = 'eval "$(pggan --completion bash)" completes commands, keys and values; zsh and fish, too.'
DRY_RUN = "--cfg job shows the configuration, `pggan plan` with the same keys what a run costs."
HINTS = {
    "--config-name": OWN_FILES,
    "-cn": OWN_FILES,
    "--config-path": OWN_FILES,
    "-cp": OWN_FILES,
    "--dry-run": DRY_RUN,
    "-n": DRY_RUN,
    "--shell-completion": COMPLETION,
    "-sc": COMPLETION,
}
QUEUED = ("hydra=slurm", "hydra/launcher=submitit_")


def run_with_flags(command: Command, arguments: list[str], run: Callable[[Command, Mapping[str, Any]], int]) -> int:
    """Run a command whose `arguments` contain flags; returns the exit code."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException, MissingConfigException

    typed = [argument for argument in arguments if "=" in argument and not argument.startswith("-")]
    flags = [argument for argument in arguments if argument not in typed]
    refuse_unknown(flags)
    folder, several = config_folder(flags), bool({"-m", "--multirun"} & set(flags))
    if several and not any(map(is_of_jobs, typed)):
        return run_sweep(command, typed, [] if folder is None else ["--config-dir", folder], folder)
    overrides = with_recipes(typed, folder)  # Hydra knows no files by their paths
    jobs: list[SweepJob] = []
    deleted: list[str] = []
    if several:
        refuse_typos(overrides, sweeps=True)
        jobs = _jobs_of_launcher(command, overrides, folder)
    else:
        overrides = allow_plain_lists(overrides, command.groups)
        compose(command.name, overrides, folder)  # a typo gets our own answer
        deleted = options_of_others(overrides, folder)  # for --cfg: Hydra shows what it has composed
    job_settings, source = _job_settings(command, overrides), ConfigSource.of(command, overrides)

    def task(_: "DictConfig") -> None:
        added = [*deleted, *source.changes]
        of_job = [one for one in HydraConfig.get().overrides.task if not is_of_jobs(one) and one not in added]
        given = as_typed(of_job, typed, overrides)
        with hydra_at_rest():
            values = with_choices(command, compose(command.name, given, folder), given, folder)
        code = run(command, values)
        if code:
            sys.exit(code)

    tolerate_lazy_help()
    refuse_callbacks()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come out as they are, not as Hydra's summary of them
    words = [*job_settings, *allow_new_keys(overrides), *deleted, *source.changes, *QUIET, *flags]
    sys.argv = [f"pggan {command.name}", *words]
    try:
        hydra.main(version_base="1.3", config_path=str(source.file.parent), config_name=source.file.stem)(task)()
    except MissingConfigException as error:
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        raise missing_choice(group, choice, error.options or []) from error
    except HydraException as error:
        raise UserError(str(error).splitlines()[0], "See --help for the keys and their values.") from error
    except RuntimeError as error:
        if not re.search(r"\bsbatch: |\bsrun\b.*slurm cluster", str(error)):
            raise
        problem = f"Slurm takes no jobs here: {str(error).splitlines()[-1]}."
        raise UserError(problem, "Start the sweep where sbatch works, or leave out hydra=.") from error
    if jobs:  # and all have ended well
        sum_up(jobs, [0] * len(jobs))
    return 0


@contextmanager
def hydra_at_rest() -> Iterator[None]:
    """Inside, this program composes by itself, though Hydra, which allows one at a time, is running a job."""
    from hydra.core.global_hydra import GlobalHydra

    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = running


def as_typed(of_job: Sequence[str], typed: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The overrides of one job with `experiment=FILE.yaml` again, instead of what stands in that file.

    Args: typed, overrides: those of the command line, for all jobs, and these with what stands in the file.
    """
    files = [one for one in typed if named_file(one) is not None]
    of_files = {key_of(one) for one in overrides} - {key_of(one) for one in typed if one not in files}
    return [*files, *(one for one in of_job if key_of(one) not in of_files)]


def _jobs_of_launcher(command: Command, overrides: list[str], folder: str | None) -> list[SweepJob]:
    """The jobs that a launcher of Hydra is to start; none where another sweeper than Hydra's own chooses them.

    Raises UserError where runs would share a directory: a launcher takes `run_dir` as it is given.
    """
    if any(override.startswith("hydra/sweeper=") for override in overrides):
        return []
    jobs = jobs_of(command, [override for override in overrides if not is_of_jobs(override)], folder)
    given = next((one for one in overrides if one.startswith("run_dir=")), None)
    if given and len(jobs) > 1 and "$" not in given:
        raise UserError(f"All {len(jobs)} jobs would train in one directory: {given}.", OWN_RUN_DIR)
    return jobs


def refuse_unknown(flags: list[str]) -> None:
    """Raise UserError for a flag that neither Hydra nor this program has, with what was probably meant."""
    for flag, after in pairwise([*flags, ""]):
        name, equals, value = flag.partition("=")
        key = name.lstrip("-")
        if not flag.startswith("-") or name in FLAGS or (name in SWITCHES and not equals):
            continue
        if equals:
            raise UserError(f"'{flag}' is not how keys are given.", f"Leave out the dashes: {key}={value}")
        meant = get_close_matches(key, ("help", "multirun"), n=1, cutoff=0.7)  # no key is that much like one of them
        without_dashes = f"Keys are given without dashes: {key}={after.lstrip('-') or '…'}"
        remedy = HINTS.get(name, f"Did you mean --{meant[0]}?" if meant else without_dashes)
        raise UserError(f"There is no flag {name}.", remedy)
    shown = {"-c", "--cfg", "-i", "--info"} & set(flags)
    if shown and {"-m", "--multirun"} & set(flags):
        raise UserError(f"{min(shown)} shows a single run.", "Leave out --multirun and the values to be swept.")
    if "--resolve" in flags and not {"-c", "--cfg"} & set(flags):
        raise UserError("--resolve has no effect alone.", "Write --cfg job --resolve.")


def _job_settings(command: Command, overrides: list[str]) -> list[str]:
    """Settings for the jobs of a launcher; raises UserError when it is not installed, or run_dir= is missing."""
    if not any(override.startswith(QUEUED) for override in overrides):
        return []
    if command.name == "train" and not any(override.startswith("run_dir=") for override in overrides):
        remedy = "Add run_dir=, a different one for each job: run_dir='outputs/seeds/${seed}'"
        raise UserError("Jobs that are queued again need a run directory to resume from.", remedy)
    if not (find_spec("hydra_plugins") and find_spec("hydra_plugins.hydra_submitit_launcher")):
        raise UserError("Hydra's launcher for Slurm is not installed.", 'Install it: pip install "pggan[slurm]"')
    # A job that ran out of time is queued again, as often as it takes: training resumes where it stopped.
    return ["hydra.launcher.max_num_timeout=1000"] if "hydra/launcher=submitit_slurm" in overrides else []


def refuse_callbacks() -> None:
    """Let Hydra raise UserError where it would call what a configuration names as `hydra.callbacks`."""
    from hydra._internal.callbacks import Callbacks
    from omegaconf import OmegaConf

    def without_callbacks(self: Callbacks, config: "DictConfig | None" = None) -> None:
        self.callbacks = []
        if config is not None and OmegaConf.select(config, "hydra.callbacks"):
            raise UserError("This configuration names code to call (hydra.callbacks).", "Remove that part of it.")

    Callbacks.__init__ = without_callbacks  # type: ignore[method-assign]


def tolerate_lazy_help() -> None:
    """Let argparse of Python 3.14, which formats help texts at once, take Hydra 1.3's one that becomes text later."""
    check = getattr(argparse._ActionsContainer, "_check_help", None)
    if check is None:  # before Python 3.14
        return

    def check_strings(container: argparse._ActionsContainer, action: argparse.Action) -> None:
        if isinstance(action.help, str):
            check(container, action)

    argparse._ActionsContainer._check_help = check_strings  # type: ignore[attr-defined]
