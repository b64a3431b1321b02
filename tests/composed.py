"""`compose` for many tests: Hydra, which takes a fifth of a second, composes once per choice of files."""

import re
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from pggan.cli.commands import COMMANDS
from pggan.cli.compose import compose, finished, words_for_hydra
from pggan.config.train import TrainConfig
from pggan.config.validation import validated


def composed(name: str, overrides: list[str]) -> dict[str, Any]:
    """What `compose(name, overrides)` returns; composed anew only where an override is more than `key=value`."""
    command = COMMANDS[name]
    choices = [one for one in overrides if one.partition("=")[0] in command.groups]
    values = [one for one in overrides if one not in choices]
    if not all(re.fullmatch(r"\+*[a-z_]\w*(\.\w+)*=[^$]*", one) for one in values):
        return compose(name, overrides)
    try:
        config = deepcopy(_of_files(command.config_file, tuple(choices)))
        for override in map(_parsed, words_for_hydra(command, values)):
            OmegaConf.update(config, override.key_or_group, override.value(), force_add=True)
    except Exception:
        return compose(name, overrides)  # which says what is wrong
    return finished(command, config, overrides)


def train_config(*overrides: Any) -> TrainConfig:
    """The configuration of `pggan train` with `overrides`."""
    return validated(TrainConfig, composed("train", [*map(str, overrides)]))


@cache
def _of_files(file: Path, choices: tuple[str, ...]) -> DictConfig:
    """The file of a command and those chosen, without Hydra's own part."""
    with initialize_config_dir(str(file.parent), version_base="1.3", job_name="pggan"):
        config = hydra_compose(file.stem, list(choices))
    return OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])


@cache
def _parsed(override: str) -> Override:
    return OverridesParser.create().parse_override(override)
