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
from pggan.optim.batch_partition import BatchPartition
from pggan.optim.state import StateDicts, Trainable

EXTRA_STATE = "compression"  # key of a checkpoint under which a reducer stores its own tensors
# A handle waits for the all-reduce, sets each `grad` to the sum over ranks, and returns the summed scalars [S].
Handle = Callable[[], Tensor]
NodeSums = dict[range, Tensor]  # {range of chunks: sum [P + S] of the chunks' gradients and scalars}


class FlatBuffer:
    """A flat tensor [P + S]: the P gradient elements of a network, then S scalars to be summed with them."""

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
    """The reducer of a single process, which has nothing to exchange; subclasses are for several ranks."""

    has_moments = False  # whether the reducer, not the optimizer, holds Adam's moments

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}

    def begin_step(self, phase: Phase, images: int) -> None:
        """Prepare for the next step, which is in `phase`; `images`: number of real images shown so far."""

    def accumulate(self, trainable: Trainable, sums: Tensor, batch: int) -> None:
        """Add a backward pass's scalars `sums` [S] to those of the step; call this method after each backward pass."""
        before = self._sums.get(id(trainable))
        self._sums[id(trainable)] = sums if before is None else before + sums

    def start_all_reduce(self, trainable: Trainable, batch: int) -> Handle:
        """Start to sum the gradients of all ranks; losses are scaled so that the sum is the mean over the batch."""
        sums = self._sums.pop(id(trainable))
        return lambda: sums

    def extra_state(self) -> StateDicts:
        """The reducer's own tensors for a checkpoint; {} on all ranks but 0.  All ranks must call this method."""
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


class ElasticReducer(GradientReducer):
    """Sums gradients in an order that does not depend on the number of ranks, so that the sum always has the same bits.

    Sums are formed along a binary tree, whose leaves are the chunks of the batch (batch_partition.py).  Each rank sums
    the largest subtrees of its own chunks.  An all-to-all gives each rank one slice of every rank's sums.  The rank
    adds up its slices, and an all-gather joins the totals.
    """

    def __init__(self, group: ProcessGroup, partition: BatchPartition) -> None:
        super().__init__()
        self.group, self.partition = group, partition
        self._node_sums: dict[int, NodeSums] = {}
        self._buffers: dict[int, FlatBuffer] = {}

    def accumulate(self, trainable: Trainable, sums: Tensor, batch: int) -> None:
        node_sums = self._node_sums.setdefault(id(trainable), {})
        done = sum(map(len, node_sums))
        buffer = self._buffers[id(trainable)] = FlatBuffer(trainable, sums)  # `start_all_reduce` needs the last buffer
        add_chunk(node_sums, self.partition.chunks_of(self.group.rank, batch)[done], buffer.flat)
        trainable.zero_grad()

    def start_all_reduce(self, trainable: Trainable, batch: int) -> Handle:
        buffer, node_sums = self._buffers.pop(id(trainable)), self._node_sums.pop(id(trainable))
        count, size = self.partition.chunks(batch), self.group.world_size
        if size == 1:
            return lambda: buffer.attach(tree_sum(node_sums, count))
        # Each partial sum is padded and cut into `size` slices: slice r goes to rank r.
        width = -(-buffer.size // size)
        padding = width * size - buffer.size
        mine = torch.stack([torch.nn.functional.pad(flat, (0, padding)) for flat in node_sums.values()])
        node_sums.clear()
        nodes = [nodes_of(self.partition.chunks_of(rank, batch)) for rank in range(size)]
        sent = mine.view(len(mine), size, width).transpose(0, 1).contiguous().view(-1)
        to_each, from_each = [len(mine) * width] * size, [len(of_rank) * width for of_rank in nodes]
        received = sent.new_empty(sum(from_each))
        work = self.group.start(dist.all_to_all_single, received, sent, from_each, to_each)

        def wait() -> Tensor:
            self.group.wait(work)
            all_nodes = [node for of_rank in nodes for node in of_rank]
            total = tree_sum(dict(zip(all_nodes, received.view(-1, width), strict=True)), count)
            whole = total.new_empty(size, width)
            self.group.wait(self.group.start(dist.all_gather, list(whole), total))
            return buffer.attach(whole.view(-1)[: buffer.size])

        return wait


def add_chunk(node_sums: NodeSums, chunk: int, flat: Tensor) -> None:
    """Store the gradients `flat` of `chunk` in `node_sums`; add up sums that have the same parent in the tree."""
    node = range(chunk, chunk + 1)
    while node.start // len(node) % 2 and (left := range(node.start - len(node), node.start)) in node_sums:
        flat = node_sums.pop(left).add_(flat)
        node = range(left.start, node.stop)
    node_sums[node] = flat


def nodes_of(chunks: range) -> list[range]:
    """The largest subtrees of one rank's `chunks`, in the order in which the rank sends the subtrees' sums."""
    node_sums: NodeSums = {}
    for chunk in chunks:
        add_chunk(node_sums, chunk, torch.zeros(()))
    return list(node_sums)


def tree_sum(node_sums: NodeSums, count: int) -> Tensor:
    """The sum over all `count` chunks of a batch, from the partial sums `node_sums`; empties `node_sums`."""

    def of(node: range) -> Tensor:
        if node in node_sums:
            return node_sums.pop(node)
        left, right = node[: len(node) // 2], node[len(node) // 2 :]
        return of(left) if right.start >= count else of(left).add_(of(right))

    return of(range(1 << (count - 1).bit_length()))
