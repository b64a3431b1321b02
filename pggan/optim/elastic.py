"""Gradients summed in an order that does not depend on the number of ranks, so that no bit of the sum does either.

A batch is cut into chunks (batch_partition.py), whose gradients are the leaves of a binary tree.  A node is a range of
chunks, whose length is a power of two that divides its start: it is the sum of its left and its right half, where what
lies beyond the last chunk is left out.
Each rank sums what it can, then each one finishes a slice of all numbers, and an all-gather collects the slices.

P numbers in the gradients of the levels in use of one network, and those that are summed besides.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from pggan.distributed.process_group import ProcessGroup
from pggan.optim.batch_partition import BatchPartition
from pggan.optim.reducer import FlatBuffer, GradientReducer, Handle
from pggan.optim.state import Trainable

NodeSums = dict[range, Tensor]  # by node


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


class ElasticReducer(GradientReducer):
    """The reducer of elastic training: the same sum, bit by bit, on any number of ranks."""

    def __init__(self, group: ProcessGroup, partition: BatchPartition) -> None:
        super().__init__()
        self.group, self.partition = group, partition
        self.gradient_copies = partition.most_chunks.bit_length() + 1  # sums of chunks
        self._node_sums: dict[int, NodeSums] = {}
        self._buffers: dict[int, FlatBuffer] = {}

    def accumulate(self, trainable: Trainable, sums: Tensor, batch: int) -> None:
        """Put the gradients of one chunk aside."""
        node_sums = self._node_sums.setdefault(id(trainable), {})
        done = sum(map(len, node_sums))
        # The last one gets the sum in the end.
        buffer = self._buffers[id(trainable)] = FlatBuffer(trainable, sums.numel())
        add_chunk(node_sums, self.partition.chunks_of(self.group.rank, batch)[done], buffer.fill(sums))
        trainable.zero_grad()

    def abort_step(self) -> None:
        super().abort_step()
        self._node_sums.clear()
        self._buffers.clear()

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
