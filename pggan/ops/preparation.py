"""One Triton launch makes the convolution kernels of all layers, and one more computes the gradients of all weights.

To make a kernel, the weight is scaled, cast, fused with resampling and packed (`packed.py`).  PyTorch's operations
would need several launches for each layer.  Shapes: O output and I input feature maps of a weight.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, islice
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pggan.core.architecture import Rescaling
from pggan.ops.fused import PixelSums, Rows, launch
from pggan.ops.packed import REACH
from pggan.ops.products import side_and_stride

BLOCK = 32  # a Triton program computes BLOCK x BLOCK elements of one tap of a convolution kernel


class Transform(NamedTuple):
    """How Triton makes a convolution kernel from a weight.  Triton kernels read the integer fields by position.

    The kernel is the sum of `copies`**2 copies of the weight.  Copy (i, j) is moved down by i - `shift` taps, and right
    by j - `shift` taps.  A packed kernel holds this sum once for each pixel of a pack.
    """

    rows: int
    columns: int
    height: int
    width: int
    k: int  # pixels per pack (`packed.py`) of the smaller image, which is the input or the output; 1: no packs
    pixels: int  # pixels per pack of the larger image; 1: no packs
    stride: int
    copies: int
    shift: int
    taps: int  # kernel size of the weight: 3 for a 3x3 convolution
    origin: int  # memory offset in the weight where reading begins: first tap or, to mirror the kernel, last tap
    row_step: int  # the weight's memory stride along output maps or, with upsampling, along input maps
    column_step: int
    tap_step: int
    factor: float  # multiplies the sum of copies

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.k * self.rows, self.height, self.width, self.pixels * self.columns

    @property
    def tiles(self) -> tuple[int, int]:
        """How many Triton programs make the kernel, and how many compute the weight's gradient."""
        rows, height, width, columns = self.shape
        of_kernel = height * width * ceil(rows / BLOCK) * ceil(columns / BLOCK)
        return of_kernel, self.taps**2 * ceil(self.rows / BLOCK) * ceil(self.columns / BLOCK)


def transform_of(
    weight: Tensor, inputs: int, scale: float, rescaling: Rescaling = Rescaling.same, k: int | None = None
) -> Transform:
    """The `Transform` from a weight's first `inputs` input maps to a kernel.  `k`: pixels per pack; None: no packs."""
    taps, step = (weight.shape[3], weight.stride(3)) if weight.ndim == 4 else (1, 1)
    side, stride = side_and_stride(rescaling) if rescaling is not Rescaling.same else (taps, 1)
    packs = (k, k * stride) if k else (1, 1)
    width, copies = REACH if k else side, 1 if rescaling is Rescaling.same else 2
    row_step, column_step = weight.stride()[:2]
    sizes, origin = (weight.shape[0], inputs), 0
    factor = scale / 4 if rescaling is Rescaling.down else scale
    if rescaling is Rescaling.up:  # a transposed convolution swaps input and output maps, and mirrors the kernel
        sizes, row_step, column_step = sizes[::-1], column_step, row_step
        origin, step = (taps**2 - 1) * step, -step
    return Transform(*sizes, side, width, *packs, stride, copies, 0, taps, origin, row_step, column_step, step, factor)


def map_of_ones(weight: Tensor, scale: float) -> Transform:
    """The `Transform` that convolves a 4x4 map of ones with the weights of the last input map, to [O, 4, 4, 1]."""
    (outputs, inputs), step = weight.shape[:2], weight.stride(3)
    origin = (inputs - 1) * weight.stride(1) + 8 * step
    return Transform(outputs, 1, 4, 4, 1, 1, 1, 4, 1, 3, origin, weight.stride(0), 1, -step, scale)


class Request(NamedTuple):
    """A layer's weight, instructions to make kernels from it, and parameters that `Prepare` returns unchanged."""

    weight: Tensor
    transforms: tuple[Transform, ...]
    passed: tuple[Tensor, ...]


class Plan:
    """Tables on the GPU that tell the Triton kernels `prepare` and `gradients` what to compute for all `requests`."""

    def __init__(self, requests: Sequence[Request]) -> None:
        device = requests[0].weight.device
        pairs = [(number, one) for number, request in enumerate(requests) for one in request.transforms]
        self.owners, self.transforms = [of for of, _ in pairs], [one for _, one in pairs]  # owners: indices of weights
        self.sizes = [torch.Size(one.shape).numel() for one in self.transforms]
        self.starts = [0, *accumulate(request.weight.numel() for request in requests)]
        tiles = [[one.tiles[of] for one in self.transforms] for of in (0, 1)]
        begins = zip(*([0, *accumulate(each)] for each in (tiles[0], self.sizes, tiles[1])), strict=True)
        rows = [[*one[:-1], *begin, self.starts[of]] for (of, one), begin in zip(pairs, begins, strict=False)]
        self.table = torch.tensor(rows, dtype=torch.int32, device=device)
        self.addresses = torch.tensor([requests[of].weight.data_ptr() for of in self.owners], device=device)
        self.factors = torch.tensor([one.factor for one in self.transforms], device=device)
        counts = torch.tensor(tiles, dtype=torch.int64)
        self.programs = [torch.repeat_interleave(each).int().to(device) for each in counts]  # each program's table row

    def prepare(self, dtype: torch.dtype) -> list[Tensor]:
        """Make one channels-last kernel per `Transform` t: [t.k * t.rows, t.pixels * t.columns, t.height, t.width]."""
        if not self.transforms:
            return []
        result = torch.empty(sum(self.sizes), dtype=dtype, device=self.table.device)
        owners = self.programs[0]
        launch("prepare", len(owners), self.table, self.factors, owners, self.addresses, result, BLOCK=BLOCK)
        parts = zip(torch.split(result, self.sizes), self.transforms, strict=True)
        return [part.view(one.shape).permute(0, 3, 1, 2) for part, one in parts]

    def gradients(self, parts: Sequence[Sequence[Tensor]]) -> Tensor:
        """Compute the gradients of all weights.  `parts[i]` has the tensors whose sum is the gradient of kernel i."""
        uses = max(map(len, parts))
        missing = [(uses - len(kernel)) * size for kernel, size in zip(parts, self.sizes, strict=True)]
        zeros = next(chain(*parts)).new_zeros(max(missing))
        pieces = []
        for kernel, count in zip(parts, missing, strict=True):
            pieces += [(each if each.ndim == 2 else each.permute(0, 2, 3, 1)).reshape(-1) for each in kernel]
            pieces += [zeros[:count]] if count else []
        result = torch.empty(self.starts[-1], device=self.table.device)
        owners, parts_of_all = self.programs[1], torch.cat(pieces)
        launch("gradients", len(owners), self.table, self.factors, owners, parts_of_all, result, uses, BLOCK=BLOCK)
        return result


class Prepare(torch.autograd.Function):
    """Makes all convolution kernels.  `backward` reads gradients, which layers' backward passes append to `asides`."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, dtype: torch.dtype, asides: list[list[Tensor]], sums: PixelSums, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.plan, ctx.asides, ctx.sums, ctx.weights = plan, asides, sums, inputs[: len(plan.starts) - 1]
        return *plan.prepare(dtype), *(each.view_as(each) for each in inputs[len(ctx.weights) :])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        plan, asides = ctx.plan, ctx.asides
        for aside, gradient in zip(asides, given, strict=False):
            aside.extend([] if gradient is None else [gradient])
        used = {owner for owner, aside in zip(plan.owners, asides, strict=True) if aside}
        flat = plan.gradients(asides) if used else torch.empty(0)
        for aside in asides:
            aside.clear()
        found = [
            flat.as_strided(weight.shape, weight.stride(), plan.starts[number]) if number in used else None
            for number, weight in enumerate(ctx.weights)
        ]
        return None, None, None, None, *found, *ctx.sums.take(given[len(asides) :])


def prepare_together(
    requests: Sequence[Request], dtype: torch.dtype, plans: dict[Any, Plan]
) -> Iterator[tuple[list[tuple[Tensor, list[Tensor]]], list[tuple[Tensor, Rows]]]]:
    """Make all convolution kernels in one Triton launch; yield the kernels and the parameters of each request.

    Each kernel comes with a list that collects the kernel's gradients.  Each parameter comes with a function that
    returns the gradient's buffer.  `plans` caches tables on the GPU, because CUDA graphs can't copy CPU tensors.
    """
    about = tuple((request.weight.data_ptr(), request.transforms) for request in requests)
    plan = plans[about] = plans.get(about) or Plan(requests)
    passed = [each for request in requests for each in request.passed]
    asides: list[list[Tensor]] = [[] for _ in plan.transforms]
    sums = PixelSums(passed)
    prepared = Prepare.apply(plan, dtype, asides, sums, *(request.weight for request in requests), *passed)
    kernels = zip(prepared, asides, strict=False)
    others = ((each, partial(sums.rows, number)) for number, each in enumerate(prepared[len(asides) :]))
    for request in requests:
        yield list(islice(kernels, len(request.transforms))), list(islice(others, len(request.passed)))
