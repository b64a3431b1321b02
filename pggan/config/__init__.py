"""The dataclasses of all keys, and the checks between keys; defaults and comments are in `configs/*.yaml`.

Without torch, so that a typo is reported within a second.
"""

from pggan.config.commands import (
    BenchConfig,
    BenchScalingConfig,
    DoctorConfig,
    ImportConfig,
    InspectConfig,
    MonitorConfig,
    OnBad,
    PlanConfig,
    PrepareConfig,
)
from pggan.config.files import default_trainer
from pggan.config.generators import (
    METRICS,
    DirectionsConfig,
    EvaluateConfig,
    ExploreConfig,
    ExportConfig,
    ExportFormat,
    InterpolateConfig,
    InterpolationPath,
    ProjectConfig,
    SampleConfig,
    TimelapseConfig,
)
from pggan.config.train import (
    PHASES,
    AdaConfig,
    CheckpointConfig,
    ComputeConfig,
    Crop,
    DataConfig,
    DgcConfig,
    DistributedConfig,
    EmaConfig,
    EvaluationConfig,
    Kernels,
    ModelConfig,
    NoAugmentationConfig,
    PlainGradientsConfig,
    R1Config,
    ReportConfig,
    ScheduleConfig,
    Switch,
    TrainConfig,
    TrainerConfig,
    WganGpConfig,
)
