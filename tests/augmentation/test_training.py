"""Training with augmentation: what D is shown in a step, and p as a part of the state."""

import math
from dataclasses import replace

import pytest
import torch
import yaml

from pggan.augmentation import build_augmentation
from pggan.augmentation.adaptive_p import AdaptiveP
from pggan.checkpoints.read import newest_checkpoint
from pggan.cli.commands import CONFIGS
from pggan.core.batch import Reals
from pggan.core.errors import UserError
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses.logistic import Logistic
from pggan.losses.relativistic import Relativistic
from pggan.networks.numerics import ComputeOptions
from pggan.optim.state import new_state, state_sha256
from pggan.run import train
from pggan.run.inspect import facts_of_run
from pggan.training.passes import d_forward, g_forward, make_fakes
from pggan.training.step import Trainer
from pggan.training.step_cost import StepCostEstimator
from pggan.training.trainer_factory import TrainerFactory, choose_augmentation
from tests.definitions import ADAM, WGAN_GP, variant
from tests.training.short_run import digest, short_run

CPU = torch.device("cpu")
ARCHITECTURE = variant(resolution=8, latent_size=6, fmap_base=32, fmap_max=6, stddev_group=2)
PHASE = Phase(3, 8, True, 0.5, 0, 10_000, 8, 0.001, 0.002, 0)
LOGISTIC = Logistic(gamma=1.0, reg_interval=1)
RELATIVISTIC = Relativistic(gamma=1.0, reg_interval=1)
QUICK = ["augmentation=ada", "augmentation.rampup_images=50", "augmentation.target=0.0"]


def made(name, **changes):
    return build_augmentation({**yaml.safe_load((CONFIGS / "augmentation" / f"{name}.yaml").read_text()), **changes})


def reals_of(count=8):
    images = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return Reals(images, None, None)


def take(loss=LOGISTIC, augmentation=None, p=None, **options):
    """The state after one step, and its metrics; `p`: where it begins."""
    state = new_state(ARCHITECTURE, ADAM, 0, CPU)
    state.d.adaptive_p = AdaptiveP.of(augmentation, loss.mean_sign, CPU)
    if p is not None:
        state.d.adaptive_p.p.fill_(p)
    trainer = Trainer(state, loss, ComputeOptions(**options), augmentation=augmentation, reset_at_phase=False)
    return state, trainer.step(PHASE, reals_of(), StepRng(0, 0, CPU), 0.9)


def weights(state):
    return torch.cat([weight.detach().flatten() for part in (state.g, state.d) for weight in part.network.weights])


# ---- a step ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jvp", [False, True], ids=["autograd", "jvp"])
@pytest.mark.parametrize(
    ("name", "loss"),
    [("ada", LOGISTIC), ("ada", RELATIVISTIC), ("ada", WGAN_GP), ("diffaugment", LOGISTIC)],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_every_loss_and_penalty_trains_and_micro_batches_give_the_same_update(name, loss, jvp):
    augmentation, p = made(name), 0.5 if name == "ada" else None
    whole, metrics = take(loss, augmentation, p, jvp=jvp)
    assert all(value.isfinite().all() for value in metrics.values())
    divided, _ = take(loss, augmentation, p, jvp=jvp, micro_batch_size=2)
    for one, other in zip(whole.d.optimizer.params, divided.d.optimizer.params, strict=True):
        if one in whole.d.optimizer.state:  # gradients are equal, up to the rounding of sums of 8 images
            mean, expected = (
                state.d.optimizer.state[param]["exp_avg"] for state, param in ((whole, one), (divided, other))
            )
            torch.testing.assert_close(mean, expected, atol=1e-4 * float(expected.abs().max()) + 1e-7, rtol=0)
    assert not torch.equal(weights(whole), weights(take(loss, jvp=jvp)[0]))


def test_reals_and_fakes_of_both_passes_have_random_numbers_of_their_own():
    state = new_state(ARCHITECTURE, ADAM, 0, CPU)
    shown = []
    state.d.network.register_forward_pre_hook(lambda network, arguments: shown.append(arguments[0].detach().clone()))
    trainer = Trainer(state, RELATIVISTIC, ComputeOptions(), augmentation=made("ada", p=0.85))
    inputs = []
    fakes = []
    trainer.passes = trainer.passes._replace(
        fakes=lambda *arguments: fakes.append(make_fakes(*arguments)) or fakes[-1],
        d=lambda *arguments, **options: inputs.append(options["augment"]) or d_forward(*arguments, **options),
        g=lambda *arguments, **options: inputs.append(options["augment"]) or g_forward(*arguments, **options),
    )
    reals = reals_of()
    trainer.step(PHASE, reals, StepRng(0, 0, CPU), 0.9)
    numbers = inputs[0]
    assert torch.equal(numbers, inputs[1])
    images = reals.images, fakes[0], reals.images, fakes[1]  # in D's pass, then in G's
    for transform, (given, found) in enumerate(zip(images, shown, strict=True)):
        assert torch.equal(found, trainer.augmentation.apply(given, numbers[:, transform], None))
        for other in range(transform):
            assert not torch.equal(numbers[:, transform], numbers[:, other])


def test_a_step_of_a_part_of_the_batch_transforms_its_images_as_in_the_whole():
    augmentation, mine = made("ada", p=0.85), torch.tensor([1, 3, 5, 7])
    seen = []
    for indices in (None, mine):
        state = new_state(ARCHITECTURE, ADAM, 0, CPU)
        trainer = Trainer(state, LOGISTIC, ComputeOptions(), augmentation=augmentation, indices=lambda _, i=indices: i)
        state.d.network.register_forward_pre_hook(lambda network, arguments: seen.append(arguments[0].detach()))
        reals = reals_of() if indices is None else reals_of().select(indices)
        trainer.step(PHASE, reals, StepRng(0, 0, CPU), 0.9)
    # Coordinates of equal matrices are equal; only vectorised loops may round a remainder otherwise.
    torch.testing.assert_close(seen[3], seen[0][mine], atol=1e-5, rtol=0)


# ---- p -----------------------------------------------------------------------------------------------------


def test_signs_of_reals_are_those_of_scores_where_0_has_a_meaning_and_of_differences_elsewhere():
    real, fake = torch.tensor([3.0, -1.0, 2.0, 0.0]), torch.tensor([4.0, -2.0, 0.0, 0.0])
    assert LOGISTIC.signs(real, fake).tolist() == [1, -1, 1, 0]
    for loss in (RELATIVISTIC, WGAN_GP):
        assert loss.signs(real, fake).tolist() == [-1, 1, 1, 0]


def test_the_mean_sign_of_differences_is_that_of_equally_separated_normal_scores():
    generator = torch.Generator().manual_seed(0)
    assert LOGISTIC.mean_sign(0.6) == 0.6
    for target in (0.0, 0.3, 0.6):
        expected = RELATIVISTIC.mean_sign(target)
        middle = torch.special.ndtri(torch.tensor((1 + target) / 2, dtype=torch.float64))  # so that P(score > 0) fits
        noise = torch.randn(2, 100_000, generator=generator, dtype=torch.float64)
        real, fake = middle + noise[0], noise[1] - middle
        assert real.sign().mean().item() == pytest.approx(target, abs=5 / math.sqrt(100_000))
        assert RELATIVISTIC.signs(real, fake).mean().item() == pytest.approx(expected, abs=5 / math.sqrt(100_000))


@pytest.mark.parametrize("loss", [LOGISTIC, RELATIVISTIC, WGAN_GP], ids=lambda loss: type(loss).__name__)
def test_p_follows_the_signs_that_are_reported(loss):
    augmentation = made("ada", interval=1, rampup_images=100)
    state, metrics = take(loss, augmentation, p=0.5)
    sign, target = metrics["augment/sign"].mean().item(), loss.mean_sign(0.6)
    assert metrics["augment/sign"].shape == (8,)
    assert state.d.adaptive_p.p.item() == pytest.approx(0.5 + 0.08 * (1 if sign > target else -1))
    assert metrics["augment/p"] == state.d.adaptive_p.p
    fixed, metrics = take(loss, made("ada", p=0.5))
    assert fixed.d.adaptive_p is None
    assert not [name for name in metrics if name.startswith("augment/")]


def test_without_augmentation_nothing_is_drawn_summed_or_saved():
    state, metrics = take()
    assert set(state.state_dict()) == {
        "generator",
        "discriminator",
        "generator_ema",
        "optimizer_g",
        "optimizer_d",
        "grad_scaler",
    }
    assert not [name for name in metrics if name.startswith("augment/")]


def test_a_dry_run_leaves_p_as_it_was():
    def start(trainer):
        if trainer.state.d.adaptive_p is None:
            trainer.augmentation = made("ada", interval=1, rampup_images=100)
            trainer.state.d.adaptive_p = AdaptiveP.of(trainer.augmentation, LOGISTIC.mean_sign, CPU)

    found = [digest(short_run(LOGISTIC, images=40, dry_run=dry_run, before_step=start)[0]) for dry_run in (False, True)]
    assert found[0] == found[1]


# ---- a run -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_resumed_run_with_an_adapted_p_equals_the_uninterrupted_one(tiny_config, tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train.run(tiny_config(f"run_dir={whole}", *QUICK))
    train.run(tiny_config(f"run_dir={halves}", *QUICK, "schedule.total_images=104"))  # in the middle of an interval
    saved = newest_checkpoint(halves)[0].load("augmentation")
    assert (int(saved["updates"]), int(saved["images"])) == (1, 8)
    assert 0 < saved["p"] <= 0.85
    train.run(tiny_config(f"run_dir={halves}", *QUICK))
    assert facts_of_run(whole)["state_sha256"] == facts_of_run(halves)["state_sha256"]


@pytest.mark.slow
def test_a_run_without_augmentation_goes_on_with_it_from_p_0_and_back(tiny_config, tmp_path):
    short = ["schedule.final_resolution=4"]
    for images, more in ((16, []), (24, QUICK), (32, [])):
        train.run(tiny_config(f"run_dir={tmp_path}", *short, *more, f"schedule.total_images={images}"))
        assert bool(newest_checkpoint(tmp_path)[0].load("augmentation")) == bool(more)
    assert "augmentation.name: none -> ada" in (tmp_path / "train.log").read_text()


# ---- what it needs -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_steps_with_augmentation_are_counted_without_memory(device):
    def peak(augmentation):
        factory = TrainerFactory(LOGISTIC, ADAM, augmentation=augmentation)
        fake = StepCostEstimator(ARCHITECTURE, factory, torch.device(device))
        return fake.kernels(PHASE).peak_bytes if device == "meta" else fake.peak_bytes(PHASE)

    assert peak(made("ada")) > peak(None)
    assert peak(made("diffaugment")) > peak(None)


def test_moving_pixels_are_refused_where_cuda_can_not_repeat_bits_or_the_compiler_would_fail(tiny_config):
    given, cuda = tiny_config("augmentation=ada", "augmentation.blit=false"), torch.device("cuda")

    def choose(device, augmentation=given.augmentation, **compute):
        config = replace(given, augmentation=augmentation, compute=replace(given.compute, **compute))
        return choose_augmentation(config, device)

    with pytest.raises(UserError, match="deterministic=true does not work with augmentation=ada"):
        choose(cuda, deterministic=True)
    with pytest.raises(UserError, match="compile=true does not work with augmentation=ada"):
        choose(CPU, compile=True)
    choose(CPU, deterministic=True)
    choose(cuda)
    for unmoved in ({**given.augmentation, "geometry": False}, {"name": "none"}):
        choose(cuda, unmoved, deterministic=True, compile=True)


def test_the_digest_of_a_state_covers_p():
    state, found = new_state(ARCHITECTURE, ADAM, 0, CPU), set()
    state.d.adaptive_p = AdaptiveP.of(made("ada"), float, CPU)
    for p in (0.1, 0.2):
        state.d.adaptive_p.p.fill_(p)
        found.add(state_sha256(state.state_dict(), 0, 0))
    assert len(found) == 2
