"""The schema of every key, and the checks between keys.  No torch here: a typo must be found in a second.

Values live in `configs/*.yaml`, each with a comment; the files here say which keys exist and what they may be.
"""

from pggan.config.bench import BenchConfig
from pggan.config.bench_scaling import ScalingConfig
from pggan.config.commands import DrawConfig, InspectConfig, InterpolateConfig, InterpolationPath, SampleConfig
from pggan.config.compute import ComputeConfig, ConvolutionMethod, PenaltyPath, Precision, Switch
from pggan.config.data import Crop, DataConfig, OnBad, PrepareConfig
from pggan.config.distributed import WorkersConfig
from pggan.config.gradients import DgcConfig, dgc_options
from pggan.config.model import AverageConfig, ModelConfig, OptimizerConfig, ScheduleConfig
from pggan.config.plan import PlanConfig
from pggan.config.train import PHASES, CheckpointConfig, MonitorConfig, TrainConfig

__all__ = [
    "PHASES",
    "AverageConfig",
    "BenchConfig",
    "CheckpointConfig",
    "ComputeConfig",
    "ConvolutionMethod",
    "Crop",
    "DataConfig",
    "DgcConfig",
    "DrawConfig",
    "InspectConfig",
    "InterpolateConfig",
    "InterpolationPath",
    "ModelConfig",
    "MonitorConfig",
    "OnBad",
    "OptimizerConfig",
    "PenaltyPath",
    "PlanConfig",
    "Precision",
    "PrepareConfig",
    "SampleConfig",
    "ScalingConfig",
    "ScheduleConfig",
    "Switch",
    "TrainConfig",
    "WorkersConfig",
    "dgc_options",
]
