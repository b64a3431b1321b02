"""Gradients of several processes added up: one flat tensor per network, one operation for all of it.

P numbers in the gradients of one network that are in use; one more for the loss, so that all processes agree on it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from pggan.core.schedule import Phase
from pggan.distributed.process_group import World
from pggan.training.state import Player

# Waits for the gradients of all processes, puts their sum in place of this one's, gives the loss of the whole batch.
Arrival = Callable[[], Tensor]


class Exchange:
    """One process: its gradients are those of the whole batch."""

    flat_tensors = 0  # copies of all gradients that are kept at most, besides the gradients

    def __init__(self) -> None:
        self._losses: dict[int, Tensor] = {}

    def prepare(self, phase: Phase, images: int) -> None:
        """Called before each step, with the place in the schedule where it is."""

    def parts(self) -> dict[str, dict[str, Tensor]]:
        """What a checkpoint has to hold besides the state, in host memory of the first process; called by all."""
        return {}

    def load_parts(self, saved: dict[str, dict[str, Tensor]]) -> None:
        """Take over what `parts` gave; `saved` may hold other parts too."""

    def add(self, player: Player, loss: Tensor, batch: int) -> None:
        """Called after each backward pass of a `batch`, with the part of the loss whose gradient it has added."""
        before = self._losses.get(id(player))
        self._losses[id(player)] = loss if before is None else before + loss

    def forget(self) -> None:
        """Called after a step that was broken off."""
        self._losses.clear()

    def send(self, player: Player, batch: int) -> Arrival:
        """Begin to add up the gradients of all processes, each of which is a share of the mean over the batch."""
        loss = self._losses.pop(id(player))
        return lambda: loss


class Flat:
    """The gradients of one network, and its loss, as one tensor."""

    def __init__(self, player: Player) -> None:
        self.weights = in_use(player)
        self.size = sum(weight.numel() for weight in self.weights) + 1
        self.numbers = torch.empty(self.size, dtype=torch.float32, device=self.weights[0].device)

    def fits(self, player: Player) -> bool:
        """Whether the same weights have gradients as when this was made."""
        return same(in_use(player), self.weights)

    def fill(self, loss: Tensor, numbers: Tensor | None = None) -> Tensor:
        """The gradients and `loss`, copied: into `numbers`, if given.  [P + 1]"""
        numbers = self.numbers if numbers is None else numbers
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        torch._foreach_copy_(self._views(numbers), gradients)
        numbers[-1] = loss
        return numbers

    def place(self, numbers: Tensor) -> Tensor:
        """Make the weights' gradients views of `numbers` [P + 1]; returns the loss."""
        for weight, view in zip(self.weights, self._views(numbers), strict=True):
            weight.grad = view
        return numbers[-1]

    def _views(self, numbers: Tensor) -> list[Tensor]:
        views, start = [], 0
        for weight in self.weights:  # with the strides of the weight, so that nothing is reordered on the way
            views.append(numbers.as_strided(weight.shape, weight.stride(), numbers.storage_offset() + start))
            start += weight.numel()
        return views


class Exchanged(Exchange, ABC):
    """Several processes; subclasses say how the sum is made.

    The flat tensors are kept from step to step, and made anew when other layers come into use.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self._flats: dict[int, Flat] = {}

    def send(self, player: Player, batch: int) -> Arrival:
        flat = self._flats.get(id(player))
        if flat is None or not flat.fits(player):
            flat = self._flats[id(player)] = Flat(player)
        numbers = flat.fill(super().send(player, batch)())
        add_up = self.begin(numbers, player)

        def arrive() -> Tensor:
            with self.world.waiting():
                add_up()
            return flat.place(numbers)

        return arrive

    @abstractmethod
    def begin(self, numbers: Tensor, player: Player) -> Callable[[], None]:
        """Begin to replace `numbers` [P + 1] by its sum over all processes; what is returned finishes that."""


class Dense(Exchanged):
    """Everything is sent as float32."""

    flat_tensors = 1

    def begin(self, numbers: Tensor, player: Player) -> Callable[[], None]:
        return finisher(dist.all_reduce(numbers, group=self.world.group, async_op=True))


class Half(Exchanged):
    """Everything is sent as bfloat16: half the bytes, with 8 bits of each number's precision."""

    flat_tensors = 2

    def begin(self, numbers: Tensor, player: Player) -> Callable[[], None]:
        short = numbers.bfloat16()
        finish = finisher(dist.all_reduce(short, group=self.world.group, async_op=True))

        def add_up() -> None:
            finish()
            numbers.copy_(short)

        return add_up


def in_use(player: Player) -> list[Tensor]:
    """The weights that have gradients."""
    return [weight for weight in player.network.weights if weight.grad is not None]


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    """Whether these are the same weights."""
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def finisher(work: dist.Work | None) -> Callable[[], None]:
    """Waits for an asynchronous operation."""

    def finish() -> None:
        assert work is not None, "asynchronous operations give one"
        work.wait()

    return finish
