"""The gradient of a kernel that several passes share, as one product for all of them.

D sees reals and fakes, and images between them, and is differentiated twice: a kernel gets up to five gradients, to be
added up.  Of small images, each is larger than all that it is calculated from, and takes longer to write, read and add
than to multiply.  So the passes note what they would multiply, and when the last one has, one product does it all.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

SMALL = 4  # a kernel is so many times as large as both factors of a gradient that is put off: memory stays as it was


class Factors(NamedTuple):
    """What one gradient of a kernel is calculated from."""

    x: Tensor
    y: Tensor
    product: Callable[[Tensor, Tensor], Tensor]  # of the factors: the same one for all gradients of a kernel


Uses = list[Factors]


def shared_kernel(kernel: Tensor) -> Tensor:
    """`kernel` for several passes, whose gradients may be put off on a CPU: see `uses_of`."""
    if not kernel.requires_grad or kernel.device.type != "cpu":
        return kernel
    uses: Uses = []
    shared: Tensor = SharedKernel.apply(kernel, uses)
    shared.uses = uses  # type: ignore[attr-defined]
    return shared


def uses_of(kernel: Tensor) -> Uses | None:
    """Where to note the factors of gradients of `kernel`; None where they can't be put off."""
    return getattr(kernel, "uses", None)


def put_off(uses: Uses | None, kernel: Tensor, factors: Factors) -> bool:
    """Note the factors of a gradient of `kernel`, and return True; or return False: it is to be calculated now.

    A gradient that is differentiated again, and that of large images, is calculated at once.
    """
    if uses is None or torch.is_grad_enabled() or SMALL * (factors.x.numel() + factors.y.numel()) > kernel.numel():
        return False
    uses.append(factors)
    return True


class SharedKernel(torch.autograd.Function):
    """The identity; autograd calls its backward pass when all passes that use the kernel have gone backwards."""

    @staticmethod
    def forward(kernel: Tensor, uses: Uses) -> Tensor:
        return kernel.view_as(kernel)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.set_materialize_grads(False)
        ctx.uses = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        if ctx.uses:
            xs, ys, (product, *_) = zip(*ctx.uses, strict=True)
            ctx.uses.clear()
            total = product(torch.cat(xs), torch.cat(ys)) if len(xs) > 1 else product(*xs, *ys)
            gradient = total if gradient is None else gradient + total
        return gradient, None
