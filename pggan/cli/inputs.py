"""The images, the run or the generator that a command reads, looked for before torch is imported: it takes seconds."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pggan.checkpoints.generator_file import generator_path
from pggan.checkpoints.read import (
    choose_checkpoint,
    has_checkpoints,
    require_checkpoints,
)
from pggan.cli.commands import Command
from pggan.config import TrainConfig
from pggan.config.commands import (
    ALL,
    DrawConfig,
    EvaluateConfig,
    ExploreConfig,
    ExportConfig,
    PlanConfig,
    TimelapseConfig,
)
from pggan.config.validation import validated


def checked_config(command: Command, values: Mapping[str, Any]) -> object:
    """Composed `values` as the configuration of a command; raises UserError for a mistake, or an input not there."""
    config: object = validated(command.schema_type, values)
    require_inputs(config)
    return config


def require_inputs(config: object) -> None:
    """Raise UserError for images, a run or a generator that `config` names and that is not there."""
    match config:
        case PlanConfig():  # predicts runs on images that are elsewhere, too
            return
        case TrainConfig():
            require_training_inputs(config)
        case DrawConfig() | EvaluateConfig() | ExploreConfig() | ExportConfig() if config.checkpoint != ALL:
            generator_path(choose_checkpoint(config.run, config.checkpoint))
        case TimelapseConfig():
            from pggan.sampling.timelapse import grids_of_run

            grids_of_run(Path(config.run))


def parts_for(config: object) -> list[object]:
    """Functions that the room of a command is given besides `config`: a training, the one that prepares its images."""
    if type(config) is not TrainConfig:
        return []
    from pggan.data.prepare import training_pyramid

    return [partial(training_pyramid, **config.data.origin)]


def require_training_inputs(config: TrainConfig) -> None:
    """Raise UserError for images, weights, a checkpoint or a generator that a training run names and that is missing.

    Where there are several machines, their ranks report it together later.
    """
    if "RANK" in os.environ or config.distributed.nnodes > 1:
        return
    if config.data.path is not None:
        from pggan.data.data_sets import require_source

        require_source(config.data.path)
    if config.run_dir is not None and has_checkpoints(Path(config.run_dir)):
        return  # where the run began may be gone by now
    if config.resume not in ("auto", "never"):
        require_checkpoints(Path(config.resume), "resume")
    if config.init_from is not None and not has_checkpoints(Path(config.init_from)):
        generator_path(config.init_from, "init_from")
