"""Gradient penalties through the augmentation, in float64 against their definitions."""

import pytest
import torch

from pggan.augmentation.ada import Ada
from pggan.augmentation.base import D_PASS
from pggan.augmentation.diffaugment import DiffAugment
from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.losses.gradient_penalty import PenaltyAt, PenaltyContext
from tests.losses.critics import LOGISTIC, RELATIVISTIC, WGAN_GP

SIDE, COUNT = 4, 2
ADA = Ada(p=0.8, target=0.6, interval=4, rampup_images=1000, blit=True, geometry=True, colors=True)
DIFFAUGMENT = DiffAugment(colors=True, translation=True, cutout=True)


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Critic:
    """A smooth network of two layers."""

    def __init__(self):
        self.first = (normal(1, 3 * SIDE * SIDE, 5) / 4).requires_grad_()
        self.second = normal(2, 5).requires_grad_()

    def __call__(self, images, *, sub_batches=1):
        scores = torch.tanh(images.flatten(1) @ self.first).square() @ self.second
        return scores, scores.new_zeros(len(scores), 0)


def given(augmentation):
    """Reals, fakes and what D is shown of them, each image transformed."""
    numbers = augmentation.draw(StepRng(1, 0, torch.device("cpu")), COUNT)[:, D_PASS]
    reals, fakes = normal(3, COUNT, 3, SIDE, SIDE), normal(4, COUNT, 3, SIDE, SIDE)
    transforms = augmentation.transforms(numbers, None)
    for image, transform in ((reals, transforms.reals), (fakes, transforms.fakes)):
        assert ((transform(image) - image).abs().flatten(1).amax(1) > 0.1).all()
    return reals, fakes, transforms


def slope(score, image, step=1e-6):
    """The gradient of a number, by central differences."""
    found = torch.zeros_like(image)
    for place in range(image.numel()):
        away = torch.zeros_like(image).flatten()
        away[place] = step
        away = away.view_as(image)
        found.view(-1)[place] = (score(image + away) - score(image - away)) / (2 * step)
    return found


@pytest.mark.parametrize("jvp", [False, True], ids=["autograd", "jvp"])
@pytest.mark.parametrize("augmentation", [ADA, DIFFAUGMENT], ids=["ada", "diffaugment"])
@pytest.mark.parametrize("loss", [LOGISTIC, RELATIVISTIC, WGAN_GP], ids=["logistic", "relativistic", "wgan_gp"])
def test_penalties_and_their_gradients_are_those_of_finite_differences(loss, augmentation, jvp):
    """At reals and fakes through the augmentation, at interpolated images between what D is shown."""
    reals, fakes, transforms = given(augmentation)
    critic, mix = Critic(), torch.tensor([0.3, 0.8], dtype=torch.float64).view(2, 1, 1, 1)
    due = loss.penalties()
    context = PenaltyContext(due, 0, mix, None, jvp)

    def terms():
        found = loss.for_d(critic, Reals(reals.clone(), None, None), fakes.clone(), context, transforms)
        return {penalty.name: found.loss[penalty.name] for penalty in due}

    between = torch.lerp(transforms.reals(reals), transforms.fakes(fakes), mix)
    images = {PenaltyAt.reals: reals, PenaltyAt.fakes: fakes, PenaltyAt.interpolated: between}
    seen = {
        PenaltyAt.reals: transforms.reals,
        PenaltyAt.fakes: transforms.fakes,
        PenaltyAt.interpolated: lambda image: image,
    }
    found = terms()
    for penalty in due:
        with torch.no_grad():
            gradient = slope(lambda x, at=penalty.at: critic(seen[at](x))[0].sum(), images[penalty.at])
        torch.testing.assert_close(found[penalty.name].detach(), penalty.of(gradient, 0), rtol=1e-6, atol=1e-8)

    total = sum(term.sum() for term in found.values())
    weights = [critic.first, critic.second]
    for weight, gradient in zip(weights, torch.autograd.grad(total, weights), strict=True):
        direction = normal(9, *weight.shape)
        before, values = weight.detach().clone(), []
        for step in (1e-5, -1e-5):
            weight.data = before + step * direction
            values.append(sum(term.detach().sum() for term in terms().values()))
        weight.data = before
        expected = (values[0] - values[1]) / 2e-5
        torch.testing.assert_close((gradient * direction).sum(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("loss", [LOGISTIC, RELATIVISTIC, WGAN_GP], ids=["logistic", "relativistic", "wgan_gp"])
def test_d_and_g_score_what_they_are_shown(loss):
    reals, fakes, transforms = given(ADA)
    critic, batch = Critic(), Reals(reals, None, None)
    on_reals, on_fakes = critic(transforms.reals(reals))[0], critic(transforms.fakes(fakes))[0]
    mix = torch.full((COUNT, 1, 1, 1), 0.5, dtype=torch.float64)
    for due in ((), loss.penalties()):
        found = loss.for_d(critic, batch, fakes, PenaltyContext(due, 0, mix, None, False), transforms)
        for name, term in loss.d_terms(on_reals, on_fakes).items():
            torch.testing.assert_close(found.loss[name], term)
        torch.testing.assert_close(found.metrics["scores/reals"], on_reals.detach())
    wanted = loss.g_terms(on_reals, on_fakes)
    found = loss.for_g(critic, batch, fakes, transforms)
    for name, term in wanted.items():
        torch.testing.assert_close(found.loss[name], term)


def test_g_gets_its_gradient_through_the_augmentation():
    _, fakes, transforms = given(ADA)
    critic = Critic()
    fakes.requires_grad_()
    terms = LOGISTIC.for_g(critic, Reals(fakes, None, None), fakes, transforms)
    (gradient,) = torch.autograd.grad(terms.loss["G/loss_fakes"].sum(), fakes)
    with torch.no_grad():

        def score(images):
            return torch.nn.functional.softplus(-critic(transforms.fakes(images))[0]).sum()

        torch.testing.assert_close(gradient, slope(score, fakes.detach()), rtol=1e-6, atol=1e-8)
