"""Adam, and the averaged generator: by how much it follows, and that it follows exactly by that."""

import math

import pytest
import torch
from torch import nn

from pggan.optim.state import new_state
from pggan.optim.updates import Adam, ema_decay
from tests.definitions import variant

CPU = torch.device("cpu")
ARCHITECTURE = variant(resolution=8, latent_size=6, fmap_base=32, fmap_max=6)


def test_the_average_of_constant_weights_comes_nearer_by_the_decay_each_update():
    state = new_state(ARCHITECTURE, 0, CPU)
    for parameter in state.g.network.parameters():
        parameter.data.fill_(2.0)
    for parameter in state.g_ema.parameters():
        parameter.data.fill_(10.0)
    for decay in (0.9, torch.tensor(0.9)):  # a tensor, as in a CUDA graph
        state.flat_averages.lerp_(state.flat_weights, 1 - decay)
    for parameter in state.g_ema.parameters():  # 2 + 0.9^2 * (10 - 2)
        torch.testing.assert_close(parameter, torch.full_like(parameter, 8.48), atol=1e-5, rtol=0)
    assert all((parameter == 2).all() for parameter in state.g.network.parameters())


def test_the_average_starts_as_the_generator_in_memory_of_its_own_and_gets_no_gradient():
    state = new_state(ARCHITECTURE, 0, CPU)
    pairs = list(zip(state.g_ema.parameters(), state.g.network.parameters(), strict=True))
    assert all(torch.equal(average, weight) for average, weight in pairs)
    assert not {average.data_ptr() for average, _ in pairs} & {weight.data_ptr() for _, weight in pairs}
    assert not any(average.requires_grad for average, _ in pairs)


def test_an_old_weight_counts_half_after_the_half_life_which_with_rampup_is_at_most_a_share_of_the_images_shown():
    half_life = {"half_life_images": 10_000.0, "rampup": None, "decay_per_update": None}
    for batch in (1, 250):
        weight = math.prod(ema_decay(images, batch, **half_life) for images in range(0, 10_000, batch))
        assert weight == pytest.approx(0.5, rel=1e-9)
    # After 2000 images the half-life is 100; 0.05 of 200,000 images is the half-life itself.
    for images, batch, decay in ((0, 16, 0.0), (2000, 50, math.sqrt(0.5)), (10**9, 10_000, 0.5)):
        assert ema_decay(images, batch, **(half_life | {"rampup": 0.05})) == pytest.approx(decay)
    for batch in (3, 128):  # the paper's
        assert ema_decay(10**6, batch, half_life_images=None, rampup=None, decay_per_update=0.999) == 0.999


def test_steps_of_adam_are_those_of_torch_to_the_bit():
    """Over steps that leave a parameter out, are skipped, scaled, or have another rate."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(5, 3), (7,), ()]
    ours, theirs = ([nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    one = Adam(ours)
    other = torch.optim.Adam(theirs, betas=(0.0, 0.99), eps=1e-8, fused=True)
    for number in range(8):
        rate = other.param_groups[0]["lr"] = 0.1 / (1 + number)
        skip = other.found_inf = torch.tensor(float(number == 3))
        scale = other.grad_scale = torch.tensor(4.0) if number == 5 else None
        for index, (param, same) in enumerate(zip(ours, theirs, strict=True)):
            random = torch.randn(param.shape, generator=generator) * (1, 1e-8, 1)[index]  # as small as epsilon
            param.grad = random if (number + index) % 3 else None
            same.grad = None if param.grad is None else param.grad.clone()
        one.step(rate, skip, scale)
        other.step()
        for param, same in zip(ours, theirs, strict=True):
            assert torch.equal(param, same)
            for key, value in other.state.get(same, {}).items():
                assert torch.equal(one.state[param][key], value)
            assert (param in one.state) == (same in other.state)
