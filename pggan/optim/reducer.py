"""Gradient reducers sum the gradients of all ranks, in one flat tensor per network.

Shapes: P gradient elements of a network, S scalars that are summed with them, such as the loss.
"""

from collections.abc import Callable
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.state import StateDicts, Trainable

EXTRA_STATE = "compression"  # key of a checkpoint under which a reducer stores its own tensors
# A Handle is a function that waits for all ranks, sets each weight's `grad`, and returns the summed scalars [S].
Handle = Callable[[], Tensor]


class FlatBuffer:
    """A flat tensor [P + S] with the P gradient elements of a network and S more scalars, which ranks sum together."""

    def __init__(self, trainable: Trainable, sums: Tensor) -> None:
        self.weights, self.num_sums = trainable.weights_in_use, len(sums)
        self.size = sum(weight.numel() for weight in self.weights) + len(sums)
        self.flat = torch.empty(self.size, dtype=torch.float32, device=sums.device)
        torch._foreach_copy_(self._views(self.flat), [one.grad for one in self.weights if one.grad is not None])
        self.flat[-len(sums) :] = sums

    def attach(self, flat: Tensor) -> Tensor:
        """Make each weight's `grad` a view of `flat` [P + S]; return the S scalars at the end of `flat`."""
        for weight, view in zip(self.weights, self._views(flat), strict=True):
            weight.grad = view
        return flat[-self.num_sums :]

    def _views(self, flat: Tensor) -> list[Tensor]:
        starts = accumulate((weight.numel() for weight in self.weights), initial=int(flat.storage_offset()))
        # Views have the weights' strides (often channels-last), so that copies between gradients and `flat` are fast.
        places = zip(self.weights, starts, strict=False)
        return [flat.as_strided(weight.shape, weight.stride(), start) for weight, start in places]


class GradientReducer:
    """The gradient reducer of a single process, which exchanges nothing; subclasses are for several ranks."""

    has_moments = False  # whether the reducer, not the optimizer, holds Adam's moments

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}

    def begin_step(self, phase: Phase, images: int) -> None:
        """Prepare for the next step, which is in `phase`; `images`: number of real images shown so far."""

    def accumulate(self, trainable: Trainable, sums: Tensor, batch: int) -> None:
        """Add the scalars `sums` [S] to this step's totals.  Call this method after each backward pass."""
        before = self._sums.get(id(trainable))
        self._sums[id(trainable)] = sums if before is None else before + sums

    def start_all_reduce(self, trainable: Trainable, batch: int) -> Handle:
        """Start to sum the gradients of all ranks.  Losses are scaled so that the sum is the batch's mean gradient."""
        sums = self._sums.pop(id(trainable))
        return lambda: sums

    def extra_state(self) -> StateDicts:
        """On rank 0, the reducer's own tensors for a checkpoint; on others, {}.  All ranks must call this method."""
        return {}

    def load_extra_state(self, saved: dict[str, Tensor]) -> None:
        """Load the tensors that `extra_state` has stored in a checkpoint."""


class AllReduce(GradientReducer):
    """All-reduce of gradients in float32 or, to halve the traffic, in bfloat16."""

    def __init__(self, group: ProcessGroup, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.group, self.dtype = group, dtype

    def start_all_reduce(self, trainable: Trainable, batch: int) -> Handle:
        buffer = FlatBuffer(trainable, self._sums.pop(id(trainable)))
        sent = buffer.flat.to(self.dtype)
        work = self.group.start(dist.all_reduce, sent)

        def wait() -> Tensor:
            self.group.wait(work)
            return buffer.attach(buffer.flat.copy_(sent))

        return wait
