"""The cost of a training step, found without taking one: the real step runs on the device "meta", without memory.

Floating-point operations are two per multiply-add, of convolutions and matrix products as they are defined, however
they are calculated; everything else is left out, as in `torch.utils.flop_counter`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pggan.core.architecture import Architecture
from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.networks.features.backbone import Backbone
from pggan.networks.features.discriminator import ProjectedDiscriminator
from pggan.networks.features.efficientnet_lite0 import EfficientNetLite0
from pggan.networks.layers import ComputeOptions
from pggan.optim.adam import new_moments
from pggan.optim.reducer import GradientReducer, Handle
from pggan.optim.state import Trainable, in_memory_order
from pggan.training.inputs import mean_over_interval
from pggan.training.kernel_counter import Kernel, KernelCounter
from pggan.training.op_counter import OpCounter
from pggan.training.trainer_factory import TrainerFactory


@dataclass(frozen=True)
class Flops:
    """Operations of one step, by purpose."""

    generator_forward: int  # fakes for D, and fakes for G
    discriminator_forward: int  # of reals and fakes, and of G's fakes
    backward: int  # of both networks
    penalty: int  # forward and backward, what a step takes more when gradient penalties are due

    def mean(self, reg_interval: int) -> float:
        """Operations per step, when penalties are due in one of `reg_interval`."""
        plain = self.generator_forward + self.discriminator_forward + self.backward
        return mean_over_interval(plain + self.penalty, plain, reg_interval)


@dataclass(frozen=True)
class StepCost:
    """The cost of one step.  `flops` and `moved_bytes` are means over an interval of lazy penalties."""

    flops: int
    moved_bytes: int  # read and written by products, Adam and the averaged generator: the least of any implementation
    peak_bytes: int  # all tensors at the worst moment, networks and moments included
    operations: int  # calls of PyTorch's kernels, about one launch each


@dataclass(frozen=True)
class Count:
    """The operations of one step, and the lengths of its gradients: of the weights of the levels in use."""

    flops: Flops
    moved_bytes: tuple[int, int]  # with penalties, and without
    generator_gradient: int
    discriminator_gradient: int


@dataclass(frozen=True)
class StepKernels:
    """Kernels that one step launches on a CUDA device."""

    with_penalties: Mapping[Kernel, int]  # how often each kernel is launched
    without: Mapping[Kernel, int]
    peak_bytes: int  # as in `StepCost`


class StepCostEstimator:
    """A trainer without memory, to count steps on; of one rank, which has nothing to reduce."""

    def __init__(self, architecture: Architecture, factory: TrainerFactory, device: torch.device) -> None:
        self.device, self.factory = torch.device("meta"), replace(factory, capture=False)
        self.state = self.factory.new_state(architecture, 0, self.device)
        self._make_moments()

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights of G and D."""
        return sum(weight.nbytes for trainable in (self.state.g, self.state.d) for weight in trainable.network.weights)

    def cost(self, phase: Phase) -> StepCost:
        """The cost of a step of `phase`, from the second one on; memory and operations where every penalty is due."""
        counter, count = self._counted(phase, None), self.count(phase)
        interval = self.factory.loss.reg_interval
        moved = mean_over_interval(*count.moved_bytes, interval)
        return StepCost(int(count.flops.mean(interval)), int(moved), counter.peak, counter.operations)

    def peak_bytes(self, phase: Phase, micro_batch_size: int | None = None) -> int:
        """`StepCost.peak_bytes` alone, which is sooner found.

        Args: micro_batch_size: images per pass; None: as the options say.
        """
        return self._counted(phase, micro_batch_size).peak

    def kernels(self, phase: Phase, micro_batch_size: int | None = None) -> StepKernels:
        """The kernels of a step of `phase`, from the second one on; on the device "meta".

        Args: micro_batch_size: as of `peak_bytes`.
        """
        counter = self._counted_kernels(phase, micro_batch_size, penalties=True)
        lazy = self.factory.loss.reg_interval > 1
        plain = self._counted_kernels(phase, micro_batch_size, penalties=False) if lazy else counter
        return StepKernels(counter.kernels, plain.kernels, counter.peak)

    def _options(self, micro_batch_size: int | None) -> ComputeOptions:
        options = self.factory.options
        return options if micro_batch_size is None else replace(options, micro_batch_size=micro_batch_size)

    def _counted_kernels(self, phase: Phase, micro_batch_size: int | None, *, penalties: bool) -> KernelCounter:
        lengths = _GradientLengths()
        present = self._present()
        counter = KernelCounter(present)
        with counter:
            self._step(phase, self._options(micro_batch_size), penalties=penalties, reducer=lengths)
        del present
        unused = self.weight_bytes - 4 * sum(lengths.found.values())
        counter.peak -= 2 * unused  # two moments of the levels that are not in use
        return counter

    def _make_moments(self) -> None:
        """Make Adam's moments in advance: the first step that is counted is to be as all others."""
        for trainable in (self.state.g, self.state.d):
            for weight, param in zip(trainable.network.weights, trainable.optimizer.params, strict=True):
                param.data = in_memory_order(weight.data)
                trainable.optimizer.state[param] = new_moments(param)

    def _present(self) -> list[Tensor]:
        """All tensors of the state, to be kept while they are counted: what nothing refers to counts as freed."""
        named = [tensor for tensors in self.state.state_dict().values() for tensor in tensors.values()]
        return [*named, *self.state.d.network.buffers()]

    def count(self, phase: Phase) -> Count:
        """The operations of a step of `phase`, however it is calculated, and the lengths of its gradients."""
        options, lengths = self._plain_options(), _GradientLengths()
        g, d, count, a = self.state.g.network, self.state.d.network, phase.batch, self.state.g_ema.architecture
        with OpCounter() as of_g:
            labels = torch.empty(count, a.num_classes, device=self.device) if a.num_classes else None
            fakes = g(torch.empty(count, a.latent_size, device=self.device), labels, phase.resolution, phase.alpha)
        with OpCounter() as of_d:
            d(fakes, phase.resolution, phase.alpha)
        with OpCounter() as plain:
            self._step(phase, options, penalties=False, reducer=lengths)
        with OpCounter() as full:
            self._step(phase, options, penalties=True)
        passes_of_d = 4 if self.factory.loss.needs_reals_for_g else 3
        forward = 2 * of_g.flops, passes_of_d * of_d.flops
        flops = Flops(*forward, backward=plain.flops - sum(forward), penalty=full.flops - plain.flops)
        return Count(flops, (full.moved, plain.moved), lengths.found[id(self.state.g)], lengths.found[id(self.state.d)])

    def _plain_options(self) -> ComputeOptions:
        """The options of steps without recomputation and tricks, whose operations are those of the definition."""
        return ComputeOptions(dtype=self.factory.options.dtype, reference=True)

    def _counted(self, phase: Phase, micro_batch_size: int | None) -> OpCounter:
        present = self._present()
        counter = OpCounter(present)
        with counter:
            self._step(phase, self._options(micro_batch_size), penalties=True)
        del present
        return counter

    def _step(self, phase: Phase, options: ComputeOptions, *, penalties: bool, **others: Any) -> None:
        a, count, d = self.state.g_ema.architecture, phase.batch, self.state.d.network
        if isinstance(d, ProjectedDiscriminator) and d.backbone is None:
            d.set_backbone(Backbone(EfficientNetLite0().to("meta")), options.dtype)
        one_hot = torch.empty(count, a.num_classes, device=self.device) if a.num_classes else None
        images = torch.empty(count, a.channels, phase.resolution, phase.resolution, device=self.device)
        loss = replace(self.factory.loss, reg_interval=2)  # so that there are steps with penalties and without
        factory = replace(self.factory, loss=loss, options=options)
        trainer = factory.trainer(self.state, reset_at_phase=False, scalars_as_tensors=True, **others)
        rng = _EmptyRng(0, 0 if penalties else count, self.device)
        trainer.step(phase, Reals(images, one_hot, one_hot), rng, 0.999)


class _EmptyRng(StepRng):
    """Random numbers that are never looked at."""

    def normal(self, purpose: str, *shape: int) -> Tensor:
        return torch.empty(shape, device=self.device)

    uniform = normal


class _GradientLengths(GradientReducer):
    """Notes how many numbers each gradient has."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, int] = {}

    def start_all_reduce(self, trainable: Trainable, batch: int) -> Handle:
        self.found[id(trainable)] = sum(weight.numel() for weight in trainable.weights_in_use)
        return super().start_all_reduce(trainable, batch)
