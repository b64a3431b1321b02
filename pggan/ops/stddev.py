"""The minibatch stddev on GPUs: one Triton kernel each for the value, the gradient, and the gradient of the gradient.

The plain twin is `networks.layers.minibatch_stddev`.  Shapes: N batch size, C features, H height, W width.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pggan.ops.fused import dense

BLOCK = 8192  # numbers of an image that a Triton program holds at a time: all 4x4 pixels of 512 maps
EPSILON = 1e-8  # added to the variance before the square root in the minibatch stddev, as in the official code


class Groups(NamedTuple):
    """The groups of a batch: image g of group m in sub-batch p is image (p * size + g) * step + m of the batch."""

    size: int  # images per group
    step: int  # groups per sub-batch


def launch(
    groups: Groups, x: Tensor, of_result: Tensor | None, of_gradient: Tensor | None, *results: Tensor | None
) -> None:
    """Launch the Triton kernel `stddev` with a program for each group."""
    from pggan.ops import triton_kernels  # imported late, because Triton is not installed everywhere

    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        triton_kernels.stddev[(len(x) // groups.size,)](
            x, of_result, of_gradient, *results, groups.step, groups.size, x[0].numel(),
            EPSILON=EPSILON, BLOCK=min(BLOCK, 1 << (x[0].numel() - 1).bit_length()), num_warps=8, enable_fp_fusion=True,
        )  # fmt: skip


class Stddev(torch.autograd.Function):
    """The minibatch stddev of features [N, C, H, W] as float32 [N]; differentiable twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: Groups) -> Tensor:
        x, ctx.groups = dense(x), groups
        ctx.save_for_backward(x)
        result = x.new_empty(len(x), dtype=torch.float32)
        launch(groups, x, None, None, result, None)
        return result

    @staticmethod
    def backward(ctx: Any, of_result: Tensor) -> tuple[Tensor, None]:
        return StddevGradient.apply(of_result, *ctx.saved_tensors, ctx.groups), None


class StddevGradient(torch.autograd.Function):
    """The gradient of the features of `Stddev`, from the gradient of its result."""

    @staticmethod
    def forward(ctx: Any, of_result: Tensor, x: Tensor, groups: Groups) -> Tensor:
        of_result, ctx.groups = of_result.contiguous(), groups
        ctx.save_for_backward(of_result, x)
        result = torch.empty_like(x)
        launch(groups, x, of_result, None, result, None)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        of_result, x = ctx.saved_tensors
        of_of_result, of_x = torch.empty_like(of_result), torch.empty_like(x)
        launch(ctx.groups, x, of_result, dense(of_gradient), of_x, of_of_result)
        return of_of_result, of_x, None
