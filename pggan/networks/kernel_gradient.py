"""The gradient of a kernel that several passes share, as one product for all of them.

D sees reals and fakes, and images between them, and is differentiated twice: a kernel gets up to five gradients, to be
added up.  Of small images, each is larger than all that it is calculated from, and takes longer to write, read and add
than to multiply.  So the passes note what they would multiply, and when the last one has, one product does it all.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

SMALL = 4  # a kernel is so many times as large as both factors of a gradient that is put off: memory stays as it was


class Factors(NamedTuple):
    """What one gradient of a kernel is calculated from."""

    x: Tensor
    y: Tensor
    product: Callable[[Tensor, Tensor], Tensor]  # of the factors: the same one for all gradients of a kernel


@dataclass(eq=False)
class PutOff:
    """The factors of the gradients of one kernel that are still to be calculated.

    No list: `torch.func` would copy that on its way through functions of autograd.
    """

    factors: list[Factors] = field(default_factory=list)

    def takes(self, kernel: Tensor, factors: Factors) -> bool:
        """Note the factors of a gradient of `kernel`, and return True; or return False: it is to be calculated now.

        A gradient that is differentiated again, and that of large images, is calculated at once; so is one that
        `torch.autograd.grad` of images will drop, as nothing would take up what was noted.
        """
        if torch.is_grad_enabled() or SMALL * (factors.x.numel() + factors.y.numel()) > kernel.numel():
            return False
        if kernel.grad_fn is None or not torch._C._will_engine_execute_node(kernel.grad_fn):
            return False
        self.factors.append(factors)
        return True

    def gradient(self) -> Tensor | None:
        """The sum of all gradients that were put off; None where there were none."""
        if not self.factors:
            return None
        xs, ys, (product, *_) = zip(*self.factors, strict=True)
        self.factors.clear()
        return product(torch.cat(xs), torch.cat(ys)) if len(xs) > 1 else product(*xs, *ys)  # type: ignore[no-any-return]


def inside_torch_func() -> bool:
    """Whether a transform of `torch.func` is at work, which wraps the results of autograd Functions for itself."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def shared_kernel(kernel: Tensor) -> Tensor:
    """`kernel` for several passes, whose gradients may be put off on a CPU."""
    if not kernel.requires_grad or kernel.device.type != "cpu" or inside_torch_func():
        return kernel
    put_off = PutOff()
    shared: Tensor = SharedKernel.apply(kernel, put_off)
    shared.put_off = put_off  # type: ignore[attr-defined]
    return shared


def put_off_of(kernel: Tensor) -> PutOff | None:
    """Where to note the factors of gradients of `kernel`; None where they can't be put off."""
    return getattr(kernel, "put_off", None)


class SharedKernel(torch.autograd.Function):
    """The identity; autograd calls its backward pass when all passes that use the kernel have gone backwards."""

    @staticmethod
    def forward(kernel: Tensor, put_off: PutOff) -> Tensor:
        return kernel.view_as(kernel)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.set_materialize_grads(False)
        ctx.put_off = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        late = ctx.put_off.gradient()
        return (gradient if late is None else late if gradient is None else gradient + late), None
