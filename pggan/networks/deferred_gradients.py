"""Deferred kernel gradients: those of all passes that share a kernel are calculated as one product.

D sees reals and fakes, and images between them, where it is differentiated twice: each of its kernels gets three
gradients, with penalties at reals and fakes four, to be added up.  Of small images, each is larger than all that it is
calculated from, and takes longer to write, read and add than to multiply.  So the passes note what they would multiply,
and when the last one has, one product does it all.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

MIN_KERNEL_TO_FACTORS = (
    4  # a kernel is so many times as large as both factors of a deferred gradient: memory stays as it was
)


class Factors(NamedTuple):
    """The two factors of one gradient of a kernel, and the function that multiplies them."""

    x: Tensor
    y: Tensor
    product: Callable[[Tensor, Tensor], Tensor]  # of the factors: the same one for all gradients of a kernel


@dataclass(eq=False)
class DeferredGradients:
    """The gradients of one kernel that are still to be calculated.

    They are not a plain list, as `torch.func` copies lists on their way through functions of autograd.
    """

    factors: list[Factors] = field(default_factory=list)

    def defer(self, kernel: Tensor, factors: Factors) -> bool:
        """Defer a gradient of `kernel`, and return True; or return False: it is to be calculated now.

        A gradient that is differentiated again, and that of large images, is calculated at once; so is one that
        `torch.autograd.grad` of images will drop, as nothing would take up what was deferred.
        """
        if torch.is_grad_enabled() or MIN_KERNEL_TO_FACTORS * (factors.x.numel() + factors.y.numel()) > kernel.numel():
            return False
        if kernel.grad_fn is None or not torch._C._will_engine_execute_node(kernel.grad_fn):
            return False
        self.factors.append(factors)
        return True

    def calculate(self) -> Tensor | None:
        """The sum of all deferred gradients; None where there are none."""
        if not self.factors:
            return None
        xs, ys, (product, *_) = zip(*self.factors, strict=True)
        self.factors.clear()
        return product(torch.cat(xs), torch.cat(ys)) if len(xs) > 1 else product(*xs, *ys)  # type: ignore[no-any-return]


def shared_kernel(kernel: Tensor) -> Tensor:
    """`kernel` for several passes, which may defer its gradients on a CPU."""
    if not kernel.requires_grad or kernel.device.type != "cpu":
        return kernel
    deferred = DeferredGradients()
    shared: Tensor = SharedKernel.apply(kernel, deferred)
    shared.deferred = deferred  # type: ignore[attr-defined]
    return shared


def deferred_gradients_of(kernel: Tensor) -> DeferredGradients | None:
    """Where to defer gradients of `kernel` to; None where that can't be done."""
    return getattr(kernel, "deferred", None)


class SharedKernel(torch.autograd.Function):
    """The identity; autograd calls its backward pass when all passes that use the kernel have gone backwards."""

    @staticmethod
    def forward(kernel: Tensor, deferred: DeferredGradients) -> Tensor:
        return kernel.view_as(kernel)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.set_materialize_grads(False)
        ctx.deferred = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        late = ctx.deferred.calculate()
        return (gradient if late is None else late if gradient is None else gradient + late), None
