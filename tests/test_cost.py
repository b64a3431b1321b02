"""The imagined step costs what the real one does, and what the paper's tables say."""

import dataclasses

import pytest
import torch

from pggan.architecture import Architecture, Resampling
from pggan.bench_steps import phase_of
from pggan.bench_ways import ADAM
from pggan.compute import Compute
from pggan.cost import Imagined
from pggan.draws import Draws
from pggan.losses.base import Reals, Reference
from pggan.losses.wgan_gp import WganGp
from pggan.meter import Meter
from pggan.state import new_state
from pggan.step import train_step

CPU = torch.device("cpu")
PAPER = Architecture(
    resolution=1024,
    channels=3,
    labels=0,
    latent_size=512,
    fmap_base=8192,
    fmap_decay=1.0,
    fmap_max=512,
    stddev_group=4,
    resampling=Resampling.fused,
)
LOSS = WganGp(penalty_weight=10.0, target=1.0, drift=0.001, gp_reference=Reference.official, interval=1)


@pytest.mark.parametrize("compute", [Compute(), Compute(micro_batch=4), Compute(recompute=True), Compute(tangent=True)])
def test_the_predicted_memory_is_that_of_a_real_step(compute):
    small = dataclasses.replace(PAPER, resolution=32, fmap_base=2048, fmap_max=128, latent_size=128)
    predicted = Imagined(small, ADAM, CPU, half=False).cost(phase_of(32, 8), LOSS, compute)
    state = new_state(small, ADAM, 0, CPU)
    reals = Reals(torch.rand(8, 3, 32, 32), None, None)
    options = {"decay": 0.999, "compute": compute}
    train_step(state, phase_of(32, 8), reals, LOSS, Draws(0, 0, CPU), **options)
    present = [tensor for part in state.tensors().values() for tensor in part.values()]
    with Meter(present) as meter:
        train_step(state, phase_of(32, 8), reals, LOSS, Draws(0, 8, CPU), **options)
    assert predicted.peak_bytes == pytest.approx(meter.peak, rel=0.05)


@pytest.mark.parametrize(("resolution", "billions"), [(4, 1.5), (32, 166), (1024, 989)])
def test_operations_are_those_of_the_layers(resolution, billions):
    # Forward and backward passes of both networks with gradient penalty, by hand from the layer tables.
    cost = Imagined(PAPER, ADAM, CPU, half=False).cost(phase_of(resolution, 4), LOSS, Compute())
    assert cost.flops / 4e9 == pytest.approx(billions, rel=0.03)


def test_imagining_allocates_nothing_and_leaves_real_steps_alone():
    Imagined(PAPER, ADAM, CPU, half=False).cost(phase_of(1024, 64), LOSS, Compute())  # 100 GB if it were real
    small = dataclasses.replace(PAPER, resolution=8, fmap_base=1024, fmap_max=128, latent_size=128)
    state = new_state(small, ADAM, 0, CPU)
    reals = Reals(torch.rand(16, 3, 8, 8), None, None)
    train_step(state, phase_of(8, 16), reals, LOSS, Draws(0, 0, CPU), decay=0.9, compute=Compute())
    assert all(torch.isfinite(parameter).all() for parameter in state.g.network.parameters())
