"""What a training step costs, found by imagining one: the real step runs on tensors without memory."""

import warnings
from dataclasses import dataclass, replace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pggan.config import OptimizerConfig
from pggan.core.architecture import Architecture
from pggan.core.schedule import Phase
from pggan.losses.base import GradientPenalty, Loss, Points, Reals
from pggan.networks.convolution import NATIVE
from pggan.networks.numerics import Compute
from pggan.training.cost.op_counter import Meter
from pggan.training.state import new_state
from pggan.training.step import Dials, Inputs, Stage, learn


@dataclass(frozen=True)
class Cost:
    """Of one step of D and G.  `flops` and `moved_bytes` are means over an interval of lazy penalties."""

    flops: int  # two per multiply-add, of plain convolutions and matrix products
    moved_bytes: int  # read and written by those, Adam and the averaged generator: all a step of fused kernels has to
    peak_bytes: int  # all tensors at the worst moment, networks and moments included
    operations: int  # calls of PyTorch's kernels, about one launch each


class Imagined:
    """A state without memory, to try steps on."""

    def __init__(
        self, architecture: Architecture, optimizer: OptimizerConfig, device: torch.device, *, half: bool
    ) -> None:
        self.device = device
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        with self.mode, warnings.catch_warnings(action="ignore"):  # copying looks for memory, and finds none
            self.state = new_state(architecture, optimizer, 0, device, half=half)

    def cost(self, phase: Phase, loss: Loss, compute: Compute) -> Cost:
        """The cost of a step of `phase`, from the second one on; memory and operations where every penalty is due."""
        meter = self._metered(phase, loss, compute)
        plain = replace(compute, method=NATIVE, tangent=False, micro_batch=None, recompute=False)
        full = self._plain(phase, loss, plain, loss.penalties())
        rest = full if loss.interval == 1 else self._plain(phase, loss, plain, ())
        flops, moved = (
            (of_full + (loss.interval - 1) * of_rest) // loss.interval
            for of_full, of_rest in ((full.flops, rest.flops), (full.moved, rest.moved))
        )
        return Cost(flops, moved, meter.peak, meter.operations)

    def peak_bytes(self, phase: Phase, loss: Loss, compute: Compute) -> int:
        """`Cost.peak_bytes` alone, which is sooner found."""
        return self._metered(phase, loss, compute).peak

    def _metered(self, phase: Phase, loss: Loss, compute: Compute) -> Meter:
        with self.mode:
            self.state.reset_optimizers()
            self._step(phase, loss, Compute(dtype=compute.dtype, method=NATIVE), ())  # makes the moments
            present = [tensor for part in self.state.tensors().values() for tensor in part.values()]
            meter = Meter(present)
            with meter:
                self._step(phase, loss, compute, loss.penalties())
        return meter

    def _plain(self, phase: Phase, loss: Loss, compute: Compute, due: tuple[GradientPenalty, ...]) -> Meter:
        meter = Meter()
        with self.mode, meter:
            self._step(phase, loss, compute, due)
        return meter

    def _step(self, phase: Phase, loss: Loss, compute: Compute, due: tuple[GradientPenalty, ...]) -> None:
        a, count = self.state.average.architecture, phase.batch
        one_hot = torch.empty(count, a.labels, device=self.device) if a.labels else None
        images = torch.empty(count, a.channels, phase.resolution, phase.resolution, device=self.device)
        mix = torch.empty(count, 1, 1, 1, device=self.device) if any(p.at is Points.mixed for p in due) else None
        latents = torch.empty(count, a.latent_size, device=self.device)
        learn(
            self.state,
            Stage(loss, due, compute, phase.resolution, phase.missing_levels, phase.fading, count),
            Inputs(Reals(images, one_hot, one_hot), latents, latents.clone(), mix),
            Dials(phase.alpha, phase.learning_rate_d, phase.learning_rate_g, 0.999),
        )
