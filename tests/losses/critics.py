"""Losses with few numbers, critics whose gradients are known, and the terms of D in a step."""

import torch

from pggan.losses import Logistic, Relativistic, WganGp
from pggan.losses.base import PenaltyContext, Reals, Transforms

WGAN_GP = WganGp(penalty_weight=10.0, target=1.0, reg_interval=1)
LOGISTIC = Logistic(gamma=3.0, reg_interval=1)
RELATIVISTIC = Relativistic(gamma=3.0, reg_interval=1)
ALL = {"wgan_gp": WGAN_GP, "logistic": LOGISTIC, "relativistic": RELATIVISTIC}
REAL, FAKE = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])
HALFWAY = torch.full((2, 1, 1, 1), 0.5)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def no_logits(scores):
    return scores, scores.new_zeros(len(scores), 0)


def linear_critic(weights):
    """Score: the inner product with `weights` [C, R, R]."""
    return lambda images, *, sub_batches=1: no_logits((images * weights).flatten(1).sum(1))


def quadratic_critic(curvature):
    """Score: curvature / 2 * |x|^2, so that the gradient is curvature * x."""
    return lambda images, *, sub_batches=1: no_logits(curvature / 2 * images.square().flatten(1).sum(1))


class TanhCritic:
    """A smooth network of two layers, in float64, for images of 48 numbers."""

    def __init__(self):
        self.first, self.second = (normal(48, 5, seed=1) / 4).requires_grad_(), normal(5, seed=2).requires_grad_()

    def __call__(self, images, *, sub_batches=1):
        return no_logits(torch.tanh(images.flatten(1) @ self.first).square() @ self.second)


def for_d(loss, critic, reals, fakes, missing=0, mix=HALFWAY, due=None, transforms=Transforms(), labels=None):  # noqa: B008
    """The terms of D; its penalties are due unless others are."""
    context = PenaltyContext(loss.penalties() if due is None else due, missing, mix, None)
    others = None if labels is None else labels.roll(1, 1)  # those of fakes in G's pass
    return loss.for_d(critic, Reals(reals.clone(), labels, others), fakes.clone(), context, transforms)


def slope(score, image, step=1e-6):
    """The gradient of a number at an image, by central differences."""
    found = torch.zeros_like(image)
    for place in range(image.numel()):
        away = torch.zeros_like(image).flatten()
        away[place] = step
        ahead, behind = score(image + away.view_as(image)), score(image - away.view_as(image))
        found.view(-1)[place] = (ahead - behind) / (2 * step)
    return found


def require_slopes(total, critic):
    """The gradient of `total()` in the weights of a `TanhCritic` is that of finite differences, in one direction."""
    weights = [critic.first, critic.second]
    for weight, gradient in zip(weights, torch.autograd.grad(total(), weights), strict=True):
        direction, before, values = normal(*weight.shape, seed=9), weight.detach().clone(), []
        for step in (1e-5, -1e-5):
            weight.data = before + step * direction
            values.append(total().detach())
        weight.data = before
        expected = (values[0] - values[1]) / 2e-5
        torch.testing.assert_close((gradient * direction).sum(), expected, rtol=1e-5, atol=1e-7)
