"""One training step, against the formulas written out; and every way of computing it gives the same step."""

import dataclasses
import math
from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses import Logistic, Relativistic, WganGp
from pggan.losses.ada import AdaptiveP, augment, draw
from pggan.losses.base import Reals
from pggan.networks.layers import ComputeOptions
from pggan.ops.convolution import switched
from pggan.optim.state import GROWTH_INTERVAL, INIT_SCALE, new_state
from pggan.optim.updates import flatten_storage
from pggan.training.trainer import Trainer
from tests.definitions import WGAN_GP, before_step, variant

CPU = torch.device("cpu")
ARCHITECTURE = variant(resolution=32, latent_size=6, fmap_base=32, fmap_max=6)
LOSSES = {
    "wgan_gp": WGAN_GP,
    "logistic": Logistic(gamma=3.0, reg_interval=2),
    "relativistic": Relativistic(gamma=3.0, reg_interval=1),
}


class PreciseRng(StepRng):
    """The same random numbers in float64."""

    def normal(self, purpose, *shape):
        return super().normal(purpose, *shape).double()

    def uniform(self, purpose, *shape):
        return super().uniform(purpose, *shape).double()


def phase_at(resolution=16, alpha=1.0, index=3, batch=4, rate_g=0.001, rate_d=0.002):
    missing = int(math.log2(ARCHITECTURE.resolution // resolution))
    return Phase(index, resolution, alpha < 1, alpha, 0, 10_000, batch, rate_g, rate_d, missing)


def reals_at(resolution=16, seed=0, count=4, labels=None, fake_labels=None):
    generator = torch.Generator().manual_seed(seed)
    return Reals(torch.randn(count, 3, resolution, resolution, generator=generator).clamp(-1, 1), labels, fake_labels)


def state_of(dtype=torch.float32, **changes):
    state = new_state(variant(ARCHITECTURE, **changes), 0, CPU)
    for network in (state.g.network, state.d.network, state.g_ema):
        network.to(dtype)
    state.flat_weights, state.flat_averages = (
        flatten_storage(state.g.network.weights),
        flatten_storage(state.g_ema.weights),
    )
    return state


def step(state, phase=None, reals=None, loss=WGAN_GP, options=ComputeOptions(), rng=StepRng, decay=0.9, **more):  # noqa: B008
    """One step of a trainer of its own, which keeps moments; returns the metrics."""
    phase = phase or phase_at()
    reals = reals or reals_at(phase.resolution, seed=state.images, count=phase.batch)
    trainer = Trainer(state, loss, options, **more)
    state.phase_index = phase.index
    return trainer.step(phase, reals, rng(0, state.images, CPU), decay)


def copies(network):
    return {name: parameter.detach().clone() for name, parameter in network.named_parameters()}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def norms_at(d, images):
    """The norms of the gradient of D's scores at images that are enlarged by two levels, as in the official code."""
    images = images.clone().requires_grad_()
    (slope,) = torch.autograd.grad(d(images).sum(), images, create_graph=True)
    return slope.square().sum((1, 2, 3)).sqrt() / 4


def losses_by_hand(name, d, see, reals, fakes, mix, count):
    """D's loss, and G's as a function of fakes, as the papers have them; two levels are missing.

    see(images, k): what D is shown of reals and fakes in its own step (0, 1), and in G's (2, 3).
    """
    on_reals, on_fakes = d(see(reals, 0)), d(see(fakes, 1))
    at_reals, at_fakes = norms_at(lambda x: d(see(x, 0)), reals), norms_at(lambda x: d(see(x, 1)), fakes)
    if name == "wgan_gp":
        norm = norms_at(d, see(reals, 0) + mix * (see(fakes, 1) - see(reals, 0)))
        loss_d = (on_fakes - on_reals + 10 * (norm - 1) ** 2 + 0.001 * on_reals**2).mean()
        return loss_d, lambda x: -d(see(x, 3)).mean()
    if name == "logistic":  # R1 at every second step, twice as large
        penalty = 2 * 3 / 2 * at_reals**2 if count == 1 else 0.0
        of_g = lambda x: F.softplus(-d(see(x, 3))).mean()  # noqa: E731
        return (F.softplus(-on_reals) + F.softplus(on_fakes) + penalty).mean(), of_g
    loss_d = (F.softplus(on_fakes - on_reals) + 3 / 2 * (at_reals**2 + at_fakes**2)).mean()
    return loss_d, lambda x: F.softplus(d(see(reals, 2)) - d(see(x, 3))).mean()


WAYS = {
    "plain": {"options": ComputeOptions(reference=True)},
    "fast": {},
    "in parts of 8 and 4": {"micro_batch_size": lambda batch: 8},
    "in parts of 4": {"micro_batch_size": lambda batch: 4},
}


WIDE = {"fmap_base": 1024, "fmap_max": 128}
CASES = [
    *((name, way, {}, False) for name in LOSSES for way in WAYS),
    *((name, "in parts of 8 and 4", {}, True) for name in LOSSES),
    ("wgan_gp", "fast", WIDE, False),
    ("relativistic", "in parts of 8 and 4", WIDE, False),
]


@pytest.mark.parametrize(("name", "way", "sizes", "augmented"), CASES, ids=str)
def test_two_steps_are_those_of_the_formulas(name, way, sizes, augmented):
    """In float64, so that no gradient is rounding alone; wide layers take other algorithms."""
    state, phase, p = state_of(torch.float64, **sizes), phase_at(8, alpha=0.4, batch=12), torch.tensor(0.6)
    if augmented:
        state.d.adaptive_p = AdaptiveP(CPU, target=0.6, rampup_images=1000)
        state.d.adaptive_p.p.copy_(p)
    g, d, average = deepcopy(state.g.network), deepcopy(state.d.network), copies(state.g.network)
    squares = {}

    def learn(network, loss, rate, count):
        """Kingma and Ba with beta1 0 and beta2 0.99."""
        used = [weight for weight in network.parameters()]
        for weight, slope in zip(used, torch.autograd.grad(loss, used, allow_unused=True), strict=True):
            if slope is not None:
                square = squares[weight] = 0.99 * squares.get(weight, 0) + 0.01 * slope**2
                weight.data -= rate * slope / ((square / (1 - 0.99**count)).sqrt() + 1e-8)

    for count in (1, 2):
        rng, reals = PreciseRng(0, state.images, CPU), reals_at(8, seed=count, count=12)
        reals = reals._replace(images=reals.images.double())
        z_d, z_g, mix = rng.normal("d_latents", 12, 6), rng.normal("g_latents", 12, 6), rng.uniform("mix", 12, 1, 1, 1)
        with switched(reference=True):
            fakes = g(z_d, None, 8, 0.4).detach()
            draws = draw(rng, 12)

            def see(images, k, draws=draws):
                return augment(images, draws[:, k], p) if augmented else images

            loss_d, of_g = losses_by_hand(name, lambda x: d(x, 8, 0.4)[0], see, reals.images, fakes, mix, count)
            learn(d, loss_d, 0.002, count)
            loss_g = of_g(g(z_g, None, 8, 0.4))
            learn(g, loss_g, 0.001, count)
        average = {name: 0.9 * mean + 0.1 * copies(g)[name] for name, mean in average.items()}
        metrics = step(state, phase, reals, LOSSES[name], rng=PreciseRng, **WAYS[way])
        found = [metrics[f"{key}/loss"].item() for key in "DG"]
        assert found == pytest.approx([loss_d.item(), loss_g.item()], rel=1e-6, abs=1e-6)
        assert metrics["scores/fakes"].shape == (12,)  # of all parts
    for network, expected in ((state.g.network, copies(g)), (state.d.network, copies(d)), (state.g_ema, average)):
        for key, weight in network.named_parameters():
            torch.testing.assert_close(weight.detach(), expected[key], rtol=0, atol=1e-7, msg=key)


def first_gradients(options, name, **changes):
    """The gradients of D and G in a step in which D does not move, and the metrics."""
    state, found = new_state(variant(ARCHITECTURE, **changes), 0, CPU, half=options.dtype is torch.float16), []
    for trainable in (state.d, state.g):
        before_step(
            trainable.optimizer,
            lambda of=trainable: found.append(torch.cat([weight.grad.flatten() for weight in of.weights_in_use])),
        )
    metrics = step(state, phase_at(16, alpha=0.4, batch=12, rate_d=0.0), None, LOSSES[name], options)
    return found, metrics


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.2), (torch.float16, 0.08)])
def test_gradients_in_half_precision_are_close_to_those_in_float32(name, dtype, bound):
    """Kinks make most of the difference: a share of the slopes that is in proportion to the root of a rounding."""
    sizes = {"fmap_base": 512, "fmap_max": 32}
    full, _ = first_gradients(ComputeOptions(), name, **sizes)
    half, metrics = first_gradients(ComputeOptions(dtype=dtype), name, **sizes)
    assert {value.dtype for value in metrics.values()} == {torch.float32}  # scores, losses and penalties
    for found, expected in zip(half, full, strict=True):
        difference = found / (INIT_SCALE if dtype is torch.float16 else 1) - expected
        assert 0 < difference.norm() < bound * expected.norm()


def test_a_step_reports_whole_losses_norms_and_each_term():
    state, norms = state_of(), []
    for trainable in (state.d, state.g):
        before_step(
            trainable.optimizer,
            lambda of=trainable: norms.append(
                math.sqrt(sum(w.grad.double().square().sum() for w in of.weights_in_use))
            ),
        )
    metrics = step(state)
    assert [metrics[f"{name}/gradient_norm"].item() for name in "DG"] == pytest.approx(norms, rel=1e-5)
    terms = sum(metrics[name].double().mean().item() for name in ("D/wasserstein", "D/drift", "D/gradient_penalty"))
    assert metrics["D/loss"].item() == pytest.approx(terms, rel=1e-5)
    assert not any(value.requires_grad for value in metrics.values())
    assert (state.images, state.phase_index) == (4, 3)


# ---- what is drawn, and what is in use ----------------------------------------------------------------------


def test_fakes_of_d_have_the_labels_of_its_reals_and_fakes_of_g_their_own():
    state, given = state_of(num_classes=3), []
    state.g.network.register_forward_pre_hook(lambda network, arguments: given.append(arguments[1].clone()))
    labels, drawn = torch.eye(3)[[0, 1, 2, 0]], torch.eye(3)[[2, 2, 1, 0]]
    metrics = step(state, reals=reals_at(labels=labels, fake_labels=drawn))
    assert torch.equal(given[0], labels)
    assert torch.equal(given[1], drawn)
    assert {"D/class_loss_reals", "D/class_loss_fakes", "G/class_loss_fakes"} <= set(metrics)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_a_step_moves_the_levels_in_use_and_no_others(alpha):
    """Though Adam has moments that could go on moving weights."""
    state = state_of()
    step(state, phase_at(8, alpha=0.5))
    step(state, phase_at(16))
    before = [copies(trainable.network) for trainable in (state.g, state.d)]
    apart = (state.g_ema.to_rgb["4"].weight - before[0]["to_rgb.4.weight"]).abs().max()
    step(state, phase_at(16, alpha=alpha))
    assert 0 < (state.g_ema.to_rgb["4"].weight - before[0]["to_rgb.4.weight"]).abs().max() < apart  # it goes on
    for trainable, old in zip((state.g, state.d), before, strict=True):
        for name, weight in trainable.network.named_parameters():
            part, level = name.split(".")[:2]
            unused = ({"4", "32"} if alpha < 1 else {"4", "8", "32"}) if "rgb" in part else {"32"}
            if level in unused or alpha == 0.5:
                assert torch.equal(weight, old[name]) == (level in unused), name


# ---- numbers that are not finite, and the loss scale --------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Spoilt(WganGp):
    """The paper's loss with a term in one network's loss that is not finite, or 0 with a gradient that is not."""

    of: str
    value: float
    gradient: bool

    def spoil(self, name, terms, scores):
        change = (scores - scores.detach()).abs().sqrt() if self.gradient else scores.detach() * 0
        more = {f"{name}/more": change + self.value}
        return terms | more if self.of == name else terms

    def d_terms(self, real_scores, fake_scores):
        return self.spoil("D", super().d_terms(real_scores, fake_scores), fake_scores)

    def g_terms(self, real_scores, fake_scores):
        return self.spoil("G", super().g_terms(real_scores, fake_scores), fake_scores)


@pytest.mark.parametrize("name", ["D", "G"])
@pytest.mark.parametrize(("value", "gradient"), [(math.inf, False), (math.nan, False), (0.0, True)])
@pytest.mark.parametrize("half", [False, True])
def test_an_update_whose_loss_or_gradient_is_not_finite_is_skipped_counted_and_halves_the_scale(
    name, value, gradient, half
):
    state = new_state(ARCHITECTURE, 0, CPU, half=half)
    of = {"D": state.d, "G": state.g}
    before = {key: copies(trainable.network) for key, trainable in of.items()}
    for trainable in of.values():
        trainable.since_scaling.fill_(GROWTH_INTERVAL - 1)
    metrics = step(state, loss=Spoilt(**dataclasses.asdict(WGAN_GP), of=name, value=value, gradient=gradient))
    for key, trainable in of.items():
        skipped = key == name
        assert equal(before[key], copies(trainable.network)) == skipped
        assert int(trainable.skipped) == metrics[f"{key}/skipped"] == skipped
        assert not half or trainable.scale == INIT_SCALE * (0.5 if skipped else 2)
        assert {float(moments["step"]) for moments in trainable.optimizer.state.values()} == {0.0 if skipped else 1.0}
    assert state.images == 4  # shown all the same
    assert step(state)[f"{name}/skipped"] == 0
    assert all(tensor.isfinite().all() for tensors in state.state_dict().values() for tensor in tensors.values())
