"""What is counted of single operations."""

import gc

import pytest
import torch

from pggan.training.op_counter import OpCounter


def test_products_and_adam_are_counted_by_what_they_move():
    x, kernel, y = (torch.zeros(*shape) for shape in ((2, 3, 8, 8), (5, 3, 3, 3), (2, 5, 8, 8)))
    with OpCounter() as counter:
        torch.nn.functional.conv2d(x, kernel, padding=1) + 1  # the sum could be done in passing
    assert counter.moved == 4 * (x.numel() + kernel.numel() + y.numel())
    with OpCounter() as counter:
        kernel.bfloat16().view(15, 9) @ torch.zeros(9, 2, dtype=torch.bfloat16)
    assert counter.moved == 2 * (15 * 9 + 9 * 2 + 15 * 2)
    weight = torch.zeros(1000, requires_grad=True)
    weight.grad = torch.ones(1000)
    adam = torch.optim.Adam([weight], fused=True)
    adam.step()
    with OpCounter() as counter:
        adam.step()
    assert counter.moved == pytest.approx(4 * 7 * 1000, rel=1e-3)  # weight and moments twice, the gradient once


def test_two_operations_per_multiply_add_of_a_product_are_counted_and_nothing_of_the_rest():
    a, b = torch.zeros(5, 7), torch.zeros(7, 3)
    with OpCounter() as counter:
        (a @ b).relu() + 1
    assert counter.flops == 2 * 5 * 7 * 3
    assert counter.operations == 3


@pytest.mark.slow
def test_bytes_are_those_of_tensors_alive_now_and_at_most():
    """Each storage once, however many tensors look at it."""
    present = torch.zeros(100)
    with OpCounter([present, present.view(10, 10)]) as counter:
        assert counter.now == counter.peak == 400
        some = torch.zeros(50)
        view = some[:10]
        del some
        gc.collect()
        assert (counter.now, counter.peak) == (600, 600)
        del view
        gc.collect()
        assert (counter.now, counter.peak) == (400, 600)
