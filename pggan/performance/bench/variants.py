"""The variants of the training step that `pggan bench` compares, each with a state of its own."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from pggan.config import BenchConfig, Kernels, Precision, Switch, TrainerConfig, default_trainer
from pggan.core.architecture import Architecture
from pggan.core.batch import Reals
from pggan.core.errors import UserError
from pggan.core.formatting import Log
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup
from pggan.training.build import build_trainer
from pggan.training.trainer import WARMUP_STEPS
from pggan.training.trainer_factory import TrainerFactory

REFERENCE = "reference"
EMA_DECAY = 0.999


class Variant(ABC):
    """One variant of the step; all of them get the same images and random numbers."""

    warmup = 0  # steps that it needs before it is as fast as it gets
    layout: torch.memory_format  # of the images it is given

    def __init__(self, precision: Precision, factory: TrainerFactory, device: torch.device) -> None:
        self.precision, self.factory, self.device = precision, factory, device
        self.notices: list[str] = []  # of the stage that is measured
        self.held = self.peak = 0  # bytes of a CUDA device: allocated inside `counted` and not released, and the most

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Inside, what is allocated and released on a CUDA device is this variant's."""
        if self.device.type != "cuda":
            yield
            return
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        yield
        self.peak = max(self.peak, self.held + torch.cuda.max_memory_allocated(self.device) - before)
        self.held += torch.cuda.memory_allocated(self.device) - before

    @abstractmethod
    def begin(self, phase: Phase) -> None:
        """Prepare for the stage of `phase`: forget what belongs to the one before, as moments, CUDA graphs, notices."""

    @abstractmethod
    def step(self, phase: Phase, reals: Reals, rng: StepRng) -> None:
        """Take one step."""


class TrainerVariant(Variant):
    """The trainer's own step; `log` is told when it can't be taken as configured."""

    layout = torch.channels_last

    def __init__(self, config: TrainerConfig, architecture: Architecture, device: torch.device, log: Log) -> None:
        super().__init__(config.precision, TrainerFactory.of(config, device, 1), device)
        self.config, self.log = config, log
        with self.counted():
            group = ProcessGroup.single_process(device)
            self.trainer = build_trainer(config, architecture, [], group, log=self._notice)
        self.warmup = 0 if self.trainer.graphs is None else WARMUP_STEPS + 1

    def begin(self, phase: Phase) -> None:
        self.trainer.state.reset_optimizers()
        self.trainer.release_graphs()
        self.notices.clear()
        if self.trainer.graphs is not None:
            self.trainer.graphs.enabled = True  # a capture that failed at another stage is tried again

    def step(self, phase: Phase, reals: Reals, rng: StepRng) -> None:
        self.trainer.step(phase, reals, rng, EMA_DECAY)

    def _notice(self, text: str) -> None:
        self.notices.append(text)
        self.log(text)


def make_variants(
    config: BenchConfig, architecture: Architecture, device: torch.device, log: Log
) -> dict[str, Variant]:
    """The variants by name, the reference last; `log` is told when one can't run as configured.

    Raises UserError, before anything is made, for what `device` can't do.
    """
    chosen = config.variants()
    for one in chosen.values():
        if one.compute.cuda_graphs is Switch.on and device.type != "cuda":
            problem = f"modes=[{','.join(config.modes)}]: there are no CUDA graphs on {device.type}."
            raise UserError(problem, "Use modes=[eager].")
        TrainerFactory.of(one, device, 1)

    def log_of(name: str) -> Log:
        return lambda text: log(f"{name}: {text}")

    found: dict[str, Variant] = {}
    for name, one in chosen.items():
        found[name] = TrainerVariant(one, architecture, device, log_of(name))
    if config.against:
        compute = replace(default_trainer().compute, kernels=Kernels.reference, cuda_graphs=Switch.off)
        plain = replace(next(iter(chosen.values())), precision=Precision.fp32, compute=compute)
        found[REFERENCE] = TrainerVariant(plain, architecture, device, log_of(REFERENCE))
    return found
