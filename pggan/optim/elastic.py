"""Gradients added up in an order that does not depend on the number of ranks, so that no bit does either.

A batch is cut into chunks (batch_partition.py).  Their gradients are the leaves of a binary tree: a node that
spans `size` chunks from `start` is the sum of its left and its right half; what lies beyond the last chunk is left
out.  Each rank adds up what it can, then each one finishes a slice of all numbers, and all collect the slices.

P numbers in the gradients of one network that are in use, and one for the loss.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from pggan.distributed.process_group import ProcessGroup
from pggan.optim.batch_partition import BatchPartition
from pggan.optim.reducer import FlatBuffer, GradientReducer, Handle
from pggan.optim.state import Trainable


@dataclass(frozen=True)
class Node:
    """The chunks `start` … `start + size - 1`; both are multiples of `size`, a power of two."""

    start: int
    size: int

    @property
    def halves(self) -> "tuple[Node, Node]":
        half = self.size // 2
        return Node(self.start, half), Node(self.start + half, half)

    @property
    def is_left(self) -> bool:
        return self.start // self.size % 2 == 0

    @property
    def parent(self) -> "Node":
        return Node(self.start - (0 if self.is_left else self.size), 2 * self.size)


Sums = dict[Node, Tensor]


def add_chunk(sums: Sums, chunk: int, numbers: Tensor) -> None:
    """Take in the next chunk of a rank, and add up every node whose two halves are there.  `numbers` is kept."""
    node = Node(chunk, 1)
    while not node.is_left and node.parent.halves[0] in sums:
        numbers = sums.pop(node.parent.halves[0]).add_(numbers)
        node = node.parent
    sums[node] = numbers


def nodes_of(chunks: range) -> list[Node]:
    """The nodes that a rank with these chunks ends up with, in order."""
    nodes: list[Node] = []
    for chunk in chunks:
        node = Node(chunk, 1)
        while not node.is_left and nodes and nodes[-1] == node.parent.halves[0]:
            nodes.pop()
            node = node.parent
        nodes.append(node)
    return nodes


def tree_sum(sums: Sums, count: int) -> Tensor:
    """The sum of all `count` chunks; uses up `sums`."""

    def of(node: Node) -> Tensor:
        if node in sums:
            return sums.pop(node)
        left, right = node.halves
        return of(left) if right.start >= count else of(left).add_(of(right))

    return of(Node(0, 1 << (count - 1).bit_length()))


class ElasticReducer(GradientReducer):
    """Elastic training: the same sum, bit by bit, on any number of ranks."""

    def __init__(self, group: ProcessGroup, partition: BatchPartition) -> None:
        super().__init__()
        self.group = group
        self.partition = partition
        self.flat_tensors = partition.most_chunks.bit_length() + 1  # sums of chunks
        self._sums: dict[int, Sums] = {}
        self._buffers: dict[int, FlatBuffer] = {}

    def accumulate(self, trainable: Trainable, loss: Tensor, batch: int) -> None:
        """Put the gradients of one chunk aside."""
        sums = self._sums.setdefault(id(trainable), {})
        mine = self.partition.chunks_of(self.group.rank, batch)
        done = sum(node.size for node in sums)
        buffer = FlatBuffer(trainable)
        add_chunk(sums, mine[done], buffer.fill(loss))
        trainable.zero_grad()
        self._buffers[id(trainable)] = buffer  # any of them: it gets the sum in the end

    def abort_step(self) -> None:
        super().abort_step()
        self._sums.clear()
        self._buffers.clear()

    def all_reduce(self, trainable: Trainable, batch: int) -> Handle:
        buffer, sums = self._buffers.pop(id(trainable)), self._sums.pop(id(trainable))
        count, group = self.partition.chunks(batch), self.group
        if group.world_size == 1:
            return lambda: buffer.attach(tree_sum(sums, count))
        # [nodes, ranks, slice]: slice r of every node goes to process r.
        slice_size = -(-buffer.size // group.world_size)
        padding = slice_size * group.world_size - buffer.size
        mine = torch.stack([torch.nn.functional.pad(numbers, (0, padding)) for numbers in sums.values()])
        sums.clear()
        nodes = [nodes_of(self.partition.chunks_of(rank, batch)) for rank in range(group.world_size)]
        parts = mine.view(len(mine), group.world_size, slice_size).transpose(0, 1).contiguous().view(-1)
        received = parts.new_empty(sum(map(len, nodes)) * slice_size)
        sending = dist.all_to_all_single(
            received,
            parts,
            [len(of_rank) * slice_size for of_rank in nodes],
            [len(mine) * slice_size] * group.world_size,
            group=group.torch_group,
            async_op=True,
        )

        def wait() -> Tensor:
            with group.collective():
                assert sending is not None, "asynchronous operations give one"
                sending.wait()
                all_nodes = [node for of_rank in nodes for node in of_rank]
                total = tree_sum(dict(zip(all_nodes, received.view(-1, slice_size), strict=True)), count)
                whole = total.new_empty(group.world_size, slice_size)
                dist.all_gather(list(whole), total, group=group.torch_group)
            return buffer.attach(whole.view(-1)[: buffer.size])

        return wait
