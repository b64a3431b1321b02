"""Gradients of a step on a device, beside those in float64 on a CPU, which `gradients.json` carries.

`python -m benchmarks.gradients` writes that file anew, which takes a minute.  It holds no gradients but their sums with
random signs: of the difference of two gradients, such a sum has the squared norm of the difference as its mean square.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from pggan.cli.compose import compose
from pggan.config.train import TrainConfig
from pggan.config.validation import validated
from pggan.core.architecture import Precision
from pggan.core.rng import StepRng, generator_for
from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup
from pggan.losses.base import Reals
from pggan.optim.state import Trainable
from pggan.training.build import build_trainer

FILE = Path(__file__).parent / "results" / "gradients.json"
IMAGES, RESOLUTION, WIDTH = 8, 16, 64
SIGNS = 64  # sums of one gradient: the error of an error is an eighth of it
CASES = {"wgan_gp": False, "wgan_gp fading": True, "logistic": False}
# The largest errors of D and G that follow from the rounding of their layers (docs/performance.md); in float32, two of
# the numbers at 4x4 may take the other slope of leaky ReLU.
BOUNDS = {"fp32": {"d": 0.05, "g": 0.05}, "fp16": {"d": 0.074, "g": 0.12}, "bf16": {"d": 0.21, "g": 0.35}}


@dataclass(frozen=True)
class SameRng(StepRng):
    """The random numbers of the CPU, on any device and in float32, or in another `dtype`."""

    dtype: torch.dtype = torch.float32

    def normal(self, purpose: str, *shape: int) -> Tensor:
        return torch.randn(shape, generator=generator_for(0, purpose, 0)).to(self.device, self.dtype)

    def uniform(self, purpose: str, *shape: int) -> Tensor:
        return torch.rand(shape, generator=generator_for(0, purpose, 0)).to(self.device, self.dtype)


def sums(gradient: Tensor) -> list[float]:
    """The sums of a gradient [P], float64 on the CPU, with SIGNS random signs for each number."""
    bits = torch.randint(0, 2, (len(gradient), SIGNS), generator=generator_for(0, "signs", 0), dtype=torch.int8)
    return [float(gradient @ (2 * each.double() - 1)) for each in bits.unbind(1)]


def step(device: torch.device, precision: Precision | None, case: str) -> dict[str, Tensor]:
    """The gradients [P] of D and G in a new trainer's first step, on the CPU; without `precision`, in float64."""
    fading = CASES[case]
    phase = Phase(0, RESOLUTION, fading, 0.4 if fading else 1.0, 0, 1000, IMAGES, 0.001, 0.0, 1)
    keys = [f"loss={case.partition(' ')[0]}", "loss.reg_interval=1", "model.fmap_base=16384", f"model.fmap_max={WIDTH}"]
    config = validated(TrainConfig, compose("train", [*keys, "compute.cuda_graphs=off"]))
    settings = replace(config.trainer_settings(), precision=precision or Precision.fp32)
    architecture = config.model.architecture(2 * RESOLUTION, 3, 0)
    trainer = build_trainer(settings, architecture, [phase], ProcessGroup.single_process(device))
    gradients, start = dict[str, Tensor](), trainer.reducer.start_all_reduce

    def keep(trainable: Trainable, batch: int) -> Any:
        each = [one.grad.double().flatten() for one in trainable.weights_in_use if one.grad is not None]
        gradients[trainable.name.lower()] = torch.cat(each).cpu() / float(trainable.scale or 1)
        return start(trainable, batch)

    trainer.reducer.start_all_reduce = keep  # type: ignore[method-assign]
    if precision is None:
        for network in (trainer.state.d.network, trainer.state.g.network, trainer.state.g_ema):
            network.double()
    rng = SameRng(0, 0, device, torch.float64 if precision is None else torch.float32)
    images = torch.rand(IMAGES, 3, RESOLUTION, RESOLUTION, generator=torch.Generator().manual_seed(0)) * 2 - 1
    trainer.step(phase, Reals(images.to(device, rng.dtype), None, None), rng, 0.9)
    return gradients


def errors(device: torch.device, precision: str) -> dict[str, float]:
    """The errors of D's and G's gradients relative to their norms, by case and network."""
    found, references = {}, json.loads(FILE.read_text())
    for case in CASES:
        for name, gradient in step(device, Precision(precision), case).items():
            right = references[f"{case} {name}"]
            squares = [(here - there) ** 2 for here, there in zip(sums(gradient), right["sums"], strict=True)]
            found[f"{case} {name}"] = math.sqrt(fmean(squares)) / right["norm"]
    return found


if __name__ == "__main__":
    rights = {f"{case} {name}": one for case in CASES for name, one in step(torch.device("cpu"), None, case).items()}
    lines = {key: {"norm": float(one.norm()), "sums": sums(one)} for key, one in rights.items()}
    FILE.write_text("{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(one)}" for key, one in lines.items()) + "\n}\n")
