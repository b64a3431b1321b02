"""One training step: who learns from what, and by how much; and what `Trainer.step` does around it."""

import dataclasses
import math
from copy import deepcopy
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import pytest
import torch

from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses.logistic import Logistic
from pggan.losses.relativistic import Relativistic
from pggan.losses.wgan_gp import WganGp
from pggan.networks.networks import use_options
from pggan.networks.numerics import ComputeOptions
from pggan.optim.reducer import GradientReducer
from pggan.optim.state import new_state
from pggan.training.step import Trainer
from tests.definitions import ADAM, WGAN_GP, before_step, variant

CPU = torch.device("cpu")
ARCHITECTURE = variant(resolution=32, latent_size=6, fmap_base=32, fmap_max=6)
LOSSES = [WGAN_GP, Logistic(gamma=1.0, reg_interval=2), Relativistic(gamma=1.0, reg_interval=1)]


def phase_at(resolution=16, alpha=1.0, index=3, batch=4, rate_g=0.001, rate_d=0.002):
    missing = int(math.log2(ARCHITECTURE.resolution // resolution))
    return Phase(index, resolution, alpha < 1, alpha, 0, 10_000, batch, rate_g, rate_d, missing)


LAST = WeakKeyDictionary()  # the gradients of each network's last update


def state_of(seed=0, **changes):
    state = new_state(variant(ARCHITECTURE, **changes), ADAM, seed, CPU)
    remember(state.g)
    remember(state.d)
    return state


def reals_at(resolution=16, seed=0, count=4, labels=None, fake_labels=None):
    generator = torch.Generator().manual_seed(seed)
    return Reals(torch.randn(count, 3, resolution, resolution, generator=generator).clamp(-1, 1), labels, fake_labels)


def step(state, phase=None, reals=None, loss=WGAN_GP, ema_decay=0.9, seed=0, **options):
    """One step of a trainer of its own, which keeps moments unless asked otherwise; returns the metrics."""
    phase = phase or phase_at()
    reals = reals or reals_at(phase.resolution, seed=state.images, count=phase.batch)
    trainer = Trainer(state, loss, ComputeOptions(), **{"reset_at_phase": False, **options})
    return trainer.step(phase, reals, StepRng(seed, state.images, CPU), ema_decay)


def copies(network):
    return {name: parameter.detach().clone() for name, parameter in network.named_parameters()}


def gradients(network):
    """Those of the last update; none before the first."""
    return LAST.get(network, {})


def remember(trainable):
    """A step forgets its gradients; keep those that its optimizer saw."""

    def keep():
        named = trainable.network.named_parameters()
        LAST[trainable.network] = {name: p.grad.detach().clone() for name, p in named if p.grad is not None}

    before_step(trainable.optimizer, keep)


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@dataclass(frozen=True, kw_only=True)
class Watched(WganGp):
    """The paper's loss, with calls before D and G look at their images."""

    before_d: object = None
    before_g: object = None

    def for_d(self, critic, reals, fakes, context, transforms):
        self.before_d(reals, fakes)
        return super().for_d(critic, reals, fakes, context, transforms)

    def for_g(self, critic, reals, fakes, transforms):
        self.before_g(reals, fakes)
        return super().for_g(critic, reals, fakes, transforms)


def watching(before_d=lambda *_: None, before_g=lambda *_: None):
    return Watched(**dataclasses.asdict(WGAN_GP), before_d=before_d, before_g=before_g)


# ---- who gets a gradient ---------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_d_gets_no_gradient_from_the_step_of_g(loss):
    state, kept = state_of(), {}

    def remember(network, arguments):
        if not next(state.d.network.parameters()).requires_grad:  # the step of G
            kept.setdefault("gradients", gradients(network))
            kept.setdefault("weights", copies(network))

    state.d.network.register_forward_pre_hook(remember)
    step(state, loss=loss)
    assert kept["gradients"]
    assert equal(kept["gradients"], gradients(state.d.network))
    assert equal(kept["weights"], copies(state.d.network))


def test_g_gets_no_gradient_and_no_update_from_the_step_of_d():
    state = state_of()
    before, seen = copies(state.g.network), []

    def before_d(reals, fakes):
        seen.append(fakes.requires_grad)

    def before_g(reals, fakes):
        seen.append(gradients(state.g.network) == {} and equal(before, copies(state.g.network)))
        seen.append(fakes.requires_grad)

    step(state, loss=watching(before_d, before_g))
    assert seen == [False, True, True]
    assert not equal(before, copies(state.g.network))


def test_g_learns_from_the_d_that_has_just_been_updated():
    state, scores = state_of(), []

    def before_g(reals, fakes):
        scores.append(state.d.network(fakes.detach(), 16, 1.0)[0].detach())

    metrics = step(state, loss=watching(before_g=before_g))
    torch.testing.assert_close(metrics["G/wasserstein"], -scores[0], atol=1e-6, rtol=1e-6)


def test_weights_of_d_are_trainable_again_after_the_step():
    state = state_of()
    step(state)
    assert all(parameter.requires_grad for parameter in state.d.network.parameters())
    assert all(parameter.requires_grad for parameter in state.g.network.parameters())
    with use_options(state.d.network, ComputeOptions(), frozen=True):
        assert not any(parameter.requires_grad for parameter in state.d.network.parameters())
    with pytest.raises(InterruptedError), use_options(state.d.network, ComputeOptions(), frozen=True):
        raise InterruptedError
    assert all(parameter.requires_grad for parameter in state.d.network.parameters())


def test_gradients_of_an_earlier_step_are_forgotten():
    once, twice = state_of(), state_of()
    step(once)
    step(twice, reals=reals_at(seed=77))
    for trainable in (twice.g, twice.d):
        trainable.optimizer.state.clear()
    fresh = state_of()
    for name in ("g", "d"):
        getattr(twice, name).network.load_state_dict(getattr(fresh, name).network.state_dict())
    twice.images = 0
    step(twice, reals=reals_at(seed=0))
    assert equal(gradients(once.g.network), gradients(twice.g.network))
    assert equal(gradients(once.d.network), gradients(twice.d.network))


# ---- latents and labels ----------------------------------------------------------------------------------


def test_d_and_g_steps_draw_different_latents_and_so_does_each_step():
    state, latents = state_of(), []
    state.g.network.register_forward_pre_hook(lambda network, arguments: latents.append(arguments[0].clone()))
    step(state)
    step(state)
    assert [drawn.shape for drawn in latents] == [(4, 6)] * 4
    rows = {tuple(row.tolist()) for drawn in latents for row in drawn}
    assert len(rows) == 16  # no latent is seen twice


def test_latents_depend_on_the_seed_and_the_image_count_only():
    drawn = []
    for seed, images in ((0, 0), (0, 0), (1, 0), (0, 4)):
        state, latents = state_of(seed=9), []
        state.images = images
        state.g.network.register_forward_pre_hook(lambda network, arguments, into=latents: into.append(arguments[0]))
        step(state, seed=seed, reals=reals_at())
        drawn.append(torch.cat(latents))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[3])


def test_fakes_of_d_have_the_labels_of_its_reals_and_fakes_of_g_their_own():
    state, given = state_of(num_classes=3), []
    state.g.network.register_forward_pre_hook(lambda network, arguments: given.append(arguments[1].clone()))
    labels, drawn = torch.eye(3)[[0, 1, 2, 0]], torch.eye(3)[[2, 2, 1, 0]]
    metrics = step(state, reals=reals_at(labels=labels, fake_labels=drawn))
    assert torch.equal(given[0], labels)
    assert torch.equal(given[1], drawn)
    assert {"D/class_loss_reals", "D/class_loss_fakes", "G/class_loss_fakes"} <= set(metrics)


# ---- a step worked by hand -------------------------------------------------------------------------------


def adam_by_hand(weights, gradient, mean, square, count, rate):
    """Kingma & Ba with beta1 0 and beta2 0.99, in float64."""
    mean = gradient
    square = 0.99 * square + 0.01 * gradient**2
    return weights - rate * mean / ((square / (1 - 0.99**count)).sqrt() + 1e-8), mean, square


def test_two_steps_are_those_of_the_formulas():
    state, phase = state_of(), phase_at(resolution=8, alpha=0.4)  # two levels missing: norms are divided by 4
    g, d = deepcopy(state.g.network), deepcopy(state.d.network)
    average = {name: p.double() for name, p in copies(g).items()}
    squares = {id(p): torch.zeros(p.shape, dtype=torch.float64) for network in (g, d) for p in network.parameters()}
    for count in (1, 2):
        reals = reals_at(8, seed=count)
        rng = StepRng(5, state.images, CPU)
        z_d, z_g, mix = rng.normal("d_latents", 4, 6), rng.normal("g_latents", 4, 6), rng.uniform("mix", 4)

        def learn(network, loss, rate, count=count):
            used = [p for name, p in network.named_parameters()]
            found = torch.autograd.grad(loss, used, allow_unused=True)
            with torch.no_grad():
                for p, gradient in zip(used, found, strict=True):
                    if gradient is not None:
                        new, _, squares[id(p)] = adam_by_hand(
                            p.double(), gradient.double(), None, squares[id(p)], count, rate
                        )
                        p.copy_(new)

        fakes = g(z_d, None, 8, 0.4).detach()
        x, u = reals.images.clone(), mix[:, None, None, None]
        mixed = (x + u * (fakes - x)).requires_grad_()
        (slope,) = torch.autograd.grad(d(mixed, 8, 0.4)[0].sum(), mixed, create_graph=True)
        norm = slope.square().sum((1, 2, 3)).sqrt() / 4
        on_reals, on_fakes = d(x, 8, 0.4)[0], d(fakes, 8, 0.4)[0]
        loss_d = (on_fakes - on_reals + 10 * (norm - 1) ** 2 + 0.001 * on_reals**2).mean()
        learn(d, loss_d, 0.002)
        loss_g = -d(g(z_g, None, 8, 0.4), 8, 0.4)[0].mean()
        learn(g, loss_g, 0.001)
        average = {name: 0.9 * average[name] + 0.1 * p.double() for name, p in copies(g).items()}

        metrics = step(state, phase, reals, seed=5)
        assert metrics["D/loss"].item() == pytest.approx(loss_d.item(), rel=1e-4, abs=1e-4)
        assert metrics["G/loss"].item() == pytest.approx(loss_g.item(), rel=1e-4, abs=1e-4)

    for found, expected in ((state.g.network, copies(g)), (state.d.network, copies(d)), (state.g_ema, average)):
        for name, parameter in found.named_parameters():
            # Where a gradient is rounding only, Adam's step has an arbitrary sign, hence a few exceptions.
            off = (parameter.detach().double() - expected[name].double()).abs() > 2e-5
            assert off.double().mean() < 0.02, name


def test_the_first_adam_step_moves_each_weight_by_the_learning_rate_against_its_gradient():
    state = state_of()
    before_g, before_d = copies(state.g.network), copies(state.d.network)
    step(state, phase_at(rate_g=0.01, rate_d=0.003))
    for trainable, before, rate in ((state.g, before_g, 0.01), (state.d, before_d, 0.003)):
        for name, gradient in gradients(trainable.network).items():
            clear = gradient.abs() > 1e-5
            moved = trainable.network.get_parameter(name).detach() - before[name]
            torch.testing.assert_close(moved[clear], -rate * gradient[clear].sign(), atol=2e-5, rtol=2e-3)


def test_learning_rates_of_g_and_d_are_those_of_the_phase_at_every_step():
    state = state_of()
    for rate_g, rate_d in ((0.01, 0.003), (0.02, 0.0), (0.0, 0.001)):
        before_g, before_d = copies(state.g.network), copies(state.d.network)
        step(state, phase_at(rate_g=rate_g, rate_d=rate_d))
        assert equal(before_g, copies(state.g.network)) == (rate_g == 0)
        assert equal(before_d, copies(state.d.network)) == (rate_d == 0)
        assert (state.g.optimizer.learning_rate, state.d.optimizer.learning_rate) == (rate_g, rate_d)


def test_the_gradient_norms_shown_are_those_of_all_weights_together():
    state = state_of()
    metrics = step(state)
    for name, trainable in (("G", state.g), ("D", state.d)):
        total = math.sqrt(sum(g.double().square().sum().item() for g in gradients(trainable.network).values()))
        assert metrics[f"{name}/gradient_norm"].item() == pytest.approx(total, rel=1e-5)


def test_the_losses_shown_are_the_sums_of_the_means_of_their_terms():
    metrics = step(state_of())
    total = sum(metrics[name].double().mean().item() for name in ("D/wasserstein", "D/drift", "D/gradient_penalty"))
    assert metrics["D/loss"].item() == pytest.approx(total, rel=1e-5)
    assert metrics["G/loss"].item() == pytest.approx(metrics["G/wasserstein"].double().mean().item(), rel=1e-5)
    assert not any(value.requires_grad for value in metrics.values())


# ---- levels in use ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "rgb_in_use"), [(0.0, {"8", "16"}), (0.5, {"8", "16"}), (1.0, {"16"})])
def test_a_step_leaves_the_levels_that_are_not_in_use_as_they_are(alpha, rgb_in_use):
    state = state_of()
    networks = {"g": state.g.network, "d": state.d.network}
    step(state, phase_at(16, alpha=1.0))  # so that Adam has moments that could go on moving weights
    step(state, phase_at(8, alpha=0.5), reals_at(8))
    before = {key: copies(network) for key, network in networks.items()}
    step(state, phase_at(16, alpha=alpha))
    for key, network in networks.items():
        for name, parameter in network.named_parameters():
            part, level = name.split(".")[:2]
            in_use = level in rgb_in_use if part in ("to_rgb", "from_rgb") else level != "32"
            if not in_use:
                assert torch.equal(parameter, before[key][name]), (key, name)
            elif alpha == 0.5:
                assert not torch.equal(parameter, before[key][name]), (key, name)


def test_the_average_goes_on_following_levels_that_are_no_longer_in_use():
    state = state_of()
    step(state, phase_at(8, alpha=0.5), reals_at(8))
    weight, mean = state.g.network.to_rgb["4"].weight.detach(), state.g_ema.to_rgb["4"].weight
    apart = (mean - weight).abs().max()
    step(state, phase_at(16, alpha=1.0))
    assert 0 < (mean - weight).abs().max() < apart


def test_at_the_first_image_of_a_fade_new_layers_get_no_gradient_and_do_not_move():
    state = state_of()
    before_g, before_d = copies(state.g.network), copies(state.d.network)
    step(state, phase_at(16, alpha=0.0))
    for network, before, layers in (
        (state.g.network, before_g, ("blocks.16.", "to_rgb.16.")),
        (state.d.network, before_d, ("blocks.16.", "from_rgb.16.")),
    ):
        for name, parameter in network.named_parameters():
            if name.startswith(layers):
                torch.testing.assert_close(parameter.detach(), before[name], atol=1e-9, rtol=0)
            elif name.startswith("blocks.8."):
                assert not torch.equal(parameter, before[name]), name


def test_moments_belong_to_the_levels_in_use_only():
    state = state_of()
    step(state, phase_at(8), reals_at(8))
    for trainable in (state.g, state.d):
        for (name, _), param in zip(trainable.network.named_parameters(), trainable.optimizer.params, strict=True):
            levels = [int(part) for part in name.split(".") if part.isdecimal()]
            in_use = name.startswith(("stem", "head", "blocks.8.", "to_rgb.8.", "from_rgb.8."))
            assert (param in trainable.optimizer.state) == in_use, (name, levels)


# ---- clock and optimizer ---------------------------------------------------------------------------------


def test_the_clock_counts_real_images_and_remembers_the_phase():
    state = state_of()
    assert (state.images, state.phase_index) == (0, -1)
    step(state, phase_at(4, index=0, batch=4))
    assert (state.images, state.phase_index) == (4, 0)
    step(state, phase_at(8, alpha=0.5, index=1, batch=8))
    assert (state.images, state.phase_index) == (12, 1)


def test_a_step_is_a_function_of_state_reals_and_seed():
    one, other = state_of(), state_of()
    for _ in range(2):
        torch.randn(7)  # the global generator has no part in it
        first, second = step(one), step(other)
        assert equal(first, second)
    assert equal(copies(one.g.network), copies(other.g.network))
    assert equal(copies(one.g_ema), copies(other.g_ema))


def test_optimizers_are_the_papers_adam():
    state = state_of()
    for trainable in (state.g, state.d):
        optimizer = trainable.optimizer
        assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (0.0, 0.99, 1e-8)
        memory = [parameter.data_ptr() for parameter in trainable.network.parameters()]
        assert [param.data_ptr() for param in optimizer.params] == memory


def test_resetting_the_optimizers_clears_their_moments_and_begins_anew():
    state = state_of()
    for _ in range(3):
        step(state)
    assert all(trainable.optimizer.state for trainable in (state.g, state.d))
    state.reset_optimizers()
    assert not any(trainable.optimizer.state for trainable in (state.g, state.d))
    before = copies(state.g.network)
    step(state, phase_at(rate_g=0.01))
    for name, gradient in gradients(state.g.network).items():  # a first step again: by the rate, whatever the gradient
        clear = gradient.abs() > 1e-5
        moved = state.g.network.get_parameter(name).detach() - before[name]
        torch.testing.assert_close(moved[clear].abs(), torch.full_like(moved[clear], 0.01), atol=2e-5, rtol=2e-3)
        assert state.state_dict()["optimizer_g"][f"{name}/step"].item() == 1


# ---- direction -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_training_d_alone_tells_reals_from_fakes(loss):
    state, phase = state_of(), phase_at(8, rate_g=0.0, rate_d=0.003)
    bright = Reals(torch.full((4, 3, 8, 8), 0.8), None, None)
    for _ in range(60):
        metrics = step(state, phase, Reals(bright.images.clone(), None, None), loss)
    assert (metrics["scores/reals"].mean() - metrics["scores/fakes"].mean()).item() > 0.3


@pytest.mark.slow
def test_training_g_alone_raises_its_scores():
    state, phase = state_of(), phase_at(8, rate_g=0.005, rate_d=0.0)
    first = step(state, phase)["G/wasserstein"].mean().item()
    for _ in range(40):
        last = step(state, phase)["G/wasserstein"].mean().item()
    assert last < first - 0.1


def test_a_step_does_not_change_the_images_given():
    reals = reals_at()
    before = reals.images.clone()
    step(state_of(), reals=reals)
    assert torch.equal(reals.images.detach(), before)


# ---- the averaged generator ------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.999, 1.0])
def test_a_step_averages_by_the_decay_given(decay):
    state = state_of()
    step(state, ema_decay=0.5)
    before = copies(state.g_ema)
    step(state, ema_decay=decay)
    used = gradients(state.g.network)
    assert used
    assert not gradients(state.g_ema)
    for name, mean in state.g_ema.named_parameters():
        if name in used:
            weight = state.g.network.get_parameter(name).detach().double()
            expected = decay * before[name].double() + (1 - decay) * weight
            torch.testing.assert_close(mean.double(), expected, atol=1e-6, rtol=1e-6)
        else:
            assert torch.equal(mean, before[name])


# ---- numbers that are not finite -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Unbounded(WganGp):
    """The paper's loss, with a term that is not finite, and has no gradient, in the loss of one network."""

    of: str
    value: float

    def __post_init__(self):
        pass  # the value would be refused

    def d_terms(self, real_scores, fake_scores):
        more = {"D/more": torch.full_like(real_scores.detach(), self.value)} if self.of == "D" else {}
        return super().d_terms(real_scores, fake_scores) | more

    def g_terms(self, real_scores, fake_scores):
        more = {"G/more": torch.full_like(fake_scores.detach(), self.value)} if self.of == "G" else {}
        return super().g_terms(real_scores, fake_scores) | more


@pytest.mark.fault(26)
@pytest.mark.parametrize("name", ["D", "G"])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_an_update_is_skipped_for_a_loss_that_is_not_finite_though_its_gradient_is(name, value):
    state = state_of()
    before = {"D": copies(state.d.network), "G": copies(state.g.network)}
    metrics = step(state, loss=Unbounded(**dataclasses.asdict(WGAN_GP), of=name, value=value))
    for key, trainable in (("D", state.d), ("G", state.g)):
        assert metrics[f"{key}/gradient_norm"].isfinite()
        assert equal(before[key], copies(trainable.network)) == (key == name)
        assert int(trainable.skipped) == metrics[f"{key}/skipped"] == (key == name)
    assert state.images == 4  # shown all the same


# ---- what a trainer does around the step -----------------------------------------------------------------


def adam_steps(state):
    state_dicts = state.state_dict()
    moments = {**state_dicts["optimizer_g"], **state_dicts["optimizer_d"]}
    (count,) = {int(value) for name, value in moments.items() if name.endswith("/step")}
    return count


@pytest.mark.parametrize("reset", [True, False])
def test_moments_are_forgotten_when_a_phase_begins_if_configured_and_at_no_other_time(reset):
    state, counts = state_of(), []
    for index in (0, 0, 1, 1, 1):
        step(state, phase_at(8, index=index), reset_at_phase=reset)
        counts.append(adam_steps(state))
    assert counts == ([1, 2, 1, 2, 3] if reset else [1, 2, 3, 4, 5])


def test_a_resumed_phase_keeps_its_moments():
    """The phase of the last update is part of the state."""
    state, other = state_of(), state_of(seed=1)
    step(state, phase_at(8, index=2))
    other.load_state_dict(state.state_dict())
    other.images, other.phase_index = state.images, state.phase_index
    step(other, phase_at(8, index=2), reset_at_phase=True)
    assert adam_steps(other) == 2


class Recorded(GradientReducer):
    """Notes the calls."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def begin_step(self, phase, images):
        self.calls.append((phase.index, images))

    def accumulate(self, trainable, loss, batch):
        self.calls.append(batch)
        super().accumulate(trainable, loss, batch)


def test_the_reducer_is_told_of_each_step_before_it_gets_gradients():
    """The phase and the images shown before; then a gradient per micro-batch, of D and of G."""
    state, reducer = state_of(), Recorded()
    for index in (4, 5):
        step(state, phase_at(8, index=index), reducer=reducer, micro_batch_sizes={(8, 4): 4})
    assert reducer.calls == [(4, 0), 4, 4, (5, 4), 4, 4]
    reducer.calls.clear()
    step(state, phase_at(8, index=5, batch=8), reducer=reducer, micro_batch_sizes={(8, 8): 4, (16, 8): 2, (8, 4): 1})
    assert reducer.calls == [(5, 8), 8, 8, 8, 8]


def test_a_step_of_a_part_of_the_batch_has_the_random_numbers_of_its_images():
    state, latents = state_of(), []
    state.g.network.register_forward_pre_hook(lambda network, arguments: latents.append(arguments[0].clone()))
    mine = torch.tensor([1, 3])
    step(state, reals=reals_at(count=2), indices=lambda batch: mine if batch == 4 else None)
    rng = StepRng(0, 0, CPU)
    assert torch.equal(latents[0], rng.normal("d_latents", 4, 6)[mine])
    assert torch.equal(latents[1], rng.normal("g_latents", 4, 6)[mine])
