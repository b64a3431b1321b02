"""Gradient reducers: the gradients of all ranks, summed by one all-reduce of one flat buffer per network.

P numbers in the gradients of the levels in use of one network, and S that are summed besides, so that all ranks agree
on them: the loss, and the mean sign of D's scores where the augmentation is adapted to it.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.state import StateDicts, Trainable

# Waits for the gradients of all ranks, puts their sum in place of this rank's, and returns the loss of the whole batch
# and what else is summed [S].
Handle = Callable[[], Tensor]


class GradientReducer:
    """The reducer of a single process, whose gradients are the whole batch's; subclasses are for several ranks."""

    gradient_copies = 0  # copies of all gradients that are kept at most, besides the gradients

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}

    def begin_step(self, phase: Phase, images: int) -> None:
        """Called before the step of `phase` at `images` images."""

    def accumulate(self, trainable: Trainable, sums: Tensor, batch: int) -> None:
        """Called after each backward pass of a `batch`, with its share of the `sums` [S]: loss and mean sign."""
        before = self._sums.get(id(trainable))
        self._sums[id(trainable)] = sums if before is None else before + sums

    def start_all_reduce(self, trainable: Trainable, batch: int) -> Handle:
        """Begin to sum the gradients of all ranks, each of which is a share of the mean over the batch."""
        sums = self._sums.pop(id(trainable))
        return lambda: sums

    def abort_step(self) -> None:
        """Called after a step that did not come to its end."""
        self._sums.clear()

    def extra_state(self) -> StateDicts:
        """Tensors of a checkpoint besides the state, in host memory of rank 0, by name; called by all ranks."""
        return {}

    def load_extra_state(self, state_dicts: StateDicts) -> None:
        """Take over what `extra_state` gave; `state_dicts` may hold others too."""


class FlatBuffer:
    """The gradients of one network, and what is summed besides, as one tensor."""

    def __init__(self, trainable: Trainable, num_sums: int = 1) -> None:
        self.weights, self.num_sums = trainable.weights_in_use, num_sums
        self.size = sum(weight.numel() for weight in self.weights) + num_sums
        self.flat = torch.empty(self.size, dtype=torch.float32, device=self.weights[0].device)

    def fill(self, sums: Tensor, flat: Tensor | None = None) -> Tensor:
        """Copy the gradients and `sums` [S] into `flat`, by default the buffer's own; returns them.  [P + S]"""
        flat = self.flat if flat is None else flat
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        torch._foreach_copy_(self._views(flat), gradients)
        flat[-self.num_sums :] = sums
        return flat

    def attach(self, flat: Tensor) -> Tensor:
        """Make the weights' gradients views of `flat` [P + S]; returns the sums [S]."""
        for weight, view in zip(self.weights, self._views(flat), strict=True):
            weight.grad = view
        return flat[-self.num_sums :]

    def _views(self, flat: Tensor) -> list[Tensor]:
        starts = accumulate((weight.numel() for weight in self.weights), initial=int(flat.storage_offset()))
        # With the strides of the weight, so that nothing is reordered on the way.
        places = zip(self.weights, starts, strict=False)
        return [flat.as_strided(weight.shape, weight.stride(), start) for weight, start in places]


class AllReduceFp32(GradientReducer):
    """All-reduce of gradients in float32."""

    gradient_copies = 1
    dtype: ClassVar[torch.dtype] = torch.float32  # that is sent

    def __init__(self, group: ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self._buffers: dict[int, FlatBuffer] = {}

    def start_all_reduce(self, trainable: Trainable, batch: int) -> Handle:
        buffer, sums = self._buffers.get(id(trainable)), self._sums.pop(id(trainable))
        if buffer is None or not trainable.uses(buffer.weights):  # kept until other levels come into use
            buffer = self._buffers[id(trainable)] = FlatBuffer(trainable, sums.numel())
        flat = buffer.fill(sums)
        sent = flat.to(self.dtype)
        work = dist.all_reduce(sent, group=self.group.torch_group, async_op=True)

        def wait() -> Tensor:
            self.group.wait(work)
            return buffer.attach(flat.copy_(sent))

        return wait


class AllReduceBf16(AllReduceFp32):
    """All-reduce of gradients in bfloat16: half the bytes, with 8 bits of each number's precision."""

    gradient_copies = 2
    dtype = torch.bfloat16
