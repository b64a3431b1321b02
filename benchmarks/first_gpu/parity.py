"""Part 2: gradients on the device, compared with those in float64 on the CPU."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.first_gpu.context import Context, Item, Judgement
from benchmarks.first_gpu.record import Figures
from pggan.cli.compose import compose
from pggan.config import ComputeConfig, ModelConfig, PenaltyStrategy, Precision, Switch, TrainerConfig
from pggan.core.architecture import Resampling
from pggan.core.batch import Reals
from pggan.core.rng import StepRng, generator_for
from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup
from pggan.losses import LOSSES
from pggan.training.build import build_trainer
from pggan.training.compute_options import set_float32

CPU = torch.device("cpu")
IMAGES, RESOLUTION, CLASSES = 8, 16, 4
ROUNDING = {"fp32": 2**-24, "tf32": 2**-11, "fp16": 2**-11, "bf16": 2**-8}  # at most, of one number
# Relative error of the gradients of D and G that at most half of all cases exceed, at a width of 64: a few roundings in
# fp32; with fewer digits mostly the kinks of leaky ReLU (see `largest`), of 8 layers for D and 16 for G.  On an H100:
# tf32 0.018 and 0.036, fp16 0.024 and 0.026, bf16 0.053 and 0.11.
USUAL = {"fp32": (1e-5, 1e-5), "tf32": (0.03, 0.045), "fp16": (0.03, 0.045), "bf16": (0.1, 0.3)}
LOSS_ERROR = 1e-6  # in fp32, of losses of the order of 1: a few roundings
LAYERS = {"D": 8, "G": 16}
# Where a result is within its error of 0, leaky ReLU may take its other slope: 0.8 away, beside a mean square of 0.52.
KINK = 0.8**2 / 0.52


@dataclass(frozen=True)
class Case:
    """One way to take a step."""

    loss: str
    jvp: bool
    fading: bool
    labels: bool
    micro_batches: bool


class Found(NamedTuple):
    """What a step gives, in float64 on the CPU."""

    d: Tensor  # gradient of D, flat
    g: Tensor
    losses: Tensor  # of D and G


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


def items(context: Context) -> Iterator[Item]:
    """Every precision with every loss; of the reduced sizes, only fp32 with every loss."""
    precisions = ["fp32", "bf16", *["tf32", "fp16"] * context.on_cuda]
    for precision, loss in product(precisions, LOSSES):
        if context.small and precision != "fp32" and loss != "wgan_gp":
            continue
        yield f"{precision} {loss}", partial(compare, context, precision, loss)


def compare(context: Context, precision: str, loss: str) -> Figures:
    """The relative errors of all cases of a loss in a precision."""
    torch.backends.cudnn.benchmark = False  # trying plans takes longer than these steps
    width, errors = (8 if context.small else 64), {}
    for flags in product((False, True), repeat=4):
        # Three flags of four have every pair of them in all combinations, which one precision shows.
        if context.small and sum(flags) not in ((0, 3) if precision == "fp32" else (0, 4)):
            continue
        case = Case(loss, *flags)
        name = " ".join(name for name, on in vars(case).items() if on is True) or "plain"
        errors[name] = errors_of(context.device, Precision(precision), case, width)
    return {"errors": errors}


def errors_of(
    device: torch.device, precision: Precision, case: Case, width: int, *, compiled: bool = False
) -> dict[str, float]:
    """The errors of one case: of D's and G's gradients relative to their norm, and of the losses."""
    right = reference(case.loss, case.fading, case.labels, width)
    found = step(device, precision, case, width, compiled=compiled)
    errors = {
        name: ((getattr(found, part) - getattr(right, part)).norm() / getattr(right, part).norm()).item()
        for name, part in (("D", "d"), ("G", "g"))
    }
    scale = right.losses.abs().clamp(min=1)
    return errors | {"losses": ((found.losses - right.losses).abs() / scale).max().item()}


@cache
def reference(loss: str, fading: bool, labels: bool, width: int) -> Found:
    """The plain step in float64 on the CPU, which all precisions, penalty paths and micro-batches are compared with."""
    return step(CPU, None, Case(loss, False, fading, labels, False), width)


def step(device: torch.device, precision: Precision | None, case: Case, width: int, *, compiled: bool = False) -> Found:
    """Take the first step of a new trainer; without a `precision`, in float64."""
    phase = Phase(0, RESOLUTION, case.fading, 0.4 if case.fading else 1.0, 0, 1000, IMAGES, 0.001, 0.0, 1)
    trainer = build_trainer(
        config_of(precision or Precision.fp32, case, width, compiled=compiled),
        model_of(width).architecture(2 * RESOLUTION, 3, CLASSES * case.labels),
        [phase],
        ProcessGroup.single_process(device),
        check_memory=False,
    )
    set_float32(device, precision or Precision.fp32)
    state, gradients = trainer.state, {}
    for name, part in (("d", state.d), ("g", state.g)):
        if precision is None:
            part.network.double()

        def keep(name: str = name, part: Any = part, step: Callable[[], None] = part.optimizer.step) -> None:
            scale = 1.0 if part.scale is None else part.scale
            gradients[name] = torch.cat([(one.grad.double() / scale).flatten() for one in part.weights_in_use]).cpu()
            step()

        part.optimizer.step = keep  # type: ignore[method-assign]
    dtype = torch.float32
    if precision is None:
        state.g_ema.double()
        dtype = torch.float64
    rng = (PreciseRng if precision is None else SameRng)(0, 0, device)
    images = torch.rand(IMAGES, 3, RESOLUTION, RESOLUTION, generator=torch.Generator().manual_seed(0)) * 2 - 1
    one_hot = torch.eye(CLASSES)[torch.arange(IMAGES) % CLASSES].to(device, dtype) if case.labels else None
    reals = Reals(images.to(device, dtype), one_hot, None if one_hot is None else one_hot.flip(1))
    metrics = trainer.step(phase, reals, rng, 0.9)
    losses = torch.stack([metrics[f"{name}/loss"].double().cpu() for name in "DG"])
    return Found(gradients["d"], gradients["g"], losses)


def config_of(precision: Precision, case: Case, width: int, *, compiled: bool) -> TrainerConfig:
    """The trainer of a case."""
    return TrainerConfig(
        model=model_of(width),
        loss=loss_of(case.loss),
        precision=precision,
        compute=ComputeConfig(
            penalty=PenaltyStrategy.jvp if case.jvp else PenaltyStrategy.autograd,
            micro_batch_size=IMAGES // 2 if case.micro_batches else None,
            cuda_graphs=Switch.off,
            compile=compiled,
        ),
    )


def model_of(width: int) -> ModelConfig:
    """Networks of one width throughout."""
    return ModelConfig(
        latent_size=None,
        fmap_base=2**14,
        fmap_decay=1.0,
        fmap_max=width,
        stddev_group=4,
        resampling=Resampling.fused,
    )


@cache
def loss_of(name: str) -> dict[str, Any]:
    """A loss as configured, but with its penalties at every step."""
    loss: dict[str, Any] = compose("train", [f"loss={name}", "loss.reg_interval=1"])["loss"]
    return loss


def judge(context: Context, found: dict[str, Figures]) -> Judgement:
    """The median and the largest error per precision."""
    words, limits, good = [], [], True
    for precision, rounding in ROUNDING.items():
        errors = [case for name, one in found.items() if name.startswith(precision) for case in one["errors"].values()]
        if not errors:
            continue
        usual = {part: median(case[part] for case in errors) for part in ("D", "G")}
        words.append(f"{precision} {usual['D']:.1g}/{usual['G']:.1g}")
        limits.append(f"{USUAL[precision][0]:g}/{USUAL[precision][1]:g}")
        if not context.small:
            good &= all(usual[part] <= limit for part, limit in zip("DG", USUAL[precision], strict=True))
        good &= all(case[part] <= largest(LAYERS[part], rounding) for case in errors for part in ("D", "G"))
        if precision == "fp32":
            good &= all(case["losses"] <= LOSS_ERROR for case in errors)
    expected = "no case beyond its rounding" if context.small else ", ".join(limits)
    return Judgement(f"median relative error of D/G: {', '.join(words)}", expected, good)


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
