"""What every part of the kit is given, and the types that it is made of."""

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.first_gpu.record import Figures, Record
from pggan.cli.compose import compose
from pggan.config import Precision, TrainConfig
from pggan.core.validation import validated
from pggan.training.compute_options import configure_process

Item = tuple[str, Callable[[], Figures]]  # a name, and what measures it


@dataclass(frozen=True)
class Context:
    """The device, and how much is measured on it."""

    device: torch.device
    small: bool
    folder: Path  # for data and runs, removed afterwards
    record: Record

    @property
    def on_cuda(self) -> bool:
        """Whether there are CUDA graphs, a memory of its own, Triton kernels."""
        return self.device.type == "cuda"

    @property
    def on_h200(self) -> bool:
        """Whether the figures that are expected (expected.py) are for this device and these sizes."""
        return self.on_cuda and not self.small and "H200" in torch.cuda.get_device_name(self.device)

    def begin_item(self) -> None:
        """Set this process back to what a command begins with, without memory that others have left."""
        gc.collect()
        configure_process(self.device, Precision.auto, threads=1 if self.small else None)
        if self.on_cuda:
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(1.0)
            torch.cuda.reset_peak_memory_stats()


class Judgement(NamedTuple):
    """What a part shows."""

    measured: str
    expected: str = ""
    good: bool | None = None  # None: nothing is expected of this device


@dataclass(frozen=True)
class Part:
    """One part of the kit."""

    name: str
    items: Callable[[Context], Iterator[Item]]
    judge: Callable[[Context, dict[str, Figures]], Judgement]  # of the items that did not fail, at least one
    cuda_only: bool = False


def train_config(*overrides: str) -> TrainConfig:
    """The configuration of `pggan train` with these overrides."""
    return validated(TrainConfig, compose("train", list(overrides)))


def in_new_process(function: Callable[..., Figures], *arguments: object) -> Figures:
    """What a function of a module gives in a process of its own, whose settings nobody else gets."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
