"""What all losses share: how they run the discriminator, which images it is shown, and the label terms."""

import dataclasses
import math

import pytest
import torch

from pggan.losses import LOSSES, build_loss
from pggan.losses.base import class_loss
from tests.losses.critics import (
    ALL,
    FAKE,
    REAL,
    RELATIVISTIC,
    ROUNDING,
    WGAN_GP,
    close,
    for_d,
    linear_critic,
    phase,
    reals_of,
    rng,
    watched_critic,
)
from tests.losses.test_losses import options_of
from tests.networks.naive import Naive, normal

E = math.e


def test_losses_of_extreme_scores_stay_finite():
    far = torch.tensor([1e4, -1e4])
    for loss in ALL:
        for terms in (loss.d_terms(far, -far), loss.d_terms(-far, far), loss.g_terms(far, -far)):
            assert all(torch.isfinite(term).all() for term in terms.values())


@pytest.mark.parametrize("loss", ALL, ids=lambda loss: type(loss).__name__)
def test_d_gains_from_higher_reals_and_lower_fakes_and_g_from_higher_fakes(loss):
    def total(terms):
        return sum(term.sum() for term in terms.values())

    real, fake = REAL.clone().requires_grad_(), FAKE.clone().requires_grad_()
    total(loss.d_terms(real, fake)).backward()
    assert (real.grad < 0).all()
    assert (fake.grad > 0).all()
    fake.grad = None
    total(loss.g_terms(REAL, fake)).backward()
    assert (fake.grad < 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_says_of_its_scores_what_the_gradient_of_g_tells(name):
    """Where the gradient stays the same when all scores rise by 1, they have no zero; when all double, no scale."""
    loss = build_loss(options_of(name))

    def gradient(change):
        fake = FAKE.clone().requires_grad_()
        real, changed = change(REAL), change(fake)
        (found,) = torch.autograd.grad(sum(term.sum() for term in loss.g_terms(real, changed).values()), changed)
        return found

    usual = gradient(lambda scores: scores + 0)
    assert loss.zero_is_boundary != torch.allclose(gradient(lambda scores: scores + 1), usual)
    assert loss.scores_are_log_odds != torch.allclose(gradient(lambda scores: 2 * scores), usual)


@pytest.mark.parametrize("loss", ALL, ids=lambda loss: type(loss).__name__)
def test_a_loss_names_all_terms_that_it_has_for_g(loss):
    labels = torch.eye(4)[:3]
    reals = reals_of(normal(3, 1, 4, 4), labels, labels)
    terms = loss.for_g(lambda images: (images.mean((1, 2, 3)), labels), reals, reals.images)
    assert set(terms.loss) == set(loss.terms_of_g)


def test_mixed_points_lie_between_each_real_and_its_fake_at_one_place_per_image():
    critic, seen = watched_critic(normal(3, 4, 4))
    reals, fakes = normal(64, 3, 4, 4), normal(64, 3, 4, 4, seed=1)
    for_d(WGAN_GP, critic, reals_of(reals.clone()), fakes.clone(), phase(batch=64), rng())
    assert torch.equal(seen[0], reals)
    assert torch.equal(seen[1], fakes)
    (mixed,) = seen[2:]
    direction = (fakes - reals).flatten(1).double()
    share = ((mixed - reals).flatten(1).double() * direction).sum(1) / direction.square().sum(1)
    torch.testing.assert_close(
        (reals.flatten(1) + share[:, None] * direction).float(), mixed.flatten(1), atol=1e-5, rtol=1e-5
    )
    assert share.min() > -1e-6
    assert share.max() < 1 + 1e-6
    assert len(set(share.tolist())) == 64
    assert share.mean().item() == pytest.approx(0.5, abs=0.15)  # uniform: 4 standard errors
    assert share.std().item() == pytest.approx(math.sqrt(1 / 12), abs=0.1)


@pytest.mark.parametrize("loss", ALL, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("interval", [1, 2])
def test_scores_of_reals_and_fakes_are_those_of_two_separate_batches(critic, loss, interval):
    # Minibatch stddev must not see reals and fakes as one batch.
    def at_8x8(images, **options):
        return critic(images, 8, **options)

    reals, fakes = normal(4, 2, 8, 8), 3 * normal(4, 2, 8, 8, seed=1)
    for update in (0, 1):
        terms = for_d(
            dataclasses.replace(loss, reg_interval=interval),
            at_8x8,
            reals_of(reals.clone()),
            fakes.clone(),
            phase(batch=4, resolution=8),
            rng(4 * update),
        )
        naive = Naive(critic)
        close(terms.metrics["scores/reals"], naive.scores(reals.double().numpy(), 8)[:, 0], atol=2e-5, rtol=1e-5)
        close(terms.metrics["scores/fakes"], naive.scores(fakes.double().numpy(), 8)[:, 0], atol=2e-5, rtol=1e-5)


def test_mixing_changes_from_step_to_step_and_is_repeated_by_the_same_step():
    shown = []
    for images in (0, 0, 2):
        critic, seen = watched_critic(normal(3, 4, 4))
        for_d(WGAN_GP, critic, reals_of(normal(2, 3, 4, 4)), normal(2, 3, 4, 4, seed=1), phase(), rng(images))
        shown.append(seen[2])
    assert torch.equal(shown[0], shown[1])
    assert not torch.equal(shown[0], shown[2])


@pytest.mark.parametrize("loss", ALL, ids=lambda loss: type(loss).__name__)
def test_terms_are_one_number_per_image(loss):
    labels = torch.eye(4)[:3]

    def critic(images, *, sub_batches=1):
        return images.flatten(1).sum(1), images.flatten(1)[:, :4]

    reals = reals_of(normal(3, 1, 4, 4), labels, labels)
    terms = for_d(loss, critic, reals, normal(3, 1, 4, 4, seed=1), phase(batch=3), rng())
    assert all(term.shape == (3,) for term in (*terms.loss.values(), *terms.metrics.values()))
    assert not any(term.requires_grad for term in terms.metrics.values())
    terms = loss.for_g(critic, reals, normal(3, 1, 4, 4, seed=1))
    assert all(term.shape == (3,) for term in terms.loss.values())


def test_scores_are_shown_as_they_are():
    weights = normal(1, 4, 4)
    reals, fakes = normal(2, 1, 4, 4), normal(2, 1, 4, 4, seed=1)
    terms = for_d(WGAN_GP, linear_critic(weights), reals_of(reals), fakes, phase(), rng())
    close(terms.metrics["scores/reals"], (reals * weights).flatten(1).sum(1).detach().double(), rtol=1e-5, atol=1e-5)
    close(terms.metrics["scores/fakes"], (fakes * weights).flatten(1).sum(1).detach().double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("loss", ALL, ids=lambda loss: type(loss).__name__)
def test_only_a_relativistic_generator_looks_at_reals(loss):
    critic, seen = watched_critic(normal(1, 4, 4))
    fakes = normal(2, 1, 4, 4, seed=1).requires_grad_()
    one = loss.for_g(critic, reals_of(normal(2, 1, 4, 4)), fakes).loss
    other = loss.for_g(critic, reals_of(10 * normal(2, 1, 4, 4, seed=5)), fakes).loss
    same = all(torch.equal(one[name], other[name]) for name in one)
    assert same == (loss is not RELATIVISTIC)
    assert len(seen) == (4 if loss is RELATIVISTIC else 2)
    sum(term.sum() for term in one.values()).backward()
    assert fakes.grad.abs().sum() > 0


def test_label_loss_is_the_cross_entropy_worked_by_hand():
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    labels = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    close(class_loss(logits, labels), [-math.log(E**2 / (E**2 + E + 1)), math.log(3)], **ROUNDING)


def test_label_terms_take_the_labels_of_reals_in_d_and_drawn_ones_in_g():
    def critic(images, *, sub_batches=1):  # the logits are the first three pixels
        return images.flatten(1).sum(1), images.flatten(1)[:, :3]

    reals, fakes = torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4)
    reals[0, 0, 0, :3], fakes[0, 0, 0, :3] = torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0.0, 1.0, 3.0])
    batch = reals_of(reals, torch.eye(3)[:1], torch.eye(3)[2:])  # class 0 for the D step, class 2 for the G step
    terms = for_d(WGAN_GP, critic, batch, fakes, phase(batch=1), rng()).loss
    close(terms["D/class_loss_reals"], [math.log(E**2 + E + 1) - 2], **ROUNDING)
    close(terms["D/class_loss_fakes"], [math.log(1 + E + E**3)], **ROUNDING)
    terms = WGAN_GP.for_g(critic, batch, fakes).loss
    close(terms["G/class_loss_fakes"], [math.log(1 + E + E**3) - 3], **ROUNDING)


def test_there_are_no_label_terms_without_labels():
    critic, reals, fakes = linear_critic(normal(1, 4, 4)), reals_of(normal(2, 1, 4, 4)), normal(2, 1, 4, 4, seed=1)
    of_d = for_d(WGAN_GP, critic, reals, fakes, phase(), rng()).loss
    assert set(of_d) == {"D/wasserstein", "D/drift", "D/gradient_penalty"}
    assert set(WGAN_GP.for_g(critic, reals, fakes).loss) == {"G/wasserstein"}
