"""Gradient reducers: the gradients of all ranks, summed by one exchange of one flat buffer per network.

P numbers in the gradients of the levels in use of one network, and S that are summed besides, so that all ranks agree
on them: the loss, and the mean sign of D's scores where the augmentation is adapted to it.
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

EXTRA_STATE = "compression"  # the component of a checkpoint that holds what a reducer keeps for later steps
# Waits for the gradients of all ranks, puts their sum in place of this rank's, and returns the loss of the whole batch
# and what else is summed [S].
Handle = Callable[[], Tensor]
NodeSums = dict[range, Tensor]  # by node of the tree of an elastic sum


class FlatBuffer:
    """The gradients of one network, and what is summed besides, as one tensor."""

    def __init__(self, trainable: Trainable, sums: Tensor) -> None:
        """Copies the gradients and `sums` [S]."""
        self.weights, self.num_sums = trainable.weights_in_use, len(sums)
        self.size = sum(weight.numel() for weight in self.weights) + len(sums)
        self.flat = torch.empty(self.size, dtype=torch.float32, device=sums.device)  # [P + S]
        torch._foreach_copy_(self._views(self.flat), [one.grad for one in self.weights if one.grad is not None])
        self.flat[-len(sums) :] = sums

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


class GradientReducer:
    """The reducer of a single process, whose gradients are the whole batch's; subclasses are for several ranks."""

    has_moments = False  # makes the updates, too, by moments that each rank has of its own

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

    def extra_state(self) -> StateDicts:
        """Tensors of a checkpoint besides the state, in host memory of rank 0, by name; called by all ranks."""
        return {}

    def load_extra_state(self, state_dicts: StateDicts) -> None:
        """Take over what `extra_state` gave; `state_dicts` may hold others too."""


class AllReduce(GradientReducer):
    """All-reduce of gradients in float32, or in bfloat16: half the bytes, with 8 bits of each number's precision."""

    def __init__(self, group: ProcessGroup, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.group, self.dtype = group, dtype

    def start_all_reduce(self, trainable: Trainable, batch: int) -> Handle:
        buffer = FlatBuffer(trainable, self._sums.pop(id(trainable)))
        sent = buffer.flat.to(self.dtype)
        work = dist.all_reduce(sent, group=self.group.torch_group, async_op=True)

        def wait() -> Tensor:
            self.group.wait(work)
            return buffer.attach(buffer.flat.copy_(sent))

        return wait


class ElasticReducer(GradientReducer):
    """Sums in an order that does not depend on the number of ranks, so that no bit of the sum does either.

    A batch is cut into chunks (batch_partition.py), whose gradients are the leaves of a binary tree.  A node is a range
    of chunks, whose length is a power of two that divides its start: it is the sum of its left and its right half,
    where what lies beyond the last chunk is left out.  Each rank sums what it can, then each one finishes a slice of
    all numbers, and an all-gather collects the slices.
    """

    def __init__(self, group: ProcessGroup, partition: BatchPartition) -> None:
        super().__init__()
        self.group, self.partition = group, partition
        self._node_sums: dict[int, NodeSums] = {}
        self._buffers: dict[int, FlatBuffer] = {}

    def accumulate(self, trainable: Trainable, sums: Tensor, batch: int) -> None:
        """Put the gradients of one chunk aside."""
        node_sums = self._node_sums.setdefault(id(trainable), {})
        done = sum(map(len, node_sums))
        buffer = self._buffers[id(trainable)] = FlatBuffer(trainable, sums)  # the last one gets the sum in the end
        add_chunk(node_sums, self.partition.chunks_of(self.group.rank, batch)[done], buffer.flat)
        trainable.zero_grad()

    def start_all_reduce(self, trainable: Trainable, batch: int) -> Handle:
        buffer, node_sums = self._buffers.pop(id(trainable)), self._node_sums.pop(id(trainable))
        count, size = self.partition.chunks(batch), self.group.world_size
        if size == 1:
            return lambda: buffer.attach(tree_sum(node_sums, count))
        # [nodes, ranks, slice]: slice r of every node goes to rank r.
        width = -(-buffer.size // size)
        padding = width * size - buffer.size
        mine = torch.stack([torch.nn.functional.pad(flat, (0, padding)) for flat in node_sums.values()])
        node_sums.clear()
        nodes = [nodes_of(self.partition.chunks_of(rank, batch)) for rank in range(size)]
        sent = mine.view(len(mine), size, width).transpose(0, 1).contiguous().view(-1)
        to_each, from_each = [len(mine) * width] * size, [len(of_rank) * width for of_rank in nodes]
        received = sent.new_empty(sum(from_each))
        torch_group = self.group.torch_group
        work = dist.all_to_all_single(received, sent, from_each, to_each, group=torch_group, async_op=True)

        def wait() -> Tensor:
            self.group.wait(work)
            all_nodes = [node for of_rank in nodes for node in of_rank]
            total = tree_sum(dict(zip(all_nodes, received.view(-1, width), strict=True)), count)
            whole = total.new_empty(size, width)
            self.group.wait(dist.all_gather(list(whole), total, group=torch_group, async_op=True))
            return buffer.attach(whole.view(-1)[: buffer.size])

        return wait


def add_chunk(node_sums: NodeSums, chunk: int, flat: Tensor) -> None:
    """Take in the next chunk of a rank, and sum every node whose two halves are there.  `flat` is kept."""
    node = range(chunk, chunk + 1)
    while node.start // len(node) % 2 and (left := range(node.start - len(node), node.start)) in node_sums:
        flat = node_sums.pop(left).add_(flat)
        node = range(left.start, node.stop)
    node_sums[node] = flat


def nodes_of(chunks: range) -> list[range]:
    """The nodes that a rank with these chunks ends up with, in order."""
    node_sums: NodeSums = {}
    for chunk in chunks:
        add_chunk(node_sums, chunk, torch.zeros(()))
    return list(node_sums)


def tree_sum(node_sums: NodeSums, count: int) -> Tensor:
    """The sum of all `count` chunks; uses up `node_sums`."""

    def of(node: range) -> Tensor:
        if node in node_sums:
            return node_sums.pop(node)
        left, right = node[: len(node) // 2], node[len(node) // 2 :]
        return of(left) if right.start >= count else of(left).add_(of(right))

    return of(range(1 << (count - 1).bit_length()))
