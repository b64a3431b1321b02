"""Hydra's own flags: --cfg, --multirun, --info, --config-dir …, through Hydra's own entry point."""

import os
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pggan.cli.commands import Command
from pggan.cli.compose import allow_new_keys, compose, to_plain
from pggan.cli.hydra_patches import refuse_callbacks, tolerate_lazy_help
from pggan.core.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Hydra composes; run directory, logs and working directory are this program's own.
QUIET = [
    "hydra.job.name=pggan",
    "hydra.output_subdir=null",
    "hydra.run.dir=.",
    "hydra.sweep.dir=outputs/multirun",
    "hydra.sweep.subdir=.",
    "hydra/hydra_logging=none",
    "hydra/job_logging=none",
]
FLAGS = ("--config-dir", "--config-path", "--config-name", "--cfg", "--package")  # those with a value

# Jobs that ran out of time are queued again, as often as it takes: training resumes where it stopped.
QUEUED = "hydra/launcher=submitit_"
QUEUE_AGAIN = {f"{QUEUED}slurm": ["hydra.launcher.max_num_timeout=1000"]}


def run_with_flags(
    command: Command, arguments: list[str], run_command: Callable[[Command, Mapping[str, Any]], int]
) -> int:
    """Run a command whose `arguments` hold flags; returns the exit code."""
    import hydra
    from hydra.errors import HydraException

    for argument in arguments:
        if argument.startswith("--") and "=" in argument and argument.split("=")[0] not in FLAGS:
            raise UserError(f"'{argument}' is not how keys are given.", f"Leave out the dashes: {argument.lstrip('-')}")
    overrides = [argument for argument in arguments if "=" in argument and not argument.startswith("-")]
    flags = [argument for argument in arguments if argument not in overrides]
    if not {"-m", "--multirun"} & set(flags):
        compose(command.name, overrides, _config_folder(flags))  # a typo gets our own answer
    again = _settings_of_jobs(command, overrides)

    def task(composed: "DictConfig") -> None:
        code = run_command(command, to_plain(composed))
        if code:
            sys.exit(code)

    tolerate_lazy_help()
    refuse_callbacks()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come out as they are, not as Hydra's summary of them
    sys.argv = [f"pggan {command.name}", *again, *allow_new_keys(overrides), *QUIET, *flags]
    try:
        hydra.main(version_base="1.3", config_path=str(command.config_file.parent), config_name=command.stem)(task)()
    except HydraException as error:
        raise UserError(str(error).splitlines()[0], "See --help for the keys and their values.") from error
    return 0


def _config_folder(flags: list[str]) -> str | None:
    """What `--config-dir` or `-cd` names."""
    for flag, following in zip(flags, [*flags[1:], ""], strict=True):
        if flag in ("--config-dir", "-cd"):
            return following
        if flag.startswith("--config-dir="):
            return flag.removeprefix("--config-dir=")
    return None


def _settings_of_jobs(command: Command, overrides: list[str]) -> list[str]:
    """What jobs of a launcher need besides `overrides`; raises UserError when it is not there, or not told enough."""
    if not any(override.startswith(QUEUED) for override in overrides):
        return []
    if command.name == "train" and not any(override.startswith("run_dir=") for override in overrides):
        raise UserError(
            "Jobs that are queued again need to know where they were.",
            "Add run_dir=, a different one for each job: run_dir='outputs/seeds/${seed}'",
        )
    if not (find_spec("hydra_plugins") and find_spec("hydra_plugins.hydra_submitit_launcher")):
        raise UserError("Hydra's launcher for Slurm is not installed.", 'pip install "pggan[slurm]"')
    return [setting for override in overrides for setting in QUEUE_AGAIN.get(override, [])]
