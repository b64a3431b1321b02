"""Steps of few entries against the dense ones they stand for."""

import pytest
import torch
from torch import nn

from pggan.optim.dgc import ParameterVector
from pggan.optim.sparse_optimizer import SparseOptimizer
from pggan.optim.state import new_state
from tests.definitions import ADAM, variant

CPU = torch.device("cpu")
SMALL = variant(resolution=8, fmap_base=64, fmap_max=8, latent_size=8)


def dense(weights, updates):
    """What `updates`, one number per weight's number in the order of memory, take from `weights`."""
    changed = []
    for weight, update in zip(weights, updates, strict=True):
        step = update.view(weight.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2) if weight.ndim == 4 else update
        changed.append(weight.detach().clone() - 0.1 * step.view(weight.shape))
    return changed


def update(trainable, learning_rate):
    """The update that was set, as a step takes it."""
    trainable.prepare_update(learning_rate, torch.tensor(True))
    trainable.optimizer.step()
    trainable.finish_update(torch.tensor(True))


def test_moved_weights_keep_values_strides_and_names():
    alone, moved = (new_state(SMALL, ADAM, 3, CPU, sparse=sparse) for sparse in (False, True))
    for one, other in ((alone.g, moved.g), (alone.d, moved.d)):
        for (name, weight), (same_name, place) in zip(
            one.network.named_parameters(), other.network.named_parameters(), strict=True
        ):
            assert name == same_name
            assert torch.equal(weight, place)
            assert weight.stride() == place.stride()
            assert place.data_ptr() % 64 == 0
    assert alone.state_dict()["generator"].keys() == moved.state_dict()["generator"].keys()
    assert moved.state_dict()["optimizer_g"] == {}


@pytest.mark.parametrize("name", ["g", "d"])
def test_entries_reach_the_weights_in_use_and_no_others(name):
    state = new_state(SMALL, ADAM, 0, CPU, sparse=True)
    trainable = getattr(state, name)
    weights = list(trainable.network.weights)
    used = weights[1::2]  # as with layers that have not grown yet
    for weight in used:
        weight.grad = torch.zeros_like(weight)
    using = ParameterVector(trainable, trainable.optimizer)
    generator = torch.Generator().manual_seed(1)
    whole = torch.zeros(using.size)
    indices = torch.randperm(using.size, generator=generator)[: using.size // 3]
    whole[indices] = torch.randn(len(indices), generator=generator)
    expected = dense(used, whole.split([weight.numel() for weight in used]))
    others = [weight.detach().clone() for weight in weights[::2]]
    twice = torch.cat([indices, indices[:5]])  # in two messages: the second time it is 0
    trainable.optimizer.set_update(using.positions(twice), torch.cat([whole[indices], torch.zeros(5)]))
    torch.testing.assert_close(trainable.gradient_norm(), whole.norm())
    update(trainable, 0.1)
    for weight, after in zip(used, expected, strict=True):
        torch.testing.assert_close(weight, after, rtol=0, atol=1e-7)
    assert all(torch.equal(weight, before) for weight, before in zip(weights[::2], others, strict=True))
    assert all(weight.grad is None for weight in weights)


def test_a_step_that_is_not_finite_changes_nothing_and_one_that_was_not_given_neither():
    weights = [nn.Parameter(torch.arange(3.0)), nn.Parameter(torch.ones(2, 2))]
    steps = SparseOptimizer(weights, weights)
    steps.learning_rate = 0.5
    steps.set_update(torch.tensor([0, 17]), torch.tensor([torch.inf, 1.0]))
    steps.found_inf = torch.tensor(1.0)
    steps.step()
    steps.found_inf = torch.tensor(0.0)
    steps.step()
    assert weights[0].tolist() == [0, 1, 2]
    assert weights[1].tolist() == [[1, 1], [1, 1]]
    steps.set_update(torch.tensor([2, 17]), torch.tensor([1.0, -1.0]))
    steps.step()
    assert weights[0].tolist() == [0, 1, 1.5]
    assert weights[1].tolist() == [[1, 1.5], [1, 1]]


def test_a_loaded_state_lies_where_steps_are_taken():
    state, other = (new_state(SMALL, ADAM, seed, CPU, sparse=True) for seed in (0, 1))
    state.load_state_dict(other.state_dict())
    weight = state.d.network.weights[0]
    weight.grad = torch.zeros_like(weight)
    using = ParameterVector(state.d, state.d.optimizer)
    before = other.d.network.weights[0].flatten()[0].item()
    state.d.optimizer.set_update(using.positions(torch.tensor([0])), torch.tensor([1.0]))
    update(state.d, 0.25)
    assert weight.flatten()[0].item() == before - 0.25
