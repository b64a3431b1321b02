"""Gradient penalties: in closed form, against finite differences, lazy, and in half precision."""

import dataclasses
import itertools
import math
from functools import cache

import numpy as np
import pytest
import torch

from pggan.losses.base import GradientPenalty, PenaltyAt, PenaltyContext, PenaltyResolution
from pggan.networks.networks import Discriminator
from tests.losses.critics import (
    ALL,
    LOGISTIC,
    RELATIVISTIC,
    WGAN_GP,
    close,
    for_d,
    linear_critic,
    no_logits,
    phase,
    reals_of,
    rng,
)
from tests.networks.naive import Naive, normal


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_the_penalty_of_a_linear_critic_is_10_times_the_squared_excess_of_its_norm(scale):
    weights = scale * normal(3, 4, 4)
    norm = math.sqrt(sum(w * w for w in weights.double().flatten().tolist()))
    reals, fakes = normal(2, 3, 4, 4), normal(2, 3, 4, 4, seed=1)
    terms = for_d(WGAN_GP, linear_critic(weights), reals_of(reals), fakes, phase(), rng())
    close(terms.loss["D/gradient_penalty"], [10 * (norm - 1) ** 2] * 2, rtol=1e-5, atol=1e-6)


def test_a_critic_of_norm_1_pays_no_penalty():
    weights = torch.zeros(1, 4, 4)
    weights[0, 0, 0], weights[0, 1, 3] = 0.6, -0.8
    penalty = dataclasses.replace(WGAN_GP, penalty_weight=1000.0)
    terms = for_d(
        penalty, linear_critic(weights), reals_of(normal(2, 1, 4, 4)), normal(2, 1, 4, 4, seed=1), phase(), rng()
    )
    close(terms.loss["D/gradient_penalty"], [0.0, 0.0], atol=1e-8, rtol=0)


@pytest.mark.parametrize("target", [1.0, 2.0, 750.0])
def test_the_target_is_aimed_at_and_its_square_divides_the_penalty(target):
    weights = torch.zeros(1, 4, 4)
    weights[0, 2, 2] = 5.0
    loss = dataclasses.replace(WGAN_GP, target=target)
    terms = for_d(
        loss, linear_critic(weights), reals_of(normal(2, 1, 4, 4)), normal(2, 1, 4, 4, seed=1), phase(), rng()
    )
    close(terms.loss["D/gradient_penalty"], [10 * (5 - target) ** 2 / target**2] * 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("missing", [0, 1, 3, 8])
def test_the_official_norm_is_that_at_the_final_resolution(missing):
    # The official critic sees the image upsampled to the final resolution and pools it back down.
    weights = 3 * normal(1, 4, 4)
    points = normal(1, 1, 4, 4, seed=1)
    factor = 2**missing
    upsampled = points.repeat_interleave(factor, 2).repeat_interleave(factor, 3).requires_grad_()
    pooled = upsampled.reshape(1, 1, 4, factor, 4, factor).mean((3, 5))
    (gradient,) = torch.autograd.grad((pooled * weights).sum(), upsampled)
    norm = gradient.double().square().sum().sqrt().item()
    assert norm == pytest.approx(weights.norm().item() / 2**missing, rel=1e-5)

    loss = dataclasses.replace(WGAN_GP, penalty_resolution=PenaltyResolution.final)
    terms = for_d(loss, linear_critic(weights), reals_of(points), points.clone(), phase(missing, batch=1), rng())
    close(terms.loss["D/gradient_penalty"], [10 * (norm - 1) ** 2], rtol=1e-5, atol=1e-6)


def test_the_native_norm_does_not_depend_on_the_missing_levels():
    weights = 3 * normal(1, 4, 4)
    found = [
        for_d(
            WGAN_GP,
            linear_critic(weights),
            reals_of(normal(1, 1, 4, 4)),
            normal(1, 1, 4, 4, seed=1),
            phase(missing, batch=1),
            rng(),
        ).loss["D/gradient_penalty"]
        for missing in (0, 8)
    ]
    assert torch.equal(*found)


def quadratic_critic(curvature):
    """Score: curvature / 2 * |x|^2, so that the gradient is curvature * x."""
    return lambda images, *, sub_batches=1: no_logits(curvature / 2 * images.square().flatten(1).sum(1))


@pytest.mark.parametrize(
    ("loss", "name", "at_reals"),
    [(LOGISTIC, "D/r1", True), (RELATIVISTIC, "D/r1", True), (RELATIVISTIC, "D/r2", False)],
)
def test_r1_and_r2_are_half_gamma_times_the_squared_gradient(loss, name, at_reals):
    reals, fakes = normal(2, 1, 4, 4), 2 * normal(2, 1, 4, 4, seed=1)
    terms = for_d(loss, quadratic_critic(2.0), reals_of(reals.clone()), fakes.clone(), phase(), rng())
    seen = (reals if at_reals else fakes).double()
    expected = [3 / 2 * sum((2 * x) ** 2 for x in image.flatten().tolist()) for image in seen]
    close(terms.loss[name], expected, rtol=1e-5, atol=1e-6)


def test_r1_does_not_look_at_fakes_nor_at_missing_levels():
    reals = normal(2, 1, 4, 4)
    values = [
        for_d(LOGISTIC, quadratic_critic(1.0), reals_of(reals.clone()), fakes, phase(missing), rng()).loss["D/r1"]
        for fakes, missing in ((normal(2, 1, 4, 4, seed=1), 0), (100 * normal(2, 1, 4, 4, seed=2), 5))
    ]
    assert torch.equal(*values)


# ---- finite differences ----------------------------------------------------------------------------------


def gradients(naive, pair):
    """The gradient of the sum of scores at a pair of images, by central differences: [2, C * R * R]."""
    step, size = 1e-5, pair[0].size
    moves = step * np.eye(2 * size).reshape(-1, *pair.shape)
    moved = np.concatenate([pair + moves, pair - moves])  # [4S, 2, C, R, R]
    images = np.concatenate([moved[:, 0], moved[:, 1]])  # images m and m + N / 2 are a group
    sums = naive.scores(images, 8)[:, 0].reshape(2, -1).sum(0)
    plus, minus = np.split(sums, 2)
    return ((plus - minus) / (2 * step)).reshape(2, size)


POINTS = normal(2, 2, 8, 8, seed=3)


@pytest.fixture(scope="module")
def defined(critic):
    """The penalty [2] of `critic` at POINTS by its definition, and its slope in one number of every weight and bias."""
    names = [
        name for name, _ in critic.named_parameters() if not name.startswith("from_rgb.4.")
    ]  # not part of it at 8x8

    @cache
    def penalty_and_slopes(target, missing):
        naive = Naive(critic)

        def penalty():
            norms = np.linalg.norm(gradients(naive, POINTS.double().numpy()), axis=1) / 2**missing
            return 10 * (norms / target - 1) ** 2 if target else 10 * norms**2

        value, slopes = penalty(), {}
        for name in names:
            middle, values = naive.values[name].size // 2, []
            for step in (1e-4, -2e-4):
                naive.values[name].flat[middle] += step
                values.append(penalty().sum())
            naive.values[name].flat[middle] += 1e-4
            slopes[name] = (values[0] - values[1]) / 2e-4
        return value, slopes

    return penalty_and_slopes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "reference", "missing"),
    [(1.0, PenaltyResolution.current, 0), (3.0, PenaltyResolution.final, 1), (0.0, PenaltyResolution.current, 0)],
)
@pytest.mark.parametrize("scale", [None, 1024.0])
@pytest.mark.parametrize("jvp", [False, True])
def test_the_penalty_and_its_gradient_are_those_of_finite_differences(
    critic, defined, target, reference, missing, jvp, scale
):
    expected, slopes = defined(target, missing)
    penalty = GradientPenalty(name="p", at=PenaltyAt.interpolated, weight=10.0, target=target, resolution=reference)
    critic.zero_grad(set_to_none=True)
    context = PenaltyContext((penalty,), missing, None, None if scale is None else torch.tensor(scale), jvp)
    if jvp:
        found, scores = penalty.by_jvp(
            lambda images, *, sub_batches=1: critic(images, 8, sub_batches=sub_batches), POINTS, context
        )
        close(scores, Naive(critic).scores(POINTS.double().numpy(), 8)[:, 0], rtol=1e-4, atol=1e-5)
    else:
        seen = POINTS.clone().requires_grad_()
        found = penalty.by_autograd(seen, critic(seen, 8)[0], context)
    close(found, expected, rtol=1e-4, atol=1e-5)

    found.sum().backward()
    for name, parameter in critic.named_parameters():
        if name not in slopes:
            assert parameter.grad is None
            continue
        gradient = 0.0 if parameter.grad is None else parameter.grad.flatten()[parameter.numel() // 2].item()
        assert gradient == pytest.approx(slopes[name], rel=5e-3, abs=2e-3), name


def test_the_penalty_of_a_smooth_float64_critic_is_that_of_finite_differences():
    # f(x) = v . tanh(W x + b): by hand, gradient W^T (v * (1 - tanh^2)); by differences, its slope in W, v and b.
    parameters = {"w": normal(5, 6, seed=1), "b": normal(5, seed=2), "v": normal(5, seed=3)}
    parameters = {name: value.double().requires_grad_() for name, value in parameters.items()}
    points = normal(3, 6, seed=4, dtype=torch.float64)

    def score(x, w, b, v):
        return np.tanh(x @ w.T + b) @ v

    def expected(values):
        step, total = 1e-5, []
        for x in points.numpy():
            gradient = [
                (score(x + step * e, **values) - score(x - step * e, **values)) / (2 * step) for e in np.eye(len(x))
            ]
            total.append(10 * (np.linalg.norm(gradient) - 1) ** 2)
        return np.array(total)

    plain = {name: value.detach().numpy().copy() for name, value in parameters.items()}
    x = points.clone().requires_grad_()
    penalty = GradientPenalty(name="p", at=PenaltyAt.interpolated, weight=10.0, target=1.0)
    scores = torch.tanh(x @ parameters["w"].T + parameters["b"]) @ parameters["v"]
    found = penalty.by_autograd(x, scores, PenaltyContext((penalty,), 0, None, None, False))
    close(found, expected(plain), rtol=1e-5, atol=1e-5)
    found.sum().backward()
    for name, values in plain.items():
        for index in np.ndindex(values.shape):
            moved = []
            for sign in (1, -1):
                changed = {key: value.copy() for key, value in plain.items()}
                changed[name][index] += sign * 1e-4
                moved.append(expected(changed).sum())
            slope = (moved[0] - moved[1]) / 2e-4
            assert parameters[name].grad[index].item() == pytest.approx(slope, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("loss", [WGAN_GP, dataclasses.replace(WGAN_GP, target=0.0), LOGISTIC, RELATIVISTIC])
def test_a_critic_without_slope_gets_finite_gradients(loss):
    weights = torch.zeros(1, 4, 4, requires_grad=True)
    terms = for_d(
        loss, linear_critic(weights), reals_of(normal(2, 1, 4, 4)), normal(2, 1, 4, 4, seed=1), phase(), rng()
    )
    total = sum(term.mean() for term in terms.loss.values())
    assert torch.isfinite(total)
    total.backward()
    assert torch.isfinite(weights.grad).all()


def test_a_discriminator_of_zeros_gets_finite_gradients(critic):
    dead = Discriminator(critic.architecture)
    for parameter in dead.parameters():
        parameter.data.zero_()
    for loss in ALL:
        dead.zero_grad(set_to_none=True)
        same = normal(1, 2, 8, 8).repeat(2, 1, 1, 1)
        terms = for_d(
            loss,
            lambda images, *, sub_batches=1: dead(images, 8, sub_batches=sub_batches),
            reals_of(same.clone()),
            same.clone(),
            phase(resolution=8),
            rng(),
        )
        sum(term.mean() for term in terms.loss.values()).backward()
        for name, parameter in dead.named_parameters():
            assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


# ---- lazy penalties --------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [1, 2, 8])
@pytest.mark.parametrize("batch", [3, 16])
def test_a_lazy_penalty_is_due_at_the_first_update_of_a_run_and_at_every_interval_th_one(interval, batch):
    loss, critic = dataclasses.replace(LOGISTIC, reg_interval=interval), linear_critic(torch.ones(1, 4, 4))
    reals = normal(batch, 1, 4, 4)
    for start in (0, batch * 1000, 100_001):  # a phase may begin at any image count
        due = []
        for images in range(start, start + 5 * interval * batch, batch):
            terms = for_d(loss, critic, reals_of(reals), reals, phase(batch=batch), rng(images)).loss
            due.append("D/r1" in terms)
        positions = [position for position, now in enumerate(due) if now]
        assert len(positions) == 5
        assert {later - earlier for earlier, later in itertools.pairwise(positions)} == {interval}
        assert start > 0 or due[0]


@pytest.mark.parametrize("eager", ALL, ids=lambda loss: type(loss).__name__)
def test_a_lazy_penalty_counts_interval_times_as_much_and_is_absent_in_between(eager):
    lazy = dataclasses.replace(eager, reg_interval=4)
    critic, names = linear_critic(normal(1, 4, 4)), [penalty.name for penalty in eager.penalties()]
    assert names

    def terms_of(loss, update):
        return for_d(
            loss, critic, reals_of(normal(2, 1, 4, 4)), normal(2, 1, 4, 4, seed=1), phase(), rng(2 * update)
        ).loss

    for name in names:
        close(terms_of(lazy, 0)[name], 4 * terms_of(eager, 0)[name].detach(), rtol=1e-6, atol=0)
        for update in (1, 2, 3):
            assert name not in terms_of(lazy, update)
            assert name in terms_of(eager, update)
        assert name in terms_of(lazy, 4)
    others = set(terms_of(eager, 0)) - set(names)
    assert set(terms_of(lazy, 1)) == others


# ---- half precision --------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.0, 750.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_penalty_of_a_gradient_in_half_precision_is_computed_in_float32(dtype, target):
    gradient = (30 * normal(2, 3, 16, 16)).to(dtype)  # the sum of its squares is beyond float16
    norms = gradient.double().flatten(1).norm(dim=1)
    expected = 10 * ((norms / target - 1) ** 2 if target else norms**2)
    found = GradientPenalty(name="p", at=PenaltyAt.reals, weight=10.0, target=target).of(gradient, 0)
    assert found.dtype == torch.float32
    close(found, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("jvp", [False, True])
def test_the_loss_scale_is_taken_out_of_the_gradient_in_float32(jvp):
    # The gradient is w / 2^10, too small for float16 until it is scaled, which is exact.
    w, images = (1e-4 * normal(1, 4, 4)).half(), normal(2, 1, 4, 4).half().requires_grad_(not jvp)
    penalty = GradientPenalty(name="p", at=PenaltyAt.reals, weight=1e9)
    context = PenaltyContext((penalty,), 0, None, torch.tensor(2.0**12), jvp)

    def critic(images, *, sub_batches=1):
        return no_logits((images * w).flatten(1).sum(1) / 2**10)

    found = (
        penalty.by_jvp(critic, images, context)[0] if jvp else penalty.by_autograd(images, critic(images)[0], context)
    )
    close(found, [1e9 * (w.double() / 2**10).square().sum().item()] * 2, rtol=1e-5, atol=0)
