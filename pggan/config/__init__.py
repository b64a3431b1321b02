"""The dataclasses of all keys, and the checks between keys; defaults and comments are in `configs/*.yaml`.

Without torch, so that a typo is reported within a second.
"""

from pggan.config.bench import BenchConfig, BenchScalingConfig
from pggan.config.commands import (
    DoctorConfig,
    Enlargement,
    InspectConfig,
    InterpolateConfig,
    InterpolationPath,
    MonitorConfig,
    PlanConfig,
    TimeAxis,
    TimelapseConfig,
)
from pggan.config.compute import ComputeConfig, Kernels, Precision, Switch
from pggan.config.data import Crop, DataConfig, OnBad, PrepareConfig
from pggan.config.distributed import DGC_RATIO, DgcConfig, DistributedConfig, dgc_options
from pggan.config.evaluate import METRICS, EvaluateConfig
from pggan.config.evaluation import EvaluationConfig
from pggan.config.explore import ExploreConfig
from pggan.config.export import ExportConfig, ExportFormat, ImportConfig
from pggan.config.model import EmaConfig, ModelConfig, OptimizerConfig
from pggan.config.sampling import DirectionMethod, DirectionsConfig, ProjectConfig, SampleConfig
from pggan.config.schedule import ScheduleConfig
from pggan.config.train import PHASES, CheckpointConfig, ConsoleMode, ReportConfig, TrainConfig, TrainerConfig
