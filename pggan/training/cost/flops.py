"""The arithmetic of a training step, counted on tensors that have shapes and nothing else.

Floating-point operations are two per multiply-add, of convolutions and matrix products; everything else is left out, as
in `torch.utils.flop_counter`.  Convolutions count as they are defined, however they are calculated.
"""

from dataclasses import dataclass, replace

import torch

from pggan.config import OptimizerConfig
from pggan.core.architecture import Architecture
from pggan.core.schedule import Phase
from pggan.losses.base import GradientPenalty, Loss, Points, Reals
from pggan.networks.convolution import NATIVE
from pggan.networks.networks import prepared
from pggan.networks.numerics import Compute
from pggan.training.cost.op_counter import Meter
from pggan.training.gradients.reducer import Exchange
from pggan.training.state import Player, new_state
from pggan.training.step import Inputs, Stage, backward, frozen, look_at_fakes, look_at_images, make_fakes

META = torch.device("meta")
PLAIN = Compute(method=NATIVE)
HALFWAY = 0.5  # alpha of a fading phase; at 0 or 1 there would be nothing to blend


@dataclass(frozen=True)
class Flops:
    """Of one step of D and G, by what they are for."""

    generator_forward: int  # fakes for D, and fakes for G
    discriminator_forward: int  # of reals and fakes, and of G's fakes
    backward: int  # of both players' passes
    penalty: int  # forward and backward, what a step takes more when gradient penalties are due

    def mean(self, interval: int) -> float:
        """Per step, when penalties are due in one of `interval`."""
        return self.generator_forward + self.discriminator_forward + self.backward + self.penalty / interval


@dataclass(frozen=True)
class Count:
    """Of one step."""

    flops: Flops
    generator_numbers: int  # in its gradient: the weights of the levels in use
    discriminator_numbers: int


def halfway(phase: Phase) -> Phase:
    """`phase` at its middle, as far as alpha is concerned."""
    return replace(phase, alpha=HALFWAY) if phase.fading else phase


class Counter:
    """Takes the passes of steps apart."""

    def __init__(self, architecture: Architecture, optimizer: OptimizerConfig, loss: Loss) -> None:
        self.architecture = architecture
        self.loss = loss
        self.state = new_state(architecture, optimizer, 0, META)

    def count(self, phase: Phase) -> Count:
        """A step of `phase`."""
        fakes, forward, back = self._step_of_d(phase, ())
        numbers = _forget_gradient(self.state.d)
        with_penalties = self._step_of_d(phase, self.loss.penalties())
        _forget_gradient(self.state.d)
        forward_g, back_g = self._step_of_g(phase)
        flops = Flops(
            generator_forward=2 * fakes,
            discriminator_forward=forward + forward_g - fakes,
            backward=back + back_g,
            penalty=sum(with_penalties) - (fakes + forward + back),
        )
        return Count(flops, _forget_gradient(self.state.g), numbers)

    def _step_of_d(self, phase: Phase, due: tuple[GradientPenalty, ...]) -> tuple[int, int, int]:
        """Operations of making fakes, of looking at them and at reals, and of the way back."""
        state, stage, inputs = self.state, self._stage(phase, due), self._inputs(phase)
        with Meter() as meter:
            with torch.no_grad(), prepared(state.g.network, PLAIN):
                fakes = make_fakes(state, stage, inputs.latents_d, inputs.reals.labels, phase.alpha)
            made = meter.flops
            with prepared(state.d.network, PLAIN):
                terms = look_at_images(state, stage, inputs, phase.alpha, fakes)
                seen = meter.flops
                backward(state.d, terms, phase.batch, Exchange())
        return made, seen - made, meter.flops - seen

    def _step_of_g(self, phase: Phase) -> tuple[int, int]:
        """Operations of making and looking at fakes, and of the way back."""
        state, stage, inputs = self.state, self._stage(phase, ()), self._inputs(phase)
        g, d = state.g.network, state.d.network
        with Meter() as meter, prepared(g, PLAIN), prepared(d, PLAIN), frozen(d):
            fakes = make_fakes(state, stage, inputs.latents_g, inputs.reals.fake_labels, phase.alpha)
            terms = look_at_fakes(state, stage, inputs, phase.alpha, fakes)
            seen = meter.flops
            backward(state.g, terms, phase.batch, Exchange())
        return seen, meter.flops - seen

    def _stage(self, phase: Phase, due: tuple[GradientPenalty, ...]) -> Stage:
        return Stage(self.loss, due, PLAIN, phase.resolution, phase.missing_levels, phase.fading, phase.batch)

    def _inputs(self, phase: Phase) -> Inputs:
        a, count = self.architecture, phase.batch
        one_hot = torch.empty(count, a.labels, device=META) if a.labels else None
        images = torch.empty(count, a.channels, phase.resolution, phase.resolution, device=META)
        mixes = any(penalty.at is Points.mixed for penalty in self.loss.penalties())
        mix = torch.empty(count, 1, 1, 1, device=META) if mixes else None
        latents = torch.empty(count, a.latent_size, device=META)
        return Inputs(Reals(images, one_hot, one_hot), latents, latents, mix)


def _forget_gradient(player: Player) -> int:
    """How many numbers it had."""
    numbers = sum(weight.numel() for weight in player.network.weights if weight.grad is not None)
    player.forget_gradient()
    return numbers
