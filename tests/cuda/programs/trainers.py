"""Trainers as the commands build them, on the null GPU, and phases for them to grow through."""

import gc
from collections.abc import Sequence
from typing import Any

import torch

from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase, Schedule
from pggan.distributed.process_group import ProcessGroup
from pggan.training.build import build_trainer
from pggan.training.precision import configure_process
from pggan.training.trainer import Trainer
from tests.composed import trainer_config
from tests.definitions import LOSSES

CUDA = torch.device("cuda")
gc.freeze()  # captures collect garbage, which takes long among the objects of all modules
ADA = {"p": None, "target": 0.6, "rampup_images": 1000}
AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "ada": ADA,  # adapted in every step
    "diffaugment": {"colors": True, "translation": True, "cutout": True},
}


def new_trainer(
    phases: Sequence[Phase],
    *,
    width: int = 16,
    num_classes: int = 0,
    loss: str = "wgan_gp",
    reg_interval: int = 1,
    augmentation: str = "none",
    precision: str = "fp32",
    features: str | None = None,
    check_memory: bool = False,
    compute: dict[str, Any] | None = None,
) -> tuple[Trainer, list[str]]:
    """A trainer for `phases` of networks that are `width` feature maps wide, and the list of what it logs."""
    notices: list[str] = []
    config = trainer_config(
        model={"fmap_base": 16 * width, "fmap_max": width, "features": features},
        loss={"name": loss, **LOSSES[loss], "reg_interval": reg_interval},
        augmentation={"name": augmentation, **AUGMENTATIONS[augmentation]},
        precision=precision,
        compute=compute or {},
    )
    configure_process(CUDA, config.precision)
    architecture = config.model.architecture(max(phase.resolution for phase in phases), 3, num_classes)
    group = ProcessGroup.single_process(CUDA)
    trainer = build_trainer(config, architecture, phases, group, check_memory=check_memory, log=notices.append)
    return trainer, notices


def growth(first: int, final: int, batch: int) -> tuple[Phase, ...]:
    """The phases from `first` to `final` pixels: stable, then (fade, stable) per doubling."""
    return Schedule(
        first_resolution=first,
        final_resolution=final,
        stable_images={4: 1 << 20},
        fade_images={4: 1 << 20},
        batch={4: batch},
        learning_rate_g={4: 0.001},
        learning_rate_d={4: 0.001},
    ).phases


def take_step(trainer: Trainer, phase: Phase) -> dict[str, torch.Tensor]:
    """One step of `phase`, with images that are on the device already, as those of a resident level are."""
    images = torch.empty(phase.batch, 3, phase.resolution, phase.resolution, device=CUDA)
    classes = trainer.state.g_ema.architecture.num_classes
    labels = torch.empty(phase.batch, classes, device=CUDA) if classes else None
    return trainer.step(phase, Reals(images, labels, labels), StepRng(0, trainer.state.images, CUDA), 0.99)
