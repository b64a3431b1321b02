import torch
from torch import nn

from pggan.optim.updates import Adam, AdamOptions


def test_steps_are_those_of_torch_to_the_bit():
    """Over steps that leave a parameter out, are skipped, scaled, or have another rate."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(5, 3), (7,), ()]
    ours, theirs = ([nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    one = Adam(ours, AdamOptions(0.5, 0.99, 0.01))
    other = torch.optim.Adam(theirs, betas=(0.5, 0.99), eps=0.01, fused=True)
    for number in range(8):
        rate = other.param_groups[0]["lr"] = 0.1 / (1 + number)
        skip = other.found_inf = torch.tensor(float(number == 3))
        scale = other.grad_scale = torch.tensor(4.0) if number == 5 else None
        for index, (param, same) in enumerate(zip(ours, theirs, strict=True)):
            param.grad = torch.randn(param.shape, generator=generator) if (number + index) % 3 else None
            same.grad = None if param.grad is None else param.grad.clone()
        one.step(rate, skip, scale)
        other.step()
        for param, same in zip(ours, theirs, strict=True):
            assert torch.equal(param, same)
            for key, value in other.state.get(same, {}).items():
                assert torch.equal(one.state[param][key], value)
            assert (param in one.state) == (same in other.state)
