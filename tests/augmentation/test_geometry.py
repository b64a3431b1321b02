"""Resampling is linear, and can be differentiated any number of times, forwards and backwards."""

import torch

from pggan.augmentation.geometry import resample

MATRIX = torch.tensor([[[0.9, 0.3, 0.1], [-0.2, 1.1, -0.3]], [[-1.3, 0.2, 0.6], [0.1, 0.7, 0.2]]], dtype=torch.float64)


def normal(seed, requires_grad=False):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 2, 4, 4, generator=generator, dtype=torch.float64, requires_grad=requires_grad)


def test_derivatives_of_both_orders_are_those_of_finite_differences():
    images = normal(0, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: resample(x, MATRIX), images, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: resample(x, MATRIX).square(), images, fast_mode=True)


def test_the_adjoint_is_the_transposed_of_the_same_matrix():
    """<A x, y> = <x, A' y>"""
    x, y = normal(1), normal(2)
    _, pullback = torch.func.vjp(lambda x: resample(x, MATRIX), x)
    torch.testing.assert_close((resample(x, MATRIX) * y).sum(), (x * pullback(y)[0]).sum())
