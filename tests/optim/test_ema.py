"""The averaged generator: by how much it follows, and that it follows exactly by that."""

import itertools
import math

import pytest
import torch

from pggan.optim.state import new_state
from pggan.optim.updates import ema_decay, flat_storage, update_ema
from tests.definitions import ADAM, variant

CPU = torch.device("cpu")
ARCHITECTURE = variant(resolution=8, latent_size=6, fmap_base=32, fmap_max=6)


@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("in_a_graph", [False, True])
def test_the_average_of_constant_weights_comes_nearer_by_the_decay_each_update(in_a_graph, side_by_side):
    """In a CUDA graph, the decay is a tensor; one operation updates all weights that lie side by side in memory."""
    state = new_state(ARCHITECTURE, ADAM, 0, CPU)
    if not side_by_side:
        for weight in state.g_ema.weights:
            weight.data = weight.data.clone()
    assert (flat_storage(state.g_ema.weights) is not None) == side_by_side
    for parameter in state.g.network.parameters():
        parameter.data.fill_(2.0)
    for parameter in state.g_ema.parameters():
        parameter.data.fill_(10.0)
    for _ in range(5):
        update_ema(state.g_ema.weights, state.g.network.weights, torch.tensor(0.9) if in_a_graph else 0.9)
    for parameter in state.g_ema.parameters():  # 2 + 0.9^5 * (10 - 2) = 2 + 0.59049 * 8
        torch.testing.assert_close(parameter, torch.full_like(parameter, 6.72392), atol=1e-5, rtol=0)
    assert all((parameter == 2).all() for parameter in state.g.network.parameters())


def test_the_average_starts_as_the_generator_in_memory_of_its_own_and_gets_no_gradient():
    state = new_state(ARCHITECTURE, ADAM, 0, CPU)
    pairs = list(zip(state.g_ema.parameters(), state.g.network.parameters(), strict=True))
    assert all(torch.equal(average, weight) for average, weight in pairs)
    assert not {average.data_ptr() for average, _ in pairs} & {weight.data_ptr() for _, weight in pairs}
    assert not any(average.requires_grad for average, _ in pairs)


def half_life(images=None, rampup=None, per_update=None):
    return {"half_life_images": images, "rampup": rampup, "decay_per_update": per_update}


@pytest.mark.parametrize("batch", [1, 4, 16, 250])
def test_after_its_half_life_an_old_weight_counts_half_whatever_the_batch(batch):
    weight = 1.0
    for images in range(0, 10_000, batch):
        weight *= ema_decay(images, batch, **half_life(10_000.0))
    assert weight == pytest.approx(0.5, rel=1e-9)


def test_with_rampup_the_half_life_is_at_most_a_share_of_the_images_shown():
    config = half_life(10_000.0, rampup=0.05)
    # After 2000 images the half-life is 100, so 100 images halve the weight and 50 leave 1 / sqrt(2).
    assert ema_decay(2000, 100, **config) == pytest.approx(0.5)
    assert ema_decay(2000, 50, **config) == pytest.approx(math.sqrt(0.5))
    # 0.05 of 200,000 images is the half-life itself; from there on it does not rise any more.
    assert ema_decay(200_000, 10_000, **config) == pytest.approx(0.5)
    assert ema_decay(10**9, 10_000, **config) == pytest.approx(0.5)
    decays = [ema_decay(images, 16, **config) for images in range(0, 400_000, 5000)]
    assert all(earlier <= later for earlier, later in itertools.pairwise(decays))


def test_with_rampup_the_first_update_takes_over_the_generator():
    assert ema_decay(0, 16, **half_life(10_000.0, rampup=0.05)) == 0.0


@pytest.mark.parametrize("batch", [3, 16, 128])
def test_the_papers_decay_per_update_does_not_depend_on_the_batch(batch):
    assert ema_decay(0, batch, **half_life(per_update=0.999)) == 0.999
    assert ema_decay(10**6, batch, **half_life(per_update=0.999)) == 0.999
