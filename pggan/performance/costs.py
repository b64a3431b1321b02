"""The cost of a training step, without taking one: operations, weights in use, memory; and cards that need not be here.

Convolutions and matrix products count as floating-point operations, two per multiply-add, as PyTorch's
`FlopCounterMode` counts them in passes of the networks on the device "meta", which has no memory.
N batch, C channels, R resolution, Z latent size.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pggan.core.architecture import Architecture, Precision
from pggan.core.errors import UserError, nearest
from pggan.core.schedule import Phase
from pggan.losses.base import GradientPenalty, Loss, PenaltyAt, PenaltyContext
from pggan.networks.networks import Generator
from pggan.networks.projected import new_discriminator
from pggan.training.timing import PRODUCT_SHARE, START_SECONDS, Speed

ACTIVATION_COPIES = 16  # kept of each activation in a step: 61 to 71 bytes in float32, with the paper's networks
COUNTED_IMAGES = 8  # of which operations are counted: a few, since all images of a batch take the same


class Flops(NamedTuple):
    """Floating-point operations of a step, per image and by purpose."""

    generator_forward: float  # fakes for D, and fakes for G
    discriminator_forward: float  # of reals and fakes, and of G's fakes
    backward: float  # of both networks
    penalty: float  # forward and backward, what a step takes more where gradient penalties are due
    mean: float  # over an interval of lazy penalties


class StepCost(NamedTuple):
    """The cost of one step."""

    flops: Flops
    generator_weights: int  # in use, with a gradient each
    discriminator_weights: int
    memory_bytes: float  # of weights, gradients, moments and activations, roughly


class CostCounter:
    """Networks without memory, whose passes are counted."""

    def __init__(self, architecture: Architecture, loss: Loss, activation_bytes: int) -> None:
        """Args: activation_bytes: of one number of the feature maps, 2 or 4."""
        self.architecture, self.loss, self.activation_bytes = architecture, loss, activation_bytes
        with torch.device("meta"):
            self.g, self.d = Generator(architecture), new_discriminator(architecture)

    def cost(self, phase: Phase) -> StepCost:
        """The cost of a step of `phase`."""
        a, loss, alpha = self.architecture, self.loss, 0.5 if phase.fading else 1.0
        count = max(COUNTED_IMAGES // a.stddev_group, 1) * a.stddev_group
        latents = torch.empty(count, a.latent_size, device="meta")
        labels = torch.empty(count, a.num_classes, device="meta") if a.num_classes else None

        def scores(images: Tensor) -> Tensor:
            scores, logits = self.d(images, resolution=phase.resolution, alpha=alpha)
            total: Tensor = scores.sum() + logits.sum()
            return total

        g, fakes = counted(lambda: self.g(latents, labels, phase.resolution, alpha))
        d, _ = counted(lambda: scores(fakes))
        self.d.requires_grad_(False)
        g_backward, _ = counted(counted(lambda: scores(fakes))[1].backward)
        self.d.requires_grad_(True)
        d_backward, _ = counted(counted(lambda: scores(fakes.detach()))[1].backward)
        images = fakes.detach().requires_grad_().clone()  # no leaf: FlopCounterMode can't follow gradients of leaves

        def penalise(penalty: GradientPenalty) -> None:
            context = PenaltyContext((penalty,), 0, None, None)
            penalty.of_scores(images, scores(images), context).sum().backward()  # type: ignore[no-untyped-call]

        penalty = 0.0
        for one in loss.penalties():  # at reals and fakes, D has passed them in any case, and its gradients flow once
            shared = 0 if one.at is PenaltyAt.interpolated else d + d_backward
            penalty += counted(partial(penalise, one))[0] - shared
        used = [in_use(network) for network in (self.g, self.d)]
        forward, passes = 2 * g, (3 + loss.needs_reals_for_g) * d
        backward, interval = 2 * d_backward + g_backward, loss.reg_interval
        mean = forward + passes + backward + penalty / interval
        flops = (each / count for each in (forward, passes, backward, penalty, mean))
        return StepCost(Flops(*flops), used[0], used[1], self._memory(phase, sum(used)))

    def _memory(self, phase: Phase, used: int) -> float:
        """Bytes: all weights, G's average, gradients and two moments of weights in use, and activations."""
        weights = 2 * numel(self.g) + numel(self.d) + 3 * used
        activations = phase.batch * self.architecture.activations_up_to(phase.resolution)
        return 4 * weights + ACTIVATION_COPIES * self.activation_bytes * activations


def counted(work: Callable[[], Any]) -> tuple[int, Any]:
    """The floating-point operations of `work`, but for those that form kernels, which a batch shares; its result."""
    with FlopCounterMode(display=False) as counter:
        result = work()
    counts = counter.get_flop_counts().get("Global", {})
    return sum(count for operation, count in counts.items() if operation is not torch.ops.aten.bmm), result


def numel(network: nn.Module) -> int:
    """The number of a network's weights."""
    return sum(weight.numel() for weight in network.parameters())


def in_use(network: nn.Module) -> int:
    """The number of weights that have got a gradient, which is cleared away."""
    used = sum(weight.numel() for weight in network.parameters() if weight.grad is not None)
    network.zero_grad()
    return used


class Card(NamedTuple):
    """A graphics card by its data sheet.

    Its rates are for dense products with sums in float32; data sheets that count zeros as work give twice as much.
    """

    name: str  # as PyTorch gives it
    bytes_per_second: float
    gib: float
    watts: float
    teraflops: Mapping[str, float]  # by precision

    def precision(self, asked: Precision) -> Precision:
        """`asked`, or for auto what a run takes on this card; raises UserError where there are no units for it."""
        found = next(name for name in ("bf16", "fp16") if name in self.teraflops) if asked is Precision.auto else asked
        if found not in self.teraflops:
            known = ", ".join(self.teraflops)
            raise UserError(f"A {self.name} has no units for precision={asked}.", f"Use auto, or one of {known}.")
        return Precision(found)

    def speed(self, precision: Precision) -> Speed:
        """The speed of captured steps; on an H200, a large product reached 80 % of the data sheet, a copy 90 %."""
        rate = self.teraflops[precision] * 1e12 * 0.8 * PRODUCT_SHARE["cuda"]
        return Speed(START_SECONDS["cuda"], rate, 0.9 * self.bytes_per_second)


# Sources: NVIDIA's data sheets of the H200, H100 (SXM), A100 80 GB (SXM), L4 and T4; for the RTX 4090 the white paper
# on the Ada architecture, appendix A.
CARDS = {
    "h200": Card("NVIDIA H200", 4.8e12, 141, 700, {"bf16": 989, "fp16": 989, "tf32": 494, "fp32": 67}),
    "h100": Card("NVIDIA H100", 3.35e12, 80, 700, {"bf16": 989, "fp16": 989, "tf32": 494, "fp32": 67}),
    "a100": Card("NVIDIA A100", 2.039e12, 80, 400, {"bf16": 312, "fp16": 312, "tf32": 156, "fp32": 19.5}),
    "l4": Card("NVIDIA L4", 300e9, 22.5, 72, {"bf16": 121, "fp16": 121, "tf32": 60, "fp32": 30.3}),
    "4090": Card("NVIDIA GeForce RTX 4090", 1008e9, 24, 450, {"bf16": 165, "fp16": 165, "tf32": 82.6, "fp32": 82.6}),
    "t4": Card("Tesla T4", 320e9, 15, 70, {"fp16": 65, "fp32": 8.1}),
}
OTHER_WATTS = {"cpu": 100, "mps": 40, "cuda": 300}  # guesses


def card_of(key: str) -> Card:
    """The card that `device=` names, in letters of any case; raises UserError with the nearest name, or all names."""
    if key.lower() in CARDS:
        return CARDS[key.lower()]
    raise UserError(f"device={key}: its figures are not known.", nearest(key.lower(), CARDS))


def watts_of(kind: str, name: str) -> tuple[float, str]:
    """Watts of a device of `kind` (cpu, cuda, mps) called `name`, and where the figure is from.

    A GPU's power is its limit (thermal design power), which training comes close to.
    """
    known = [card for card in CARDS.values() if kind == "cuda" and card.name in name]
    if known:
        return known[0].watts, f"data sheet of the {known[0].name}"
    return OTHER_WATTS[kind], f"a guess for {kind}; set watts= for a better figure"
