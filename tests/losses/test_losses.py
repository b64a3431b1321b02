"""What all losses share: signs, scores apart, label terms, lost slopes.  test_step.py has the formulas."""

import dataclasses
import math

import pytest
import torch

from pggan.losses.base import GradientPenalty, PenaltyContext, Reals, class_loss
from pggan.networks.networks import Discriminator
from tests.definitions import LOSSES, WGAN_GP, variant
from tests.networks.naive import normal

SMALL = variant(resolution=8, channels=2, latent_size=4, fmap_base=8, fmap_max=4, stddev_group=2)


def for_d(loss, critic, reals, fakes, labels=None):
    """The terms of D; its penalties are due."""
    mix = torch.full((len(reals), 1, 1, 1), 0.3, dtype=reals.dtype)
    context = PenaltyContext(loss.penalties(), 0, mix, None)
    others = None if labels is None else labels.roll(1, 1)  # of fakes in G's pass
    return loss.for_d(critic, Reals(reals.clone(), labels, others), fakes.clone(), context)


def close(found, expected):
    torch.testing.assert_close(found.detach(), torch.tensor(expected), atol=1e-6, rtol=1e-6)


# ---- scores -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
def test_terms_of_extreme_scores_are_finite(name):
    loss, far = LOSSES[name], torch.tensor([1e4, -1e4])
    for terms in (loss.d_terms(far, -far), loss.d_terms(-far, far), loss.g_terms(far, -far)):
        assert all(torch.isfinite(term).all() for term in terms.values())
    lazy = dataclasses.replace(loss, reg_interval=8).penalties()
    assert [one.weight for one in lazy] == [8 * one.weight for one in loss.penalties()]


def test_signs_by_which_ada_adapts_p_are_those_of_scores_where_0_has_a_meaning_and_of_differences_elsewhere():
    real, fake = torch.tensor([3.0, -1.0, 2.0, 0.0]), torch.tensor([4.0, -2.0, 0.0, 0.0])
    logistic, relativistic = LOSSES["logistic"], LOSSES["relativistic"]
    assert logistic.signs(real, fake).tolist() == [1, -1, 1, 0]
    assert relativistic.signs(real, fake).tolist() == WGAN_GP.signs(real, fake).tolist() == [-1, 1, 1, 0]
    assert logistic.mean_sign(0.6) == 0.6
    for target in (0.0, 0.6):  # the mean sign of differences is that of equally separated normal scores
        middle = torch.special.ndtri(torch.tensor((1 + target) / 2))  # so that P(score > 0) fits
        real, fake = normal(100_000) + middle, normal(100_000, seed=1) - middle
        assert real.sign().mean().item() == pytest.approx(target, abs=5 / math.sqrt(100_000))
        found = relativistic.signs(real, fake).mean().item()
        assert found == pytest.approx(relativistic.mean_sign(target), abs=5 / math.sqrt(100_000))


def test_label_terms_are_cross_entropies_with_the_labels_of_reals_in_d_and_drawn_ones_in_g():
    def critic(images, *, sub_batches=1):  # the logits are the first three pixels
        return images.flatten(1).sum(1), images.flatten(1)[:, :3]

    e, labels = math.e, torch.eye(3)
    reals, fakes = torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4)
    reals[0, 0, 0, :3], fakes[0, 0, 0, :3] = torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0.0, 1.0, 3.0])
    terms = for_d(WGAN_GP, critic, reals, fakes, labels=labels[:1]).loss
    close(terms["D/class_loss_reals"], [math.log(e**2 + e + 1) - 2])
    close(terms["D/class_loss_fakes"], [math.log(1 + e + e**3)])
    of_g = WGAN_GP.for_g(critic, Reals(reals, labels[:1], labels[2:]), fakes).loss
    close(of_g["G/class_loss_fakes"], [math.log(1 + e + e**3) - 3])
    close(class_loss(torch.zeros(1, 3), labels[:1]), [math.log(3)])


# ---- penalties ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [*LOSSES.values(), dataclasses.replace(WGAN_GP, target=0.0)])
def test_critics_without_slope_get_finite_gradients(loss):
    dead, same = Discriminator(SMALL), normal(1, 2, 8, 8).repeat(2, 1, 1, 1)
    for parameter in dead.parameters():
        parameter.data.zero_()
    terms = for_d(loss, lambda images, **more: dead(images, 8, **more), same, same).loss
    sum(term.mean() for term in terms.values()).backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in dead.parameters())


def test_the_loss_scale_is_taken_out_of_the_gradient_in_float32():
    """The gradient is w / 2^10, too small for float16 until it is scaled, which is exact."""
    w, images = (1e-4 * normal(1, 4, 4)).half(), normal(2, 1, 4, 4).half().requires_grad_()
    penalty = GradientPenalty(name="p", at="reals", weight=1e9)
    scores = (images * w).flatten(1).sum(1) / 2**10
    found = penalty.of_scores(images, scores, PenaltyContext((penalty,), 0, None, torch.tensor(2.0**12)))
    expected = 1e9 * (w.double() / 2**10).square().sum()
    torch.testing.assert_close(found, expected.float().expand(2), rtol=1e-5, atol=0)
