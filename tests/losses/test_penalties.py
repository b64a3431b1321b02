"""Gradient penalties: R1 and R2, finite differences through the augmentation, lazy, degenerate, half precision."""

import dataclasses
import itertools

import pytest
import torch

from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses import ada
from pggan.losses.base import GradientPenalty, PenaltyAt, PenaltyContext, Reals, Transforms
from pggan.networks.layers import ComputeOptions
from pggan.networks.networks import Discriminator
from pggan.ops.convolution import Switches
from pggan.training.inputs import draw_inputs
from tests.definitions import variant
from tests.losses.critics import (
    ALL,
    LOGISTIC,
    WGAN_GP,
    TanhCritic,
    for_d,
    linear_critic,
    no_logits,
    normal,
    require_slopes,
    slope,
)

CPU = torch.device("cpu")
EACH = pytest.mark.parametrize("name", ALL)
MIX = torch.tensor([0.3, 0.8], dtype=torch.float64).view(2, 1, 1, 1)


def transforms_of(augmented):
    """What D is shown: each image changed by ADA, or as it is."""
    if not augmented:
        return Transforms()
    draws, p = ada.draw(StepRng(1, 0, CPU), 2), torch.tensor(0.8)
    shown = [lambda images, of=of: ada.augment(images, draws[:, of], p) for of in (0, 1)]
    for function in shown:
        image = normal(2, 3, 4, 4)
        assert ((function(image) - image).abs().flatten(1).amax(1) > 0.1).all()
    return Transforms(*shown)


@EACH
@pytest.mark.parametrize("augmented", [False, True])
def test_penalties_and_their_gradients_are_those_of_finite_differences(name, augmented):
    """At reals and fakes through the augmentation, at interpolated images between what D is shown."""
    loss, critic, transforms = ALL[name], TanhCritic(), transforms_of(augmented)
    reals, fakes = normal(2, 3, 4, 4, seed=3), normal(2, 3, 4, 4, seed=4)
    between = torch.lerp(transforms.reals(reals), transforms.fakes(fakes), MIX)
    images = {PenaltyAt.reals: reals, PenaltyAt.fakes: fakes, PenaltyAt.interpolated: between}
    seen = {PenaltyAt.reals: transforms.reals, PenaltyAt.fakes: transforms.fakes, PenaltyAt.interpolated: lambda x: x}

    def terms():
        return for_d(loss, critic, reals, fakes, mix=MIX, transforms=transforms).loss

    found = terms()
    for penalty in loss.penalties():
        with torch.no_grad():
            gradient = slope(lambda x, at=penalty.at: critic(seen[at](x))[0].sum(), images[penalty.at])
        torch.testing.assert_close(found[penalty.name].detach(), penalty.of(gradient, 0), rtol=1e-6, atol=1e-8)
    for term, expected in loss.d_terms(critic(transforms.reals(reals))[0], critic(transforms.fakes(fakes))[0]).items():
        torch.testing.assert_close(found[term], expected)
    require_slopes(lambda: sum(term.sum() for term in terms().values()), critic)


@pytest.mark.parametrize("loss", [*ALL.values(), dataclasses.replace(WGAN_GP, target=0.0)])
def test_critics_without_slope_get_finite_gradients(loss):
    dead = Discriminator(variant(resolution=8, channels=2, latent_size=4, fmap_base=8, fmap_max=4, stddev_group=2))
    flat, same = torch.zeros(2, 8, 8, requires_grad=True), normal(1, 2, 8, 8, dtype=torch.float32).repeat(2, 1, 1, 1)
    for parameter in dead.parameters():
        parameter.data.zero_()
    for critic, weights in (
        (linear_critic(flat), [flat]),
        (lambda images, **more: dead(images, 8, **more), dead.parameters()),
    ):
        sum(term.mean() for term in for_d(loss, critic, same, same).loss.values()).backward()
        assert all(weight.grad is None or weight.grad.isfinite().all() for weight in weights)


def test_a_penalty_asks_for_no_gradients_of_weights():
    """They would be dropped, and take as long as those of images."""
    asked = []

    def critic(images, *, sub_batches=1):
        if images.requires_grad:
            images.register_hook(lambda gradient: asked.append(Switches.weight_gradients))
        return no_logits(images.square().flatten(1).sum(1))

    for_d(ALL["relativistic"], critic, normal(2, 1, 4, 4), normal(2, 1, 4, 4))
    assert asked == [False, False]
    assert Switches.weight_gradients


# ---- lazy penalties -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [1, 2, 8])
@pytest.mark.parametrize("batch", [3, 16])
def test_a_lazy_penalty_is_due_at_the_first_update_of_a_run_and_at_every_interval_th_one(interval, batch):
    loss, phase = (
        dataclasses.replace(LOGISTIC, reg_interval=interval),
        Phase(0, 4, False, 1.0, 0, 10**6, batch, 0, 0, 0),
    )
    reals = Reals(torch.zeros(batch, 1, 4, 4), None, None)

    def is_due(images):
        rng = StepRng(0, images, CPU)
        return bool(draw_inputs(phase, reals, loss, rng, 0.9, latent_size=1, options=ComputeOptions()).spec.due)

    for start in (0, batch * 1000, 100_001):  # a phase may begin at any image count
        due = [number for number in range(5 * interval) if is_due(start + batch * number)]
        assert len(due) == 5
        assert {later - earlier for earlier, later in itertools.pairwise(due)} == {interval}
        assert start > 0 or due[0] == 0


# ---- half precision -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.0, 750.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_penalty_of_a_gradient_in_half_precision_is_computed_in_float32(dtype, target):
    gradient = (30 * normal(2, 3, 16, 16)).to(dtype)  # the sum of its squares is beyond float16
    norms = gradient.double().flatten(1).norm(dim=1)
    expected = 10 * ((norms / target - 1) ** 2 if target else norms**2)
    found = GradientPenalty(name="p", at=PenaltyAt.reals, weight=10.0, target=target).of(gradient, 0)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=0)


def test_the_loss_scale_is_taken_out_of_the_gradient_in_float32():
    """The gradient is w / 2^10, too small for float16 until it is scaled, which is exact."""
    w, images = (1e-4 * normal(1, 4, 4)).half(), normal(2, 1, 4, 4).half().requires_grad_()
    penalty = GradientPenalty(name="p", at=PenaltyAt.reals, weight=1e9)
    scores, _ = no_logits((images * w).flatten(1).sum(1) / 2**10)
    found = penalty.of_scores(images, scores, PenaltyContext((penalty,), 0, None, torch.tensor(2.0**12)))
    expected = 1e9 * (w.double() / 2**10).square().sum()
    torch.testing.assert_close(found, expected.float().expand(2), rtol=1e-5, atol=0)
