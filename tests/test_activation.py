"""Activation and pixel norm in one: the definition, its gradient, and its precision."""

import pytest
import torch
import torch.nn.functional as F

from pggan.networks.activation import activate_and_normalize, pixel_norm


def normal(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def test_it_is_the_pixel_norm_of_the_leaky_relu_in_the_same_memory():
    x = normal(2, 5, 4, 4)
    expected = pixel_norm(F.leaky_relu(x, 0.2))
    found = activate_and_normalize(x)
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=0)
    assert found.data_ptr() == x.data_ptr()


def test_its_gradient_is_that_of_finite_differences():
    x = normal(2, 5, 3, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: activate_and_normalize(x.clone()), x)


def test_it_refuses_to_be_differentiated_twice():
    x = normal(1, 3, 2, 2).requires_grad_()
    (gradient,) = torch.autograd.grad(activate_and_normalize(x.clone()).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_only_the_result_is_rounded(dtype):
    x = normal(2, 64, 4, 4, dtype=dtype)
    expected = pixel_norm(F.leaky_relu(x.float(), 0.2))
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(activate_and_normalize(x.clone()).float(), expected, atol=step, rtol=2 * step)
    huge = (x * 250).clamp(-60000, 60000)  # its square is beyond float16
    assert torch.isfinite(activate_and_normalize(huge)).all()
