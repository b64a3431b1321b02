"""Gradients added up in an order that does not depend on the number of processes, so that no bit does either.

A batch is cut into shards (pggan.training.gradients.batch_partition).  Their gradients are the leaves of a binary tree: a node that
spans `size` shards from `start` is the sum of its left and its right half; what lies beyond the last shard is left
out.  Each process adds up what it can, then each one finishes a slice of all numbers, and all collect the slices.

P numbers in the gradients of one network that are in use, and one for the loss.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from pggan.distributed.process_group import World
from pggan.training.gradients.batch_partition import Division
from pggan.training.gradients.reducer import Arrival, Exchange, Flat
from pggan.training.state import Player


@dataclass(frozen=True)
class Node:
    """The shards `start` … `start + size - 1`; both are multiples of `size`, a power of two."""

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


def add_shard(sums: Sums, shard: int, numbers: Tensor) -> None:
    """Take in the next shard of a process, and add up every node whose two halves are there.  `numbers` is kept."""
    node = Node(shard, 1)
    while not node.is_left and node.parent.halves[0] in sums:
        numbers = sums.pop(node.parent.halves[0]).add_(numbers)
        node = node.parent
    sums[node] = numbers


def nodes_of(shards: range) -> list[Node]:
    """The nodes that a process with these shards ends up with, in order."""
    nodes: list[Node] = []
    for shard in shards:
        node = Node(shard, 1)
        while not node.is_left and nodes and nodes[-1] == node.parent.halves[0]:
            nodes.pop()
            node = node.parent
        nodes.append(node)
    return nodes


def tree_sum(sums: Sums, count: int) -> Tensor:
    """The sum of all `count` shards; uses up `sums`."""

    def of(node: Node) -> Tensor:
        if node in sums:
            return sums.pop(node)
        left, right = node.halves
        return of(left) if right.start >= count else of(left).add_(of(right))

    return of(Node(0, 1 << (count - 1).bit_length()))


class Sharded(Exchange):
    """Elastic training: the same sum, bit by bit, on any number of processes."""

    def __init__(self, world: World, division: Division) -> None:
        super().__init__()
        self.world = world
        self.division = division
        self.flat_tensors = division.most_shards.bit_length() + 1  # sums of shards
        self._sums: dict[int, Sums] = {}
        self._flats: dict[int, Flat] = {}

    def add(self, player: Player, loss: Tensor, batch: int) -> None:
        """Put the gradients of one shard aside."""
        sums = self._sums.setdefault(id(player), {})
        mine = self.division.shards_of(self.world.rank, batch)
        done = sum(node.size for node in sums)
        flat = Flat(player)
        add_shard(sums, mine[done], flat.fill(loss))
        player.forget_gradient()
        self._flats[id(player)] = flat  # any of them: it gets the sum in the end

    def forget(self) -> None:
        super().forget()
        self._sums.clear()
        self._flats.clear()

    def send(self, player: Player, batch: int) -> Arrival:
        flat, sums = self._flats.pop(id(player)), self._sums.pop(id(player))
        count, world = self.division.shards(batch), self.world
        if world.size == 1:
            return lambda: flat.place(tree_sum(sums, count))
        # [nodes, processes, slice]: slice r of every node goes to process r.
        slice_size = -(-flat.size // world.size)
        padding = slice_size * world.size - flat.size
        mine = torch.stack([torch.nn.functional.pad(numbers, (0, padding)) for numbers in sums.values()])
        sums.clear()
        nodes = [nodes_of(self.division.shards_of(rank, batch)) for rank in range(world.size)]
        parts = mine.view(len(mine), world.size, slice_size).transpose(0, 1).contiguous().view(-1)
        received = parts.new_empty(sum(map(len, nodes)) * slice_size)
        sending = dist.all_to_all_single(
            received,
            parts,
            [len(of_rank) * slice_size for of_rank in nodes],
            [len(mine) * slice_size] * world.size,
            group=world.group,
            async_op=True,
        )

        def arrive() -> Tensor:
            with world.waiting():
                assert sending is not None, "asynchronous operations give one"
                sending.wait()
                all_nodes = [node for of_rank in nodes for node in of_rank]
                total = tree_sum(dict(zip(all_nodes, received.view(-1, slice_size), strict=True)), count)
                whole = total.new_empty(world.size, slice_size)
                dist.all_gather(list(whole), total, group=world.group)
            return flat.place(whole.view(-1)[: flat.size])

        return arrive
