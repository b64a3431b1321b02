"""The trainer's step against the reference step: the same networks after several updates."""

import math

import pytest
import torch

from pggan.core.architecture import Resampling
from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses.gradient_penalty import PenaltyResolution
from pggan.losses.logistic import Logistic
from pggan.losses.relativistic import Relativistic
from pggan.losses.wgan_gp import WganGp
from pggan.networks.numerics import ComputeOptions
from pggan.optim.state import new_state
from pggan.performance.bench.reference_step import ReferenceStep
from pggan.training.step import Trainer
from tests.definitions import ADAM, before_step, variant

CPU = torch.device("cpu")
WGAN_GP = WganGp(
    penalty_weight=10.0, target=1.0, drift=0.001, penalty_resolution=PenaltyResolution.current, reg_interval=1
)
LOGISTIC, RELATIVISTIC = Logistic(gamma=1.0, reg_interval=2), Relativistic(gamma=1.0, reg_interval=1)
# 128 maps up to 16x16 are wide enough for Winograd's method, the 64 and 32 above are not.
ARCHITECTURE = variant(resolution=64, latent_size=16, fmap_base=1024, fmap_max=128, resampling=Resampling.unfused)


class PreciseDraws(StepRng):
    def normal(self, purpose, *shape):
        return super().normal(purpose, *shape).double()

    def uniform(self, purpose, *shape):
        return super().uniform(purpose, *shape).double()


def both(dtype):
    """The state of the trainer and the reference, with the same weights."""
    state, reference = new_state(ARCHITECTURE, ADAM, 0, CPU), ReferenceStep(ARCHITECTURE, ADAM, 0, CPU)
    for network in (state.g.network, state.d.network, state.g_ema):
        network.to(dtype)
    for weight in (*reference.g.values(), *reference.d.values(), *reference.g_ema.values()):
        weight.data = weight.data.to(dtype)
    return state, reference


def steps(state, reference, loss, resolution, dtype, count, learning_rate_d=0.001):
    phase = Phase(0, resolution, False, 1.0, 0, 100, 4, 0.001, learning_rate_d, int(math.log2(64 / resolution)))
    trainer = Trainer(state, loss, ComputeOptions(), reset_at_phase=False)
    for step in range(count):
        images = torch.rand(4, 3, resolution, resolution, generator=torch.Generator().manual_seed(step)) * 2 - 1
        reals = Reals(images.to(dtype), None, None)
        rng = (PreciseDraws if dtype is torch.float64 else StepRng)(0, 4 * step, CPU)
        trainer.step(phase, reals, rng, 0.9)
        reference.step(phase, reals, loss, rng, ema_decay=0.9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "resolution"), [(WGAN_GP, 4), (WGAN_GP, 32), (LOGISTIC, 8), (LOGISTIC, 16), (RELATIVISTIC, 16)]
)
def test_in_float64_the_trainers_step_does_exactly_what_the_reference_does(loss, resolution):
    state, reference = both(torch.float64)
    before = state.g.network.stem.conv.weight.detach().clone()
    steps(state, reference, loss, resolution, torch.float64, 2 if resolution < 32 else 1)
    assert not torch.equal(state.g.network.stem.conv.weight, before)
    for network, weights in (
        (state.g.network, reference.g),
        (state.d.network, reference.d),
        (state.g_ema, reference.g_ema),
    ):
        for name, parameter in network.named_parameters():
            torch.testing.assert_close(parameter, weights[name], atol=1e-8, rtol=0, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "resolution"), [(torch.float64, 4), (torch.float64, 16), (torch.float32, 4), (torch.float32, 64)]
)
def test_gradients_differ_from_the_references_by_rounding_only(dtype, resolution):
    """D's, and G's through a D that stays as it is: Adam would move it by the sign of each gradient, rounding included.

    A sum of n terms is off by at most n u of the sum of their absolute values, u being the unit roundoff.  A gradient
    goes through n terms: the inputs of every neuron of both networks, forward, backward and again for the derivative
    of the penalty, and the pixels of the batch.  In float64 that is all, n u = 1e-11.  In float32, activations change
    by sqrt(n) u, because roundings have random signs (Higham and Mary 2019); so that share of them has another sign
    than in the reference, their derivatives differ by 80 %, and the gradient by the root of the share at most.
    """
    state, reference = both(dtype)
    found = {}

    def keep_gradients(trainable):
        def keep():
            found.update({w: None if w.grad is None else w.grad.clone() for w in trainable.network.parameters()})

        before_step(trainable.optimizer, keep)

    keep_gradients(state.d)
    keep_gradients(state.g)
    steps(state, reference, WGAN_GP, resolution, dtype, 1, learning_rate_d=0.0)
    kernels = [weight for weight, gradient in found.items() if gradient is not None and weight.ndim > 1]
    terms, unit = 4 * sum(kernel[0].numel() for kernel in kernels) + 4 * resolution**2, torch.finfo(dtype).eps / 2
    tolerance = terms * unit if dtype is torch.float64 else math.sqrt(math.sqrt(terms) * unit)
    for network, weights in ((state.d.network, reference.d), (state.g.network, reference.g)):
        for name, parameter in network.named_parameters():
            gradient, expected = found[parameter], weights[name].grad
            assert (gradient is None) == (expected is None)
            if gradient is not None:  # that of D's last bias is 0 but for rounding: terms of about 1 cancel
                assert (gradient - expected).norm() < tolerance * expected.norm() + terms * unit, name
