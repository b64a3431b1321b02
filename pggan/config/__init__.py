"""The dataclasses of all keys, and the checks between keys; defaults and comments are in `configs/*.yaml`.

Without torch, so that a typo is reported within a second.  Here are the keys of training; others are in `commands`.
"""

from pggan.config.train import (
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
