"""What all losses share: signs, the images that D is shown, and label terms.  test_step.py has their formulas."""

import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from pggan.losses import LOSSES, build_loss
from pggan.losses.base import Reals, class_loss
from pggan.networks.networks import Discriminator
from tests.definitions import variant
from tests.losses.critics import ALL, FAKE, LOGISTIC, REAL, RELATIVISTIC, WGAN_GP, for_d, linear_critic, normal
from tests.networks.naive import Naive, ready

CONFIGS = Path(__file__).parents[2] / "configs" / "loss"
EACH = pytest.mark.parametrize("name", LOSSES)


def close(found, expected):
    torch.testing.assert_close(
        found.detach().double(), torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=1e-6
    )


# ---- scores -------------------------------------------------------------------------------------------------


@EACH
def test_terms_of_extreme_scores_are_finite_and_pull_scores_the_right_way(name):
    loss, far = ALL[name], torch.tensor([1e4, -1e4])
    for terms in (loss.d_terms(far, -far), loss.d_terms(-far, far), loss.g_terms(far, -far)):
        assert all(torch.isfinite(term).all() for term in terms.values())
    real, fake = REAL.clone().requires_grad_(), FAKE.clone().requires_grad_()
    of_reals, of_fakes = torch.autograd.grad(sum(t.sum() for t in loss.d_terms(real, fake).values()), (real, fake))
    assert (of_reals < 0).all()
    assert (of_fakes > 0).all()
    (of_fakes,) = torch.autograd.grad(sum(term.sum() for term in loss.g_terms(REAL, fake).values()), fake)
    assert (of_fakes < 0).all()


@EACH
def test_the_yaml_of_a_loss_has_its_fields(name):
    options = dict(OmegaConf.load(CONFIGS / f"{name}.yaml"))
    assert options["name"] == name
    assert set(options) <= {"name", *(field.name for field in fields(build_loss(options)))}
    assert set(LOSSES) == {path.stem for path in CONFIGS.glob("*.yaml")}


# ---- signs, by which ADA adapts p --------------------------------------------------------------------------


def test_signs_of_reals_are_those_of_scores_where_0_has_a_meaning_and_of_differences_elsewhere():
    real, fake = torch.tensor([3.0, -1.0, 2.0, 0.0]), torch.tensor([4.0, -2.0, 0.0, 0.0])
    assert LOGISTIC.signs(real, fake).tolist() == [1, -1, 1, 0]
    for loss in (RELATIVISTIC, WGAN_GP):
        assert loss.signs(real, fake).tolist() == [-1, 1, 1, 0]


def test_the_mean_sign_of_differences_is_that_of_equally_separated_normal_scores():
    assert LOGISTIC.mean_sign(0.6) == 0.6
    for target in (0.0, 0.3, 0.6):
        middle = torch.special.ndtri(torch.tensor((1 + target) / 2, dtype=torch.float64))  # so that P(score > 0) fits
        real, fake = normal(100_000) + middle, normal(100_000, seed=1) - middle
        assert real.sign().mean().item() == pytest.approx(target, abs=5 / math.sqrt(100_000))
        found = RELATIVISTIC.signs(real, fake).mean().item()
        assert found == pytest.approx(RELATIVISTIC.mean_sign(target), abs=5 / math.sqrt(100_000))


# ---- what D is shown ----------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("due", [None, ()], ids=["penalties", "none"])
def test_scores_of_reals_and_fakes_are_those_of_two_separate_batches(name, residual, due):
    """Minibatch stddev must not see reals and fakes as one batch."""
    sizes = {"resolution": 8, "channels": 2, "latent_size": 4, "fmap_base": 8, "fmap_max": 4, "stddev_group": 2}
    d = ready(Discriminator, variant(**sizes, residual=residual)).double()
    reals, fakes, naive = normal(4, 2, 8, 8), 3 * normal(4, 2, 8, 8, seed=1), Naive(d)
    mix = torch.rand(4, 1, 1, 1, dtype=torch.float64)
    terms = for_d(ALL[name], lambda images, **more: d(images, 8, **more), reals, fakes, mix=mix, due=due)
    for key, images in (("scores/reals", reals), ("scores/fakes", fakes)):
        np.testing.assert_allclose(terms.metrics[key], naive.scores(images.numpy(), 8)[:, 0], atol=2e-5, rtol=1e-5)
    assert ({*terms.loss} > {penalty.name for penalty in ALL[name].penalties()}) == (due is None)
    assert all(term.shape == (4,) for term in (*terms.loss.values(), *terms.metrics.values()))


# ---- labels -------------------------------------------------------------------------------------------------


def test_label_terms_are_cross_entropies_with_the_labels_of_reals_in_d_and_drawn_ones_in_g():
    def critic(images, *, sub_batches=1):  # the logits are the first three pixels
        return images.flatten(1).sum(1), images.flatten(1)[:, :3]

    e, labels = math.e, torch.eye(3)
    reals, fakes = torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4)
    reals[0, 0, 0, :3], fakes[0, 0, 0, :3] = torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0.0, 1.0, 3.0])
    terms = for_d(WGAN_GP, critic, reals, fakes, labels=labels[:1], mix=torch.rand(1, 1, 1, 1)).loss
    close(terms["D/class_loss_reals"], [math.log(e**2 + e + 1) - 2])
    close(terms["D/class_loss_fakes"], [math.log(1 + e + e**3)])
    of_g = WGAN_GP.for_g(critic, Reals(reals, labels[:1], labels[2:]), fakes).loss
    close(of_g["G/class_loss_fakes"], [math.log(1 + e + e**3) - 3])
    assert set(of_g) == set(WGAN_GP.terms_of_g)
    close(class_loss(torch.zeros(1, 3), labels[:1]), [math.log(3)])
    assert set(for_d(WGAN_GP, critic, reals, fakes, due=()).loss) == {"D/wasserstein", "D/drift"}


# ---- gradient penalties, by definition -----------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0, 1, 8])
def test_the_official_norm_is_that_at_the_final_resolution(missing):
    """The official critic sees the image upsampled to the final resolution and pools it back down."""
    weights, points, factor = 3 * normal(1, 4, 4), normal(1, 1, 4, 4, seed=1), 2**missing
    upsampled = points.repeat_interleave(factor, 2).repeat_interleave(factor, 3).requires_grad_()
    pooled = upsampled.reshape(1, 1, 4, factor, 4, factor).mean((3, 5))
    (gradient,) = torch.autograd.grad((pooled * weights).sum(), upsampled)
    mix = torch.full((1, 1, 1, 1), 0.3, dtype=torch.float64)
    terms = for_d(WGAN_GP, linear_critic(weights), points, points, missing, mix=mix)
    torch.testing.assert_close(terms.loss["D/gradient_penalty"], (10 * (gradient.norm() - 1) ** 2)[None])
