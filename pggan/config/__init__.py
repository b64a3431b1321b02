"""The dataclasses of all keys, and the checks between keys; defaults and comments are in `configs/*.yaml`.

Without torch, so that a typo is reported within a second.  Here are those of training; others are in `commands`.
"""

from pggan.config.train import (
    DataConfig,
    DgcConfig,
    EvaluationConfig,
    Kernels,
    PlainGradientsConfig,
    R1Config,
    ReportConfig,
    ScheduleConfig,
    Switch,
    TrainConfig,
    TrainerConfig,
)
