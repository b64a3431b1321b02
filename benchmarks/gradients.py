"""Gradients on a device beside those in float64 on the CPU, as JSON: `python -m benchmarks.gradients DEVICE [small]`.

Every loss in every precision, with and without fade, labels and micro-batches.  `good` says whether no case is beyond
the error that follows from the rounding of its layers.
"""

import json
import math
import os
import sys
from dataclasses import replace
from functools import cache
from itertools import product
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pggan.cli.compose import compose
from pggan.config.train import TrainConfig
from pggan.config.validation import validated
from pggan.core.architecture import Precision
from pggan.core.devices import configure_process
from pggan.core.rng import StepRng, generator_for
from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup
from pggan.losses import LOSSES
from pggan.losses.base import Reals
from pggan.training.build import build_trainer

CPU = torch.device("cpu")
IMAGES, RESOLUTION, CLASSES = 8, 16, 4
ROUNDING = {"fp32": 2**-24, "fp16": 2**-11, "bf16": 2**-8}  # at most, of one number
LAYERS = {"d": 8, "g": 16}
# Where a result is within its error of 0, leaky ReLU may take its other slope: 0.8 away, beside a mean square of 0.52.
KINK = 0.8**2 / 0.52


class Found(NamedTuple):
    """What a step gives: the gradients of D and of G, flat, in float64 on the CPU."""

    d: Tensor
    g: Tensor


class SameRng(StepRng):
    """The random numbers of the CPU, on any device and in any precision."""

    dtype = torch.float32

    def normal(self, purpose: str, *shape: int) -> Tensor:
        return torch.randn(shape, generator=generator_for(0, purpose, 0)).to(self.device, self.dtype)

    def uniform(self, purpose: str, *shape: int) -> Tensor:
        return torch.rand(shape, generator=generator_for(0, purpose, 0)).to(self.device, self.dtype)


class PreciseRng(SameRng):
    """The same numbers in float64."""

    dtype = torch.float64


def step(device: torch.device, precision: Precision | None, loss: str, flags: tuple[bool, ...], width: int) -> Found:
    """The first step of a new trainer; without a `precision`, in float64.  Args: flags: fade, labels, micro-batches."""
    fading, labels, micro_batches = flags
    phase = Phase(0, RESOLUTION, fading, 0.4 if fading else 1.0, 0, 1000, IMAGES, 0.001, 0.0, 1)
    keys = [f"loss={loss}", "loss.reg_interval=1", "model.fmap_base=16384", f"model.fmap_max={width}"]
    keys += ["compute.cuda_graphs=off", f"compute.micro_batch_size={IMAGES // 2 if micro_batches else 'null'}"]
    config = replace(validated(TrainConfig, compose("train", keys)), precision=precision or Precision.fp32)
    architecture = config.model.architecture(2 * RESOLUTION, 3, CLASSES * labels)
    trainer = build_trainer(config.trainer_settings(), architecture, [phase], ProcessGroup.single_process(device))
    state, gradients, dtype = trainer.state, {}, torch.float32
    for name, part in (("d", state.d), ("g", state.g)):
        if precision is None:
            part.network.double()

        def keep(*given: Any, name: str = name, part: Any = part, step: Any = part.optimizer.step) -> None:
            scale = 1.0 if part.scale is None else part.scale
            gradients[name] = torch.cat([(one.grad.double() / scale).flatten() for one in part.weights_in_use]).cpu()
            step(*given)

        part.optimizer.step = keep  # type: ignore[method-assign,assignment]
    if precision is None:
        state.g_ema.double()
        dtype = torch.float64
    rng = (PreciseRng if precision is None else SameRng)(0, 0, device)
    images = torch.rand(IMAGES, 3, RESOLUTION, RESOLUTION, generator=torch.Generator().manual_seed(0)) * 2 - 1
    one_hot = torch.eye(CLASSES)[torch.arange(IMAGES) % CLASSES].to(device, dtype) if labels else None
    reals = Reals(images.to(device, dtype), one_hot, None if one_hot is None else one_hot.flip(1))
    trainer.step(phase, reals, rng, 0.9)
    return Found(gradients["d"], gradients["g"])


@cache
def reference(loss: str, fading: bool, labels: bool, width: int) -> Found:
    """The step in float64 on the CPU."""
    return step(CPU, None, loss, (fading, labels, False), width)


def errors_of(device: torch.device, precision: str, loss: str, *, small: bool) -> list[dict[str, float]]:
    """The errors of D's and G's gradients relative to their norms, for all flags."""
    torch.backends.cudnn.benchmark = False  # trying plans takes longer than these steps
    width, found = (8 if small else 64), []
    for flags in product((False, True), repeat=3):
        if small and sum(flags) not in (0, 3):
            continue
        right, here = reference(loss, *flags[:2], width), step(device, Precision(precision), loss, flags, width)
        pairs = {"d": (here.d, right.d), "g": (here.g, right.g)}
        found.append({name: ((one - other).norm() / other.norm()).item() for name, (one, other) in pairs.items()})
    return found


def largest(layers: int, rounding: float) -> float:
    """The bound of a single case's relative error, after `layers` layers.

    Each layer rounds kernel, result and gradient, in the second derivative once more; beside that, of normal numbers
    with a relative error e = sqrt(3 l) * rounding after l layers, a share e / pi has the wrong slope of leaky ReLU.
    That is the error to be expected; networks as narrow as the small ones average over few numbers, hence twice that.
    In float32 the wrong slopes come one by one: two of the 4x4 maps' IMAGES * 16 * 8 numbers.
    """
    kinks = sum(KINK * math.sqrt(3 * layer) * rounding / math.pi for layer in range(1, layers + 1))
    expected = kinks + (6 * layers + 2 * IMAGES) * rounding**2
    return math.sqrt(2**2 * expected + 2 * KINK / (IMAGES * 16 * 8))


def main() -> None:
    """Print the median and the largest error of each precision and network."""
    device, small = torch.device(sys.argv[1]), "small" in sys.argv
    configure_process(device)
    found: dict[str, Any] = {"good": True}
    for precision in ("fp32", "bf16", *["fp16"] * (device.type == "cuda")):
        cases = [case for loss in LOSSES for case in errors_of(device, precision, loss, small=small)]
        for name, layers in LAYERS.items():
            errors = [case[name] for case in cases]
            found[f"{precision} {name}"] = {"median": median(errors), "largest": max(errors)}
            found["good"] &= max(errors) <= largest(layers, ROUNDING[precision])
    print(json.dumps(found), flush=True)
    os._exit(0)  # PyTorch's backward thread may still free Python objects, which aborts a process that is ending


if __name__ == "__main__":
    main()
