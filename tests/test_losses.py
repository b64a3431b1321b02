"""Losses by numbers worked by hand, and gradient penalties against finite differences."""

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import pggan.losses
from pggan.core.batch import Reals
from pggan.core.errors import UserError
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses import LOSSES, build_loss, loss_class
from pggan.losses.base import by_autograd, by_jvp, label_loss
from pggan.losses.gradient_penalty import GradientPenalty, NormReference, PenaltyAt, PenaltyContext
from pggan.losses.logistic import Logistic
from pggan.losses.relativistic import Relativistic
from pggan.losses.wgan_gp import WganGp
from pggan.networks.networks import Discriminator, initialize
from tests.definitions import variant

CONFIGS = Path(__file__).parents[1] / "configs" / "loss"
CPU = torch.device("cpu")
E = math.e

WGAN_GP = WganGp(penalty_weight=10.0, target=1.0, drift=0.001, gp_reference=NormReference.native, reg_interval=1)
LOGISTIC = Logistic(gamma=3.0, reg_interval=1)
RELATIVISTIC = Relativistic(gamma=3.0, reg_interval=1)
ALL = [WGAN_GP, LOGISTIC, RELATIVISTIC]


def softplus(x):
    return math.log1p(math.exp(x))


def phase(missing_levels=0, batch=2, resolution=4):
    return Phase(0, resolution, False, 1.0, 0, 1000, batch, 0.001, 0.001, missing_levels)


def rng(images=0, seed=0):
    return StepRng(seed, images, CPU)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def for_d(loss, critic, reals, fakes, phase, rng, *, jvp=False):
    """The terms of D in the step that begins at the images of `rng`."""
    due = tuple(penalty for penalty in loss.penalties() if penalty.due(phase, rng.images))
    how = PenaltyContext(due, phase.missing_levels, rng.uniform("mix", len(fakes), 1, 1, 1), None, tangent)
    return loss.for_d(critic, reals, fakes, how)


def reals_of(images, labels=None, fake_labels=None):
    return Reals(images, labels, fake_labels)


def no_logits(scores):
    return scores, scores.new_zeros(len(scores), 0)


def linear_critic(weights):
    """Score: the inner product with `weights` [C, R, R]."""
    return lambda images, *, parts=1: no_logits((images * weights).flatten(1).sum(1))


def close(found, expected, **tolerances):
    torch.testing.assert_close(found.detach().double(), torch.as_tensor(expected, dtype=torch.float64), **tolerances)


# ---- formulas of the scores ------------------------------------------------------------------------------

REAL, FAKE = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])
ROUNDING = {"atol": 1e-6, "rtol": 1e-6}


def test_wasserstein_d_wants_reals_high_and_fakes_low_with_a_drift_on_reals_only():
    terms = WGAN_GP.d_terms(REAL, FAKE)
    assert set(terms) == {"D/critic", "D/drift"}
    close(terms["D/critic"], [2.0, -3.0], **ROUNDING)
    close(terms["D/drift"], [0.001, 0.004], **ROUNDING)
    close(WGAN_GP.d_terms(REAL, 100 * FAKE)["D/drift"], [0.001, 0.004], **ROUNDING)


def test_wasserstein_g_wants_fakes_high():
    terms = WGAN_GP.g_terms(None, FAKE)
    assert set(terms) == {"G/critic"}
    close(terms["G/critic"], [-3.0, 1.0], **ROUNDING)


def test_logistic_terms_are_the_negative_logarithms_of_the_sigmoid():
    terms = LOGISTIC.d_terms(REAL, FAKE)
    assert set(terms) == {"D/reals", "D/fakes"}
    close(terms["D/reals"], [0.3132617, 0.1269280], **ROUNDING)  # -log sigmoid(1), -log sigmoid(2)
    close(terms["D/fakes"], [3.0485874, 0.3132617], **ROUNDING)  # -log(1 - sigmoid(3)), … (-1)
    (term,) = LOGISTIC.g_terms(None, FAKE).values()
    close(term, [0.0485874, 1.3132617], **ROUNDING)  # -log sigmoid(3), -log sigmoid(-1)


def test_relativistic_terms_compare_each_fake_with_its_real():
    (term,) = RELATIVISTIC.d_terms(REAL, FAKE).values()
    close(term, [2.1269280, 0.0485874], **ROUNDING)  # -log sigmoid(1 - 3), -log sigmoid(2 + 1)
    (term,) = RELATIVISTIC.g_terms(REAL, FAKE).values()
    close(term, [0.1269280, 3.0485874], **ROUNDING)  # -log sigmoid(3 - 1), -log sigmoid(-1 - 2)


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


# ---- gradient penalties in closed form -------------------------------------------------------------------


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

    loss = dataclasses.replace(WGAN_GP, gp_reference=NormReference.official)
    terms = for_d(loss, linear_critic(weights), reals_of(points), points.clone(), phase(missing), rng())
    close(terms.loss["D/gradient_penalty"], [10 * (norm - 1) ** 2], rtol=1e-5, atol=1e-6)


def test_the_native_norm_does_not_depend_on_the_missing_levels():
    weights = 3 * normal(1, 4, 4)
    found = [
        for_d(
            WGAN_GP,
            linear_critic(weights),
            reals_of(normal(1, 1, 4, 4)),
            normal(1, 1, 4, 4, seed=1),
            phase(missing),
            rng(),
        ).loss["D/gradient_penalty"]
        for missing in (0, 8)
    ]
    assert torch.equal(*found)


def quadratic_critic(curvature):
    """Score: curvature / 2 * |x|^2, so that the gradient is curvature * x."""
    return lambda images, *, parts=1: no_logits(curvature / 2 * images.square().flatten(1).sum(1))


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


# ---- gradient penalties against finite differences -------------------------------------------------------

HE = math.sqrt(2)  # gain for rectified activations


class Judge:
    """The discriminator at 8x8 straight from its definition, in float64 and NumPy, with groups of two."""

    def __init__(self, network):
        self.values = {name: tensor.double().numpy() for name, tensor in network.state_dict().items()}

    def layer(self, name, gain=HE):
        weight = self.values[f"{name}.weight"]
        return weight * gain / math.sqrt(np.prod(weight.shape[1:])), self.values[f"{name}.bias"]

    def conv(self, name, x):
        weight, bias = self.layer(name)
        side = weight.shape[-1]
        x = np.pad(x, ((0, 0), (0, 0), (side // 2,) * 2, (side // 2,) * 2))
        windows = np.lib.stride_tricks.sliding_window_view(x, (side, side), (2, 3))
        return np.einsum("ncijab,ocab->noij", windows, weight, optimize=True) + bias[:, None, None]

    def __call__(self, images):
        """Scores [N]; images m and m + N / 2 are a group."""
        x = leaky(self.conv("blocks.8.conv", leaky(self.conv("from_rgb.8", images))))
        x = self.conv("blocks.8.down_conv", x)
        x = leaky((x[:, :, ::2, ::2] + x[:, :, 1::2, ::2] + x[:, :, ::2, 1::2] + x[:, :, 1::2, 1::2]) / 4)
        first, second = np.split(x, 2)
        deviation = np.sqrt((first - second) ** 2 / 4 + 1e-8).mean((1, 2, 3))
        maps = np.broadcast_to(np.tile(deviation, 2)[:, None, None, None], (len(x), 1, 4, 4))
        x = leaky(self.conv("head.conv", np.concatenate([x, maps], 1)))
        weight, bias = self.layer("head.dense")
        x = leaky(x.reshape(len(x), -1) @ weight.T + bias)
        weight, bias = self.layer("head.score", 1)
        return (x @ weight.T + bias)[:, 0]

    def gradients(self, pair):
        """The gradient of the sum of scores at a pair of images, by central differences: [2, C * R * R]."""
        step, size = 1e-5, pair[0].size
        moves = step * np.eye(2 * size).reshape(-1, *pair.shape)
        moved = np.concatenate([pair + moves, pair - moves])  # [4S, 2, C, R, R]
        sums = self(np.concatenate([moved[:, 0], moved[:, 1]])).reshape(2, -1).sum(0)
        plus, minus = np.split(sums, 2)
        return ((plus - minus) / (2 * step)).reshape(2, size)


def leaky(x):
    return np.where(x < 0, 0.2 * x, x)


@pytest.fixture(scope="module")
def judge():
    architecture = variant(resolution=8, channels=2, latent_size=4, fmap_base=8, fmap_max=4, stddev_group=2)
    network = Discriminator(architecture)
    initialize(network, 1, "d")
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            parameter.data = 0.2 * normal(*parameter.shape, seed=len(name))
    return network


@pytest.mark.parametrize(
    ("target", "reference", "missing"),
    [(1.0, NormReference.native, 0), (3.0, NormReference.official, 1), (0.0, NormReference.native, 0)],
)
@pytest.mark.parametrize("scale", [None, 1024.0])
@pytest.mark.parametrize("tangent", [False, True])
def test_the_penalty_and_its_gradient_are_those_of_finite_differences(
    judge, target, reference, missing, tangent, scale
):
    penalty = GradientPenalty(name="p", at=PenaltyAt.interpolated, weight=10.0, target=target, reference=reference)
    points = normal(2, 2, 8, 8, seed=3)
    naive = Judge(judge)

    def expected_penalty():
        norms = np.linalg.norm(naive.gradients(points.double().numpy()), axis=1) / 2**missing
        return 10 * (norms / target - 1) ** 2 if target else 10 * norms**2

    judge.zero_grad(set_to_none=True)
    how = PenaltyContext((penalty,), missing, None, None if scale is None else torch.tensor(scale), tangent)
    if jvp:
        found, scores = by_jvp(lambda images, *, parts=1: judge(images, 8, parts=parts), penalty, points, how)
        close(scores, naive(points.double().numpy()), rtol=1e-4, atol=1e-5)
    else:
        seen = points.clone().requires_grad_()
        found = by_autograd(penalty, seen, judge(seen, 8)[0], how)
    close(found, expected_penalty(), rtol=1e-4, atol=1e-5)

    found.sum().backward()
    step = 1e-4
    for name, parameter in judge.named_parameters():
        if name in ("from_rgb.4.weight", "from_rgb.4.bias"):
            assert parameter.grad is None  # not part of the network at 8x8
            continue
        index = tuple(int(n) for n in np.unravel_index(parameter.numel() // 2, parameter.shape))
        original = naive.values[name][index]
        values = []
        for sign in (1, -1):
            naive.values[name][index] = original + sign * step
            values.append(expected_penalty().sum())
        naive.values[name][index] = original
        slope = (values[0] - values[1]) / (2 * step)
        gradient = 0.0 if parameter.grad is None else parameter.grad[index].item()
        assert gradient == pytest.approx(slope, rel=5e-3, abs=2e-3), name


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
    found = by_autograd(penalty, x, scores, PenaltyContext((penalty,), 0, None, None, False))
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


def test_a_discriminator_of_zeros_gets_finite_gradients(judge):
    dead = Discriminator(judge.architecture)
    for parameter in dead.parameters():
        parameter.data.zero_()
    for loss in ALL:
        dead.zero_grad(set_to_none=True)
        same = normal(1, 2, 8, 8).repeat(2, 1, 1, 1)
        terms = for_d(
            loss,
            lambda images, *, parts=1: dead(images, 8, parts=parts),
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
def test_a_lazy_penalty_is_due_at_every_interval_th_update(interval, batch):
    penalty = GradientPenalty(name="p", at=PenaltyAt.reals, weight=1.0, interval=interval)
    for start in (0, batch * 1000, 100_001):  # a phase may begin at any image count
        due = [penalty.due(phase(batch=batch), start + update * batch) for update in range(5 * interval)]
        positions = [position for position, now in enumerate(due) if now]
        assert len(positions) == 5
        assert {later - earlier for earlier, later in itertools.pairwise(positions)} == {interval}


def test_a_lazy_penalty_is_due_at_the_first_update_of_a_run():
    assert GradientPenalty(name="p", at=PenaltyAt.reals, weight=1.0, reg_interval=8).due(phase(batch=16), 0)


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


# ---- running the discriminator ---------------------------------------------------------------------------


def watched_critic(weights):
    """A linear critic that remembers the batches that it was shown, one by one or joined."""
    seen = []

    def critic(images, *, parts=1):
        seen.extend(images.detach().clone().chunk(parts))
        return linear_critic(weights)(images)

    return critic, seen


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
def test_scores_of_reals_and_fakes_are_those_of_two_separate_batches(judge, loss, interval):
    # Minibatch stddev must not see reals and fakes as one batch.
    def critic(images, **options):
        return judge(images, 8, **options)

    reals, fakes = normal(4, 2, 8, 8), 3 * normal(4, 2, 8, 8, seed=1)
    for update in (0, 1):
        terms = for_d(
            dataclasses.replace(loss, interval=interval),
            critic,
            reals_of(reals.clone()),
            fakes.clone(),
            phase(batch=4, resolution=8),
            rng(4 * update),
        )
        naive = Judge(judge)
        close(terms.metrics["scores/reals"], naive(reals.double().numpy()), atol=2e-5, rtol=1e-5)
        close(terms.metrics["scores/fakes"], naive(fakes.double().numpy()), atol=2e-5, rtol=1e-5)


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

    def critic(images, *, parts=1):
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


def test_the_whole_wgan_gp_loss_of_a_linear_critic_is_the_sum_worked_by_hand():
    weights = torch.zeros(1, 4, 4)
    weights[0, 0, 0] = 3.0
    reals, fakes = torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 4)
    reals[:, 0, 0, 0], fakes[:, 0, 0, 0] = torch.tensor([1.0, 2.0]), torch.tensor([0.0, -1.0])
    terms = for_d(WGAN_GP, linear_critic(weights), reals_of(reals), fakes, phase(), rng())
    total = sum(term.mean() for term in terms.loss.values())
    # Scores 3, 6 and 0, -3: critic -3 and -9, drift .009 and .036, penalty 10 * (3 - 1)^2 = 40.
    assert total.item() == pytest.approx((-3 - 9) / 2 + (0.009 + 0.036) / 2 + 40, rel=1e-6)


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


def test_relativistic_g_terms_of_a_linear_critic_are_worked_by_hand():
    weights = torch.zeros(1, 4, 4)
    weights[0, 0, 0] = 1.0
    reals, fakes = torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 4)
    reals[:, 0, 0, 0], fakes[:, 0, 0, 0] = REAL, FAKE
    (term,) = RELATIVISTIC.for_g(linear_critic(weights), reals_of(reals), fakes).loss.values()
    close(term, [softplus(-2.0), softplus(3.0)], **ROUNDING)


# ---- labels ----------------------------------------------------------------------------------------------


def test_label_loss_is_the_cross_entropy_worked_by_hand():
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    labels = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    close(label_loss(logits, labels), [-math.log(E**2 / (E**2 + E + 1)), math.log(3)], **ROUNDING)


def test_label_terms_take_the_labels_of_reals_in_d_and_drawn_ones_in_g():
    def critic(images, *, parts=1):  # the logits are the first three pixels
        return images.flatten(1).sum(1), images.flatten(1)[:, :3]

    reals, fakes = torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4)
    reals[0, 0, 0, :3], fakes[0, 0, 0, :3] = torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0.0, 1.0, 3.0])
    batch = reals_of(reals, torch.eye(3)[:1], torch.eye(3)[2:])  # class 0 for the D step, class 2 for the G step
    terms = for_d(WGAN_GP, critic, batch, fakes, phase(batch=1), rng()).loss
    close(terms["D/labels_reals"], [math.log(E**2 + E + 1) - 2], **ROUNDING)
    close(terms["D/labels_fakes"], [math.log(1 + E + E**3)], **ROUNDING)
    terms = WGAN_GP.for_g(critic, batch, fakes).loss
    close(terms["G/labels_fakes"], [math.log(1 + E + E**3) - 3], **ROUNDING)


def test_there_are_no_label_terms_without_labels():
    critic, reals, fakes = linear_critic(normal(1, 4, 4)), reals_of(normal(2, 1, 4, 4)), normal(2, 1, 4, 4, seed=1)
    assert not [name for name in for_d(WGAN_GP, critic, reals, fakes, phase(), rng()).loss if "label" in name]
    assert not [name for name in WGAN_GP.for_g(critic, reals, fakes).loss if "label" in name]


# ---- by name ---------------------------------------------------------------------------------------------


def options_of(name):
    return dict(OmegaConf.load(CONFIGS / f"{name}.yaml"))


def test_every_loss_file_has_a_yaml_and_every_yaml_a_file():
    files = {path.stem for path in Path(pggan.losses.__file__).parent.glob("*.py")} - {"__init__", "base"}
    assert files == set(LOSSES) == {path.stem for path in CONFIGS.glob("*.yaml")}
    assert files


@pytest.mark.parametrize("name", LOSSES)
def test_the_yaml_of_a_loss_has_exactly_its_fields(name):
    options = options_of(name)
    assert set(options) == {"name", *(field.name for field in dataclasses.fields(loss_class(name)))}
    assert options["name"] == name
    loss = build_loss(options)
    assert type(loss) is loss_class(name)
    for key, value in options.items():
        if key != "name":
            found = getattr(loss, key)
            assert getattr(found, "value", found) == value


def test_the_default_wgan_gp_is_that_of_the_official_code():
    assert build_loss(options_of("wgan_gp")) == WganGp(
        penalty_weight=10.0, target=1.0, drift=0.001, gp_reference=NormReference.official, reg_interval=1
    )


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_refuses_an_option_it_does_not_have(name):
    with pytest.raises(UserError, match=r"loss\.penalty_wieght"):
        build_loss({**options_of(name), "penalty_wieght": 3.0})


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_refuses_to_be_built_without_one_of_its_options(name):
    for key in options_of(name):
        if key == "name":
            continue
        options = options_of(name)
        del options[key]
        with pytest.raises(UserError, match=rf"loss\.{key}"):
            build_loss(options)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_refuses_options_of_the_wrong_type(name):
    for key in options_of(name):
        if key == "name":
            continue
        for wrong in ("often", [1, 2], None):
            with pytest.raises(UserError, match=rf"loss\.{key}"):
                build_loss({**options_of(name), key: wrong})
    with pytest.raises(UserError, match=r"loss\.interval"):
        build_loss({**options_of(name), "interval": 1.5})


@pytest.mark.parametrize("name", ["wgan", "base"])
def test_an_unknown_loss_is_refused(name):
    with pytest.raises(UserError, match=name):
        build_loss({**options_of("wgan_gp"), "name": name})
