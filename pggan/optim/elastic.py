"""Sums the gradients of all ranks; the sums have the same bits for any number of ranks.

Shapes: P gradient elements of a network, S scalars that are summed with them, such as the loss.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from pggan.distributed.process_group import ProcessGroup
from pggan.optim.batch_partition import BatchPartition
from pggan.optim.reducer import FlatBuffer, GradientReducer, Handle
from pggan.optim.state import Trainable

NodeSums = dict[range, Tensor]  # {range of chunks: sum [P + S] of these chunks' gradients and scalars}


class ElasticReducer(GradientReducer):
    """Sums gradients in an order that does not depend on the number of ranks, so that the sum always has the same bits.

    The order is a binary tree, whose leaves are the chunks of the batch (batch_partition.py).  Each rank sums the
    largest subtrees of which it has all chunks.  An all-to-all gives each rank one slice of every rank's sums.  Each
    rank adds up the slices that it gets, and an all-gather joins the totals of all ranks.
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
    """The largest subtrees that consist of one rank's `chunks`, in the order in which this rank sends their sums."""
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
