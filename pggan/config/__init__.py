"""The schema of every key, and the checks between keys.  No torch here: a typo must be found in a second.

Values live in `configs/*.yaml`, each with a comment; the files here say which keys exist and what they may be.
"""

from pggan.config.bench import BenchConfig
from pggan.config.compute import ComputeConfig, ConvolutionMethod, PenaltyPath, Precision, Switch
from pggan.config.data import Crop, DataConfig, OnBad, PrepareConfig
from pggan.config.gradients import DgcConfig, dgc_options
from pggan.config.method import AverageConfig, ModelConfig, OptimizerConfig, ScheduleConfig
from pggan.config.plan import PlanConfig
from pggan.config.scaling import ScalingConfig
from pggan.config.train import PHASES, CheckpointConfig, MonitorConfig, TrainConfig
from pggan.config.verbs import DrawConfig, InspectConfig, InterpolateConfig, InterpolationPath, SampleConfig
from pggan.config.workers import WorkersConfig

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
