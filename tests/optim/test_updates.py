"""Adam, and by how much the averaged generator follows G in an update."""

import math

import pytest
import torch
from torch import nn

from pggan.optim.updates import Adam, ema_decay


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
