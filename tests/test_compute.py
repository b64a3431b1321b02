"""Other ways of calculating a step: micro-batches, tangents, recomputation, half precision, skipped updates."""

import dataclasses
import math

import pytest
import torch

from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses.logistic import Logistic
from pggan.losses.relativistic import Relativistic
from pggan.networks.convolution import DIRECT, IM2COL, NATIVE, WINOGRAD
from pggan.networks.numerics import ComputeOptions
from pggan.optim.state import FIRST_SCALE, SCALE_INTERVAL, new_state
from pggan.training.step import train_step
from tests.definitions import ADAM, WGAN_GP, variant

CPU = torch.device("cpu")
LOSSES = {
    "wgan_gp": WGAN_GP,
    "logistic": Logistic(gamma=1.0, reg_interval=1),
    "relativistic": Relativistic(gamma=1.0, reg_interval=1),
}
ARCHITECTURE = variant(resolution=32, labels=2, latent_size=8, fmap_base=64, fmap_max=16)


class PreciseDraws(StepRng):
    def normal(self, purpose, *shape):
        return super().normal(purpose, *shape).double()

    def uniform(self, purpose, *shape):
        return super().uniform(purpose, *shape).double()


def take_steps(compute, loss="wgan_gp", count=2, dtype=torch.float64, batch=16, spoil=None, half=False):
    """The state, what was watched and the first gradients (D, then G) after `count` steps in the middle of a fade."""
    state = new_state(ARCHITECTURE, ADAM, 0, CPU, half=half)
    gradients = []
    for trainable in (state.d, state.g):
        trainable.network.to(dtype)
        trainable.optimizer.register_step_pre_hook(
            lambda *_, player=trainable: gradients.append(
                torch.cat([p.grad.flatten().clone() for p in trainable.network.parameters() if p.grad is not None])
            )
        )
    state.g_ema.to(dtype)
    watched = {}
    for step in range(count):
        phase = Phase(0, 16, True, 0.4, 0, 1000, batch, 0.001, 0.001, 1)
        images = torch.rand(batch, 3, 16, 16, generator=torch.Generator().manual_seed(step)) * 2 - 1
        if step == spoil:
            images[0, 0, 0, 0] = torch.nan
        one_hot = torch.eye(2, dtype=dtype)[torch.arange(batch) % 2]
        reals = Reals(images.to(dtype), one_hot, one_hot.flip(1))
        rng = (PreciseDraws if dtype is torch.float64 else StepRng)(0, state.images, CPU)
        watched = train_step(state, phase, reals, LOSSES[loss], rng, decay=0.9, compute=compute)
    return state, watched, gradients[:2]


def assert_same(one, other, tolerance):
    for found, expected in ((one.g.network, other.g.network), (one.d.network, other.d.network)):
        for (name, weight), right in zip(found.named_parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(weight, right, atol=tolerance, rtol=0, msg=name)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "compute",
    [
        ComputeOptions(micro_batch_size=4),
        ComputeOptions(micro_batch_size=8),
        ComputeOptions(micro_batch_size=12),  # parts of 12 and 4
        ComputeOptions(jvp=True),
        ComputeOptions(jvp=True, micro_batch_size=8),
        ComputeOptions(activation_checkpointing=True),
        ComputeOptions(activation_checkpointing=True, method=WINOGRAD),
        ComputeOptions(method=DIRECT),
        ComputeOptions(method=IM2COL),
        ComputeOptions(method=IM2COL, jvp=True),
        ComputeOptions(method=WINOGRAD),
        ComputeOptions(method=WINOGRAD, jvp=True),
    ],
    ids=lambda compute: (
        ",".join(
            f"{field.name}" for field in dataclasses.fields(compute) if getattr(compute, field.name) != field.default
        )
        + str(compute.micro_batch_size)
    ),
)
def test_every_way_of_calculating_gives_the_same_step(loss, compute):
    usual, watched, _ = take_steps(ComputeOptions(method=NATIVE), loss)
    other, shown, _ = take_steps(compute, loss)
    assert_same(other, usual, 1e-9)
    assert shown.keys() == watched.keys()
    for name, value in watched.items():
        # Micro-batches show the same images in another order.
        torch.testing.assert_close(shown[name].double().mean(), value.double().mean(), atol=1e-9, rtol=1e-6, msg=name)


def test_recomputing_keeps_less():
    from pggan.training.op_counter import OpCounter

    peaks = []
    for activation_checkpointing in (False, True):
        with OpCounter() as count:
            take_steps(
                ComputeOptions(activation_checkpointing=activation_checkpointing),
                count=1,
                dtype=torch.float32,
                batch=64,
            )
        peaks.append(count.peak)
    assert peaks[1] < 0.9 * peaks[0]


# ---- half precision --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tangent", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.1), (torch.float16, 0.015)])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_in_half_precision_point_where_those_in_float32_do(loss, dtype, tolerance, tangent):
    scale = FIRST_SCALE if dtype is torch.float16 else 1.0
    _, _, expected = take_steps(ComputeOptions(), loss, count=1, dtype=torch.float32)
    compute = ComputeOptions(dtype=dtype, jvp=tangent)
    state, watched, found = take_steps(compute, loss, count=1, dtype=torch.float32, half=dtype is torch.float16)
    assert watched["D/skipped"] == watched["G/skipped"] == 0
    # G learns from a D that Adam has moved by the signs of its gradient, so its own is looser.
    for half, full, factor in zip(found, expected, (1, 3), strict=True):
        assert (half / scale - full).norm() < factor * tolerance * full.norm()
    assert all(parameter.dtype is torch.float32 for parameter in state.g.network.parameters())


def test_scores_penalty_and_losses_stay_in_float32():
    _, watched, _ = take_steps(ComputeOptions(dtype=torch.bfloat16), count=1, dtype=torch.float32)
    assert {value.dtype for value in watched.values()} == {torch.float32}
    assert len(set(watched["scores/reals"].tolist())) > 8  # bfloat16 would have rounded them together


def test_the_weights_are_the_same_whatever_power_of_two_scales_the_loss():
    states = []
    for scale in (1.0, 2.0**10):
        state = new_state(ARCHITECTURE, ADAM, 0, CPU, half=True)
        for trainable in (state.g, state.d):
            trainable.scale.fill_(scale)
        phase = Phase(0, 16, False, 1.0, 0, 1000, 4, 0.001, 0.001, 1)
        reals = Reals(
            torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(1)), *[torch.eye(2)[[0, 1, 0, 1]]] * 2
        )
        watched = train_step(
            state, phase, reals, LOSSES["wgan_gp"], StepRng(0, 0, CPU), decay=0.9, compute=ComputeOptions()
        )
        states.append((state, watched["D/gradient_norm"]))
    assert_same(states[0][0], states[1][0], 1e-7)
    torch.testing.assert_close(states[0][1], states[1][1])


def test_an_overflow_halves_the_scale_skips_the_update_and_is_counted():
    state, watched, _ = take_steps(
        ComputeOptions(dtype=torch.float16), count=2, dtype=torch.float32, spoil=1, half=True
    )
    one, _, _ = take_steps(ComputeOptions(dtype=torch.float16), count=1, dtype=torch.float32, half=True)
    assert watched["D/skipped"] == 1
    assert state.d.skipped == 1
    assert state.d.scale == FIRST_SCALE / 2
    assert_same(dataclasses.replace(state, g=one.g), one, 0)  # D did not move
    assert math.isfinite(sum(p.sum().item() for p in state.g.network.parameters()))


def test_the_scale_doubles_after_enough_good_updates_and_the_count_begins_anew():
    state = new_state(ARCHITECTURE, ADAM, 0, CPU, half=True)
    state.d.since_scaling.fill_(SCALE_INTERVAL - 1)
    for _ in range(2):
        for parameter in state.d.network.parameters():
            parameter.grad = torch.ones_like(parameter)
        state.d.step(0.001, torch.tensor(True))
    assert state.d.scale == 2 * FIRST_SCALE
    assert state.d.since_scaling == 1


def test_an_update_that_is_not_finite_is_skipped_in_float32_too():
    state, watched, _ = take_steps(ComputeOptions(), count=3, dtype=torch.float32, spoil=1)
    assert watched["D/skipped"] == 0  # the last one was good again
    assert state.d.skipped == 0
    for name, tensors in state.tensors().items():
        assert all(torch.isfinite(tensor).all() for tensor in tensors.values()), name
    moments = [moment["step"] for moment in state.d.optimizer.state.values()]
    assert {step.item() for step in moments} == {2.0}  # of three updates
