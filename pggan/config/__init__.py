"""The schema of every key, and the checks between keys; values and comments are in `configs/*.yaml`.

Without torch: a typo must be found in a second.
"""

from pggan.config.bench import BenchConfig, BenchScalingConfig
from pggan.config.commands import DrawConfig, InspectConfig, InterpolateConfig, InterpolationPath, SampleConfig
from pggan.config.compute import ComputeConfig, ConvolutionMethod, PenaltyPath, Precision, Switch
from pggan.config.data import Crop, DataConfig, OnBad, PrepareConfig
from pggan.config.distributed import DistributedConfig
from pggan.config.gradients import DGC_RATIO, DgcConfig, dgc_options
from pggan.config.model import ModelConfig
from pggan.config.optimizer import EmaConfig, OptimizerConfig
from pggan.config.plan import PlanConfig
from pggan.config.schedule import ScheduleConfig
from pggan.config.train import PHASES, CheckpointConfig, MonitorConfig, TrainConfig, TrainerConfig
