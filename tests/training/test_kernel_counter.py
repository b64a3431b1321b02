"""Which kernels operations launch, worked out by hand."""

import pytest
import torch
import torch.nn.functional as F

from pggan.networks import fused
from pggan.networks.activation import activate
from pggan.training.kernel_counter import Kernel, KernelCounter, KernelKind, counting_fused_kernels

META = torch.device("meta")
ELEMENTWISE, BROADCAST, REDUCTION = KernelKind.elementwise, KernelKind.broadcast, KernelKind.reduction


def empty(*shape, **options):
    return torch.empty(shape, device=META, **options)


def kernels_of(work):
    """The kernels of `work`, as a dictionary."""
    with KernelCounter() as counter:
        work()
    return dict(counter.kernels)


X, Y = empty(2, 3, 8, 8), empty(2, 3, 8, 8)  # 1536 bytes each
SMALL = empty(3, 1, 1)


@pytest.mark.parametrize(
    ("work", "kernels"),
    [
        (lambda: X + Y, {Kernel(ELEMENTWISE, 3 * 1536): 1}),
        (lambda: X + 1, {Kernel(ELEMENTWISE, 2 * 1536): 1}),
        (lambda: X.add_(Y), {Kernel(ELEMENTWISE, 3 * 1536): 1}),
        (lambda: X.copy_(Y), {Kernel(ELEMENTWISE, 2 * 1536): 1}),
        (X.zero_, {Kernel(ELEMENTWISE, 1536): 1}),
        (X.bfloat16, {Kernel(ELEMENTWISE, 1536 + 768): 1}),
        (lambda: X * SMALL, {Kernel(BROADCAST, 2 * 1536 + 12): 1}),
        (lambda: X * SMALL.expand(2, 3, 8, 8), {Kernel(BROADCAST, 2 * 1536 + 12): 1}),
        (lambda: torch.cat([X, Y]), {Kernel(ELEMENTWISE, 4 * 1536): 1}),
        (lambda: X.sum((0, 2, 3)), {Kernel(REDUCTION, 1536 + 12): 1}),
        (lambda: X.view(6, 64).t()[3:].expand(2, -1, -1), {}),
        (lambda: (torch.empty_like(X), X.detach(), X.contiguous()), {}),
    ],
)
def test_an_operation_is_one_kernel_unless_it_only_looks_at_memory(work, kernels):
    assert kernels_of(work) == kernels


def test_a_convolution_is_a_product_and_its_bias_another_kernel():
    kernel, result = empty(5, 3, 3, 3), 2 * 5 * 8 * 8
    product = Kernel(KernelKind.matmul, 4 * (X.numel() + 5 * 27 + result), 2 * 27 * result)
    assert kernels_of(lambda: F.conv2d(X, kernel, padding=1)) == {product: 1}
    biased = kernels_of(lambda: F.conv2d(X, kernel, empty(5), padding=1))
    assert biased[Kernel(BROADCAST, 2 * 4 * result)] == 1
    assert sum(biased.values()) == 2


def test_products_of_matrices_have_no_channels():
    (kernel,) = kernels_of(lambda: empty(4, 7) @ empty(7, 9))
    assert kernel == Kernel(KernelKind.matmul, 4 * (28 + 63 + 36), 2 * 4 * 7 * 9)


def test_convolutions_keep_the_layout_of_their_operands_as_on_cuda():
    x, kernel = X.to(memory_format=torch.channels_last), empty(5, 3, 3, 3)
    with KernelCounter():
        y = F.conv2d(x, kernel, padding=1)
        gradients = torch.ops.aten.convolution_backward(
            y, x, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
        )
        plain = F.conv2d(X, kernel, padding=1)
    assert all(found.is_contiguous(memory_format=torch.channels_last) for found in (y, *gradients[:2]))
    assert plain.is_contiguous()


@pytest.mark.parametrize(
    ("sizes", "launches"),
    [([10] * 36, 1), ([10] * 37, 2), ([320 * 65536], 1), ([320 * 65536 + 1], 2)],
)
def test_adam_takes_lists_of_tensors_in_as_few_launches_as_fit(sizes, launches):
    """36 tensors of each of its four lists, and 320 blocks of 65536 numbers."""
    weights, gradients, means, squares = ([empty(size) for size in sizes] for _ in range(4))
    steps = [empty() for _ in sizes]

    def adam():
        options = {"lr": 0.1, "beta1": 0.0, "beta2": 0.9, "weight_decay": 0.0, "eps": 1e-8}
        torch._fused_adam_(weights, gradients, means, squares, [], steps, **options, amsgrad=False, maximize=False)

    ((kernel, count),) = kernels_of(adam).items()
    assert (count, kernel.kind, kernel.launches) == (1, ELEMENTWISE, launches)
    assert kernel.bytes == pytest.approx(7 * 4 * sum(sizes), abs=4 * 4 * len(sizes))  # and the steps


def test_kernels_of_our_own_count_as_one_that_reads_and_writes_each_tensor_once():
    x, bias = X.to(memory_format=torch.channels_last), empty(3)
    outside = fused.DEVICE, fused.KERNELS
    with KernelCounter() as counter, counting_fused_kernels(counter):
        activate(x, bias)
    assert counter.kernels == {Kernel(ELEMENTWISE, 2 * 1536 + 12): 1}
    assert outside == (fused.DEVICE, fused.KERNELS)
