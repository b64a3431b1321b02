"""The kernels that a computation launches on a CUDA device, counted on tensors without memory, so without the device.

An operation of PyTorch is one kernel, but for views and allocations, which are none, operations on lists of tensors,
which are as few as their sizes allow, and convolutions with a bias, which are two.
"""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from functools import cache
from math import ceil, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from pggan.training.op_counter import CHANGED, OpCounter

# What limits a kernel: tensor cores and memory in matrix products and convolutions, memory alone elsewhere.
KernelKind = StrEnum("KernelKind", "matmul elementwise broadcast reduction")

REDUCTIONS = {"sum", "mean", "linalg_vector_norm", "_foreach_norm"}
ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"}
OVERWRITING = {"copy_", "fill_", "zero_"}  # they do not read what they change
CONVOLUTIONS = {"convolution", "convolution_backward"}
JOINING = {"cat", "stack"}  # their arguments are parts of the result, not broadcast to it
# Of one launch on lists of tensors: tensors by the number of lists, numbers that a block takes, and blocks.
# Source: PyTorch, aten/src/ATen/native/cuda/MultiTensorApply.cuh.
LIST_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
LIST_NUMBERS, LIST_BLOCKS = 65536, 320


class Kernel(NamedTuple):
    """One launch, or several of a kind that share its bytes."""

    kind: KernelKind
    bytes: int  # read and written
    flops: int = 0  # of a matmul
    launches: int = 1


class KernelCounter(OpCounter):  # type: ignore[no-untyped-call]
    """Counts inside `with` all that `OpCounter` counts, and `kernels`: how often each is launched."""

    def __init__(self, present: Iterable[Tensor] = ()) -> None:
        super().__init__(present)
        self.kernels = Counter[Kernel]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        how = kernel_launches(func)
        if how is None:
            return result
        written = [args[index] for index in how.written if index < len(args)] or result
        writes = [leaf for leaf in tree_leaves(written) if isinstance(leaf, Tensor)]
        reads = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not writes or (not how.written and aliases(writes, reads)):
            return result
        moved = sum(map(distinct_bytes, writes)) + sum(map(distinct_bytes, reads[how.overwrites :]))
        if how.matmul:
            flops = flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=result)
            self.kernels[Kernel(KernelKind.matmul, moved, flops)] += 1
            if how.name == "convolution" and args[2] is not None:  # added by a kernel of its own
                self.kernels[Kernel(KernelKind.broadcast, 2 * writes[0].nbytes)] += 1
        else:
            self.kernels[Kernel(kind_of(how, writes, reads), moved, launches=launches_of(how, args))] += 1
        return result

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of one operation; that of a convolution in the layout of its operands, as cuDNN gives it.

        On the device "meta", PyTorch gives all results the default layout.
        """
        result = super().run(func, args, kwargs)
        if func._overloadpacket.__name__ not in CONVOLUTIONS or not any(map(is_channels_last, args[:2])):
            return result
        wanted = torch.channels_last
        return tree_map_only(Tensor, lambda tensor: torch.empty_like(tensor, memory_format=wanted), result)


class KernelLaunches(NamedTuple):
    """Facts of an operation that launches kernels, the same for all its calls."""

    name: str
    matmul: bool  # a matrix product or a convolution
    written: tuple[int, ...]  # positions of the arguments that it changes
    overwrites: int  # 1 if the first of its tensors is not read
    lists: int  # of tensors among its arguments


@cache
def kernel_launches(func: Any) -> KernelLaunches | None:
    """How the operation `func` launches kernels; None if it never does."""
    name = func._overloadpacket.__name__
    if name in ALLOCATIONS or func.is_view:
        return None
    arguments, packet = func._schema.arguments, func._overloadpacket
    marked = [n for n, argument in enumerate(arguments) if argument.alias_info and argument.alias_info.is_write]
    written = CHANGED.get(packet, marked)  # Adam's gradients are marked, though it changes them only with a loss scale
    lists = sum(str(argument.type) == "List[Tensor]" for argument in arguments) if "_foreach" in name else 0
    lists = 4 if name == "_fused_adam_" else lists  # weights, gradients and both moments
    return KernelLaunches(name, packet in flop_registry, tuple(written), name in OVERWRITING, lists)


def kind_of(how: KernelLaunches, writes: list[Tensor], reads: list[Tensor]) -> KernelKind:
    """The kind of a kernel that is no matmul."""
    if how.name in REDUCTIONS:
        return KernelKind.reduction
    size = max(tensor.numel() for tensor in writes)
    small = any(1 < distinct_numbers(tensor) < size for tensor in reads)
    return KernelKind.broadcast if small and not how.lists and how.name not in JOINING else KernelKind.elementwise


def launches_of(how: KernelLaunches, args: tuple[Any, ...]) -> int:
    """The number of launches of an operation that is no matmul."""
    if not how.lists:
        return 1
    tensors: list[Tensor] = args[0]
    blocks = sum(ceil(tensor.numel() / LIST_NUMBERS) for tensor in tensors)
    return max(ceil(len(tensors) / LIST_TENSORS[how.lists]), ceil(blocks / LIST_BLOCKS))


def aliases(writes: list[Tensor], reads: list[Tensor]) -> bool:
    """Whether all of `writes` are views of `reads`."""
    known = {tensor.untyped_storage()._cdata for tensor in reads}
    return all(tensor.untyped_storage()._cdata in known for tensor in writes)


def is_channels_last(tensor: Tensor) -> bool:
    """Whether the channels of a pixel lie side by side, and could lie otherwise."""
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def distinct_numbers(tensor: Tensor) -> int:
    """The numbers of `tensor` in memory: expanded dimensions count once."""
    if 0 not in tensor.stride():
        return tensor.numel()
    return prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)


def distinct_bytes(tensor: Tensor) -> int:
    """The bytes of `tensor` in memory."""
    return distinct_numbers(tensor) * tensor.element_size()
