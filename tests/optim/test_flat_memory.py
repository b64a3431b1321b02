"""Weights side by side: where they lie, and that nothing about them changes but that."""

from copy import deepcopy

import pytest
import torch

from pggan.optim.ema import update_ema
from pggan.optim.flat_memory import ALIGNMENT, flat_storage, flatten_storage
from pggan.optim.state import new_state
from tests.definitions import ADAM, variant

CPU = torch.device("cpu")
ARCHITECTURE = variant(resolution=8, latent_size=6, fmap_base=32, fmap_max=6)


@pytest.fixture
def state():
    return new_state(ARCHITECTURE, ADAM, 0, CPU)


def test_each_weight_keeps_its_numbers_and_strides_and_begins_at_a_multiple_of_64_bytes(state):
    weights = [weight.detach().clone(memory_format=torch.preserve_format) for weight in state.d.network.weights]
    moved = [torch.nn.Parameter(weight.clone(memory_format=torch.preserve_format)) for weight in weights]
    memory = flatten_storage(moved)
    for weight, expected in zip(moved, weights, strict=True):
        assert torch.equal(weight, expected)
        assert weight.stride() == expected.stride()
        assert (weight.data_ptr() - memory.data_ptr()) % 64 == 0
    assert memory.numel() < sum(weight.numel() for weight in weights) + ALIGNMENT * len(weights)
    assert memory.count_nonzero() == sum(weight.count_nonzero() for weight in weights)
    memory.fill_(3.0)
    assert all((weight == 3).all() for weight in moved)


def test_weights_of_a_state_share_memory_before_and_after_loading_and_what_it_gives_does_not(state):
    for network in (state.g.network, state.d.network, state.g_ema):
        assert flat_storage(network.weights).data_ptr() == network.weights[0].data_ptr()
    state.load_state_dict(new_state(ARCHITECTURE, ADAM, 1, CPU).state_dict())
    assert flat_storage(state.g.network.weights) is not None
    assert flat_storage(deepcopy(state.g.network).weights) is None


@pytest.mark.parametrize("moved", ["generator", "average", "none"])
@pytest.mark.parametrize("decay", [0.3, 0.999, torch.tensor(0.9)])
def test_the_average_is_the_same_wherever_the_weights_lie(state, moved, decay):
    """A weight in other memory, or in another order there, is found where it is."""
    for weight, average in zip(state.g.network.weights, state.g_ema.weights, strict=True):
        average.data.mul_(0.5)
        if moved == "generator":
            weight.data = weight.data.clone()
        if moved == "average":
            average.data = average.data.contiguous()
    if moved == "average":
        flatten_storage(state.g_ema.weights)
    expected = [
        torch.lerp(average.detach(), weight.detach(), 1 - decay)
        for average, weight in zip(state.g_ema.weights, state.g.network.weights, strict=True)
    ]
    update_ema(state.g_ema, state.g.network, decay)
    for found, exact in zip(state.g_ema.weights, expected, strict=True):  # two roundings each, fused or not
        torch.testing.assert_close(found.detach(), exact, rtol=4 * 2**-24, atol=4 * 2**-24)
