"""The imagined step costs what the real one does, and what the paper's tables say."""

import dataclasses

import pytest
import torch

from pggan.bench.steps import phase_of
from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.networks.numerics import ComputeOptions
from pggan.optim.state import new_state
from pggan.training.fake_step import FakeStep
from pggan.training.op_counter import OpCounter
from pggan.training.step import train_step
from tests.definitions import ADAM, PAPER, WGAN_GP, variant

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "compute",
    [
        ComputeOptions(),
        ComputeOptions(micro_batch_size=4),
        ComputeOptions(activation_checkpointing=True),
        ComputeOptions(jvp=True),
    ],
)
def test_the_predicted_memory_is_that_of_a_real_step(compute):
    small = variant(resolution=32, fmap_base=2048, fmap_max=128, latent_size=128)
    predicted = FakeStep(small, ADAM, CPU, half=False).cost(phase_of(32, 8), WGAN_GP, compute)
    state = new_state(small, ADAM, 0, CPU)
    reals = Reals(torch.rand(8, 3, 32, 32), None, None)
    options = {"decay": 0.999, "compute": compute}
    train_step(state, phase_of(32, 8), reals, WGAN_GP, StepRng(0, 0, CPU), **options)
    present = [tensor for part in state.tensors().values() for tensor in part.values()]
    with OpCounter(present) as meter:
        train_step(state, phase_of(32, 8), reals, WGAN_GP, StepRng(0, 8, CPU), **options)
    assert predicted.peak_bytes == pytest.approx(meter.peak, rel=0.05)


@pytest.mark.parametrize(("resolution", "billions"), [(4, 1.5), (32, 166), (1024, 989)])
def test_operations_are_those_of_the_layers(resolution, billions):
    # Forward and backward passes of both networks with gradient penalty, by hand from the layer tables.
    cost = FakeStep(PAPER, ADAM, CPU, half=False).cost(phase_of(resolution, 4), WGAN_GP, ComputeOptions())
    assert cost.flops / 4e9 == pytest.approx(billions, rel=0.03)


def test_imagining_allocates_nothing_and_leaves_real_steps_alone():
    FakeStep(PAPER, ADAM, CPU, half=False).cost(phase_of(1024, 64), WGAN_GP, ComputeOptions())  # 100 GB if it were real
    small = variant(resolution=8, fmap_base=1024, fmap_max=128, latent_size=128)
    state = new_state(small, ADAM, 0, CPU)
    reals = Reals(torch.rand(16, 3, 8, 8), None, None)
    train_step(state, phase_of(8, 16), reals, WGAN_GP, StepRng(0, 0, CPU), decay=0.9, compute=ComputeOptions())
    assert all(torch.isfinite(parameter).all() for parameter in state.g.network.parameters())


def test_a_meter_counts_what_products_and_adam_move():
    x, kernel, y = (torch.zeros(*shape) for shape in ((2, 3, 8, 8), (5, 3, 3, 3), (2, 5, 8, 8)))
    with OpCounter() as meter:
        torch.nn.functional.conv2d(x, kernel, padding=1) + 1  # the sum could be done in passing
    assert meter.moved == 4 * (x.numel() + kernel.numel() + y.numel())
    with OpCounter() as meter:
        kernel.bfloat16().view(15, 9) @ torch.zeros(9, 2, dtype=torch.bfloat16)
    assert meter.moved == 2 * (15 * 9 + 9 * 2 + 15 * 2)
    weight = torch.zeros(1000, requires_grad=True)
    weight.grad = torch.ones(1000)
    adam = torch.optim.Adam([weight], fused=True)
    adam.step()
    with OpCounter() as meter:
        adam.step()
    assert meter.moved == pytest.approx(4 * 7 * 1000, rel=1e-3)  # weight and moments twice, the gradient once


def test_lazy_penalties_cost_their_share():
    def cost(interval):
        loss = dataclasses.replace(WGAN_GP, interval=interval)
        return FakeStep(PAPER, ADAM, CPU, half=False).cost(phase_of(8, 4), loss, ComputeOptions())

    every, second, fourth = cost(1), cost(2), cost(4)
    without = 2 * second.flops - every.flops
    assert 0 < without < every.flops
    assert fourth.flops == pytest.approx((every.flops + 3 * without) / 4, rel=1e-6)
    assert fourth.moved_bytes < second.moved_bytes < every.moved_bytes
    assert fourth.peak_bytes == every.peak_bytes
