"""What a state holds, and that nothing of it is lost on the way through its tensors."""

import pytest
import torch

from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses.base import Reals
from pggan.networks.layers import ComputeOptions
from pggan.optim.state import GROWTH_INTERVAL, INIT_SCALE, MAX_SCALE, new_state, state_sha256
from pggan.training.trainer import Trainer
from tests.definitions import WGAN_GP, variant

CPU = torch.device("cpu")
ARCHITECTURE = variant(resolution=16, latent_size=6, fmap_base=24, fmap_max=6)


def state_of(seed=0, **changes):
    return new_state(variant(ARCHITECTURE, **changes), seed, CPU)


def train(state, steps, resolution=8, alpha=0.6):
    phase = Phase(1, resolution, alpha < 1, alpha, 0, 1000, 4, 0.001, 0.002, 1)
    trainer = Trainer(state, WGAN_GP, ComputeOptions())
    state.phase_index = phase.index  # moments are kept
    for _ in range(steps):
        images = torch.randn(4, 3, resolution, resolution, generator=torch.Generator().manual_seed(state.images))
        trainer.step(phase, Reals(images, None, None), StepRng(0, state.images, CPU), 0.9)
    return state


def saved(state):
    """A copy of everything that `tensors` gives, as a file would hold it: without memory layout."""
    return {
        component: {
            name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
        }
        for component, tensors in state.state_dict().items()
    }


def digest(state):
    return state_sha256(state.state_dict(), state.images, state.phase_index)


@pytest.fixture(scope="module")
def trained():
    return train(state_of(), 3)


# ---- skipped updates and the loss scale ------------------------------------------------------------------


@pytest.fixture
def scaled():
    """A discriminator whose loss is scaled, with a gradient for its first weight."""
    trainable = new_state(ARCHITECTURE, 0, CPU, half=True).d
    weight = trainable.network.weights[0]
    weight.grad = torch.ones_like(weight)
    return trainable


@pytest.mark.parametrize(
    ("scale", "since", "finite", "expected"),
    [
        (INIT_SCALE, GROWTH_INTERVAL - 3, True, (INIT_SCALE, GROWTH_INTERVAL - 2)),
        (INIT_SCALE, GROWTH_INTERVAL - 1, True, (INIT_SCALE * 2, 0)),
        (INIT_SCALE, GROWTH_INTERVAL - 1, False, (INIT_SCALE / 2, 0)),
        (MAX_SCALE, GROWTH_INTERVAL - 1, True, (MAX_SCALE, 0)),
        (1.0, 5, False, (1.0, 0)),
    ],
)
def test_the_loss_scale_doubles_after_so_many_updates_in_a_row_and_halves_with_one_that_is_skipped(
    scaled, scale, since, finite, expected
):
    scaled.scale.fill_(scale)
    scaled.since_scaling.fill_(since)
    scaled.skipped.fill_(4)
    wrong = torch.tensor(not finite)
    scaled.update(0.001, wrong, wrong.float())
    assert (float(scaled.scale), int(scaled.since_scaling)) == expected
    assert int(scaled.skipped) == (0 if finite else 5)  # in a row


def test_the_norm_and_the_update_are_those_of_the_gradient_before_the_loss_was_scaled(scaled):
    weight = scaled.network.weights[0]
    weight.grad = torch.full_like(weight, INIT_SCALE * 0.5)
    assert float(scaled.gradient_norm()) == pytest.approx(0.5 * weight.numel() ** 0.5)
    scaled.update(0.001, torch.tensor(False), torch.tensor(0.0))
    (square,) = (value for name, value in scaled.optimizer.state[weight].items() if "sq" in name)
    torch.testing.assert_close(square, torch.full_like(square, 0.01 * 0.25))  # (1 - beta2) g^2


@pytest.mark.parametrize("half", [False, True])
def test_a_run_may_resume_in_another_precision(half):
    saved_state = new_state(ARCHITECTURE, 0, CPU, half=not half)
    saved_state.g.skipped.fill_(3)
    other = new_state(ARCHITECTURE, 1, CPU, half=half)
    other.load_state_dict(saved_state.state_dict())
    assert int(other.g.skipped) == 3
    assert (other.g.scale is not None) == half
    assert not half or float(other.g.scale) == INIT_SCALE


# ---- tensors and back ------------------------------------------------------------------------------------


def test_loading_forgets_the_moments_that_were_there(trained):
    other = train(state_of(3), 2, resolution=16, alpha=0.5)  # has moments at 16, which `trained` has not
    other.load_state_dict(saved(trained))
    other.images, other.phase_index = trained.images, trained.phase_index
    assert digest(other) == digest(trained)


def test_weights_and_moments_of_other_networks_are_refused(trained):
    """Fused Adam would read a moment that is too small beyond its end."""
    moment = next(name for name in saved(trained)["optimizer_g"] if name.endswith("exp_avg"))
    for component, changes in (
        ("generator", {"more": torch.zeros(1)}),
        ("optimizer_g", {moment: torch.zeros(2, 2)}),
        ("optimizer_d", {"more/exp_avg": torch.zeros(1)}),
    ):
        state_dicts = saved(trained)
        state_dicts[component] |= changes
        with pytest.raises(RuntimeError):
            state_of().load_state_dict(state_dicts)
    with pytest.raises(RuntimeError):
        state_of(fmap_max=5).load_state_dict(saved(trained))


# ---- the digest ------------------------------------------------------------------------------------------


def test_the_digest_depends_on_clock_names_types_shapes_and_every_bit_and_on_neither_order_nor_layout(trained):
    state_dicts = saved(trained)
    same = {
        component: {
            name: tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
            for name, tensor in reversed(tensors.items())
        }
        for component, tensors in reversed(state_dicts.items())
    }
    assert state_sha256(same, 5, 1) == state_sha256(state_dicts, 5, 1)
    digests = [state_sha256(state_dicts, images, phase) for images in (0, 1, 11) for phase in (-1, 0, 1)]
    for component, tensors in state_dicts.items():
        for name, tensor in list(tensors.items())[::7]:
            changed = tensor.clone()
            changed.view(-1).view(torch.uint8)[-1] ^= 1
            others = [{**tensors, name: changed}, {**tensors, name: tensor[None]}]
            other_type = torch.float32 if tensor.dtype == torch.int32 else torch.int32
            others += [{**tensors, name: tensor.view(other_type)}, {**tensors, f"{name}2": tensor}]
            digests += [state_sha256({**state_dicts, component: other}, 0, 0) for other in others]
    assert len(digests) > 90
    assert len(set(digests)) == len(digests)
