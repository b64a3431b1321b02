"""ADA in training: what D is shown, and p in a state and in a run that is resumed."""

import pytest
import torch

from pggan.checkpoints.read import newest_checkpoint
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses import Logistic
from pggan.losses.ada import Ada, AdaptiveP
from pggan.losses.base import Reals
from pggan.networks.layers import ComputeOptions
from pggan.optim.state import new_state
from pggan.run import train
from pggan.training.trainer import Trainer
from tests.definitions import WGAN_GP, variant

CPU = torch.device("cpu")
ARCHITECTURE = variant(resolution=16, latent_size=8, fmap_base=64, fmap_max=8)
LOGISTIC = Logistic(gamma=1.0, reg_interval=2)
PHASE = Phase(3, 8, True, 0.4, 0, 10_000, 8, 0.001, 0.002, 1)
LIVELY = ["augmentation=ada", "augmentation.target=0", "augmentation.rampup_images=200", "loss=wgan_gp"]


def take(loss, augmentation, p=0.5, indices=None, steps=1):
    """The state and the metrics after some steps, and all images that G made and D was shown."""
    state, made, shown = new_state(ARCHITECTURE, 0, CPU), [], []
    if augmentation is not None and augmentation.p is None:
        state.d.adaptive_p = AdaptiveP(
            CPU, target=loss.mean_sign(augmentation.target), rampup_images=augmentation.rampup_images
        )
        state.d.adaptive_p.p.fill_(p)
    state.g.network.register_forward_hook(lambda *call: made.append(call[-1].detach()))
    state.d.network.register_forward_pre_hook(lambda _, arguments: shown.append(arguments[0].detach()))
    trainer = Trainer(state, loss, ComputeOptions(), augmentation=augmentation, indices=lambda batch: indices)
    for number in range(steps):
        images = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(number)) * 2 - 1
        reals = Reals(images if indices is None else images[indices], None, None)
        metrics = trainer.step(PHASE, reals, StepRng(0, state.images, CPU), 0.9)
    return state, metrics, made, shown


def test_reals_and_fakes_of_both_passes_are_transformed_each_by_numbers_of_their_own():
    """Those of a part of the batch as in the whole."""
    augmentation, mine = Ada(p=0.85, target=0.6, rampup_images=1000), torch.tensor([1, 3, 5, 7])
    draws = augmentation.draw(StepRng(0, 0, CPU), 8)
    _, _, (of_d, of_g), shown = take(LOGISTIC, augmentation)
    reals = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    expected = [augmentation.apply(images, draws[:, k], None) for images, k in ((reals, 0), (of_d, 1), (of_g, 3))]
    for found, wanted in zip(shown, expected, strict=True):  # penalties are due, so that both batches are apart
        assert torch.equal(found, wanted.detach())
    _, _, _, part = take(LOGISTIC, augmentation, indices=mine)
    torch.testing.assert_close(part[0], shown[0][mine], atol=1e-5, rtol=0)


@pytest.mark.parametrize("loss", [LOGISTIC, WGAN_GP], ids=lambda loss: type(loss).__name__)
def test_p_follows_the_signs_that_are_reported_and_is_part_of_the_state(loss):
    state, metrics, *_ = take(loss, Ada(p=None, target=0.6, rampup_images=320), steps=4)
    assert metrics["augment/sign"].shape == (8,)
    assert metrics["augment/p"] == state.d.adaptive_p.p
    assert abs(metrics["augment/p"].item() - 0.5) == pytest.approx(0.1)  # 32 images of 320
    assert state.state_dict()["augmentation"]["p"] == metrics["augment/p"]
    for augmentation in (None, Ada(p=0.5, target=0.6, rampup_images=1000)):  # fixed, it needs no state
        state, metrics, *_ = take(loss, augmentation)
        assert "augmentation" not in state.state_dict()
        assert not [name for name in metrics if name.startswith("augment/")]


@pytest.mark.slow
def test_a_resumed_run_with_an_adapted_p_equals_the_uninterrupted_one(tiny_config, tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train.run(tiny_config(f"run_dir={whole}", *LIVELY))
    train.run(tiny_config(f"run_dir={halves}", *LIVELY, "schedule.total_images=104"))  # in the middle of an interval
    saved = newest_checkpoint(halves)[0].load("augmentation")
    assert (int(saved["updates"]), int(saved["images"])) == (1, 8)
    assert 0 < saved["p"] <= 0.85
    train.run(tiny_config(f"run_dir={halves}", *LIVELY))
    one, other = (newest_checkpoint(path)[0].header["state_sha256"] for path in (whole, halves))
    assert one == other
