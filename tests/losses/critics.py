"""Losses with few numbers, critics whose gradients are known, and the terms of D in a step."""

import torch

from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses.base import PenaltyContext, PenaltyResolution
from pggan.losses.logistic import Logistic
from pggan.losses.relativistic import Relativistic
from pggan.losses.wgan_gp import WganGp
from pggan.networks.layers import ComputeOptions
from pggan.training.inputs import draw_inputs

CPU = torch.device("cpu")
WGAN_GP = WganGp(
    penalty_weight=10.0, target=1.0, drift=0.001, penalty_resolution=PenaltyResolution.current, reg_interval=1
)
LOGISTIC = Logistic(gamma=3.0, reg_interval=1)
RELATIVISTIC = Relativistic(gamma=3.0, reg_interval=1)
ALL = [WGAN_GP, LOGISTIC, RELATIVISTIC]
REAL, FAKE = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])
ROUNDING = {"atol": 1e-6, "rtol": 1e-6}  # of a few operations in float32, whose rounding is 6e-8


def phase(missing_levels=0, batch=2, resolution=4):
    return Phase(0, resolution, False, 1.0, 0, 1000, batch, 0.001, 0.001, missing_levels)


def rng(images=0, seed=0):
    return StepRng(seed, images, CPU)


def for_d(loss, critic, reals, fakes, phase, rng):
    """The terms of D in the step that begins at the images of `rng`."""
    drawn = draw_inputs(phase, reals, loss, rng, latent_size=1, ema_decay=0.9, options=ComputeOptions())
    context = PenaltyContext(drawn.spec.due, phase.missing_levels, drawn.mix, None, False)
    return loss.for_d(critic, reals, fakes, context)


def reals_of(images, labels=None, fake_labels=None):
    return Reals(images, labels, fake_labels)


def no_logits(scores):
    return scores, scores.new_zeros(len(scores), 0)


def linear_critic(weights):
    """Score: the inner product with `weights` [C, R, R]."""
    return lambda images, *, sub_batches=1: no_logits((images * weights).flatten(1).sum(1))


def watched_critic(weights):
    """A linear critic that remembers the batches that it was shown, one by one or joined."""
    seen = []

    def critic(images, *, sub_batches=1):
        seen.extend(images.detach().clone().chunk(sub_batches))
        return linear_critic(weights)(images)

    return critic, seen


def close(found, expected, **tolerances):
    torch.testing.assert_close(found.detach().double(), torch.as_tensor(expected, dtype=torch.float64), **tolerances)
