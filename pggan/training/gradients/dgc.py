"""Gradients sent by Deep Gradient Compression: most of an update waits in the process that made it.

Adam's work is done here, before anything is sent; the players are given what arrives of the updates.
P parameters of one network in use, n processes.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from pggan.config import OptimizerConfig
from pggan.core.schedule import Phase
from pggan.distributed.process_group import World
from pggan.training.gradients.compression import Compressor, WarmUp, mean_of
from pggan.training.gradients.reducer import Arrival, Exchange, finisher, in_use, same
from pggan.training.gradients.sparse_optimizer import SparseSteps
from pggan.training.state import Player, State, in_memory_order

KEPT = "compression"  # the part of a checkpoint


class InUse:
    """The weights of one network that have gradients, as one vector [P]."""

    def __init__(self, player: Player, optimizer: SparseSteps) -> None:
        self.weights = in_use(player)
        device = self.weights[0].device
        sizes = [weight.numel() for weight in self.weights]
        self.size = sum(sizes)
        self.room = torch.zeros(self.size, device=device)
        begins = torch.tensor([0, *sizes], device=device).cumsum(0)
        self._ends = begins[1:]
        self._shifts = (
            torch.tensor([optimizer.starts[id(weight)] for weight in self.weights], device=device) - begins[:-1]
        )

    def gradients(self) -> list[Tensor]:
        """One vector per weight."""
        return [in_memory_order(weight.grad).flatten() for weight in self.weights if weight.grad is not None]

    def positions(self, indices: Tensor) -> Tensor:
        """Where in the optimizer's memory the entries of the vector are."""
        return indices + self._shifts[torch.bucketize(indices, self._ends, right=True)]


class Compressed(Exchange):
    """Only the entries that matter most are sent; what a checkpoint needs of the rest is in `parts`."""

    flat_tensors = 2  # what sending is worth, and room for the update

    def __init__(
        self, world: World, state: State, optimizer: OptimizerConfig, *, warm_up: WarmUp, clip: float | None
    ) -> None:
        """Args: clip: the largest norm of the mean gradient; that of each process is limited to clip / sqrt(n)."""
        super().__init__()
        self.world = world
        self.warm_up = warm_up
        self._optimizer = optimizer
        self._clip = None if clip is None else clip / world.size**0.5
        self._names = {id(state.g): "g", id(state.d): "d"}
        self._compressors: dict[str, Compressor] = {}
        self._in_use: dict[str, InUse] = {}
        self._phase = -1
        self._share = 1.0

    def prepare(self, phase: Phase, images: int) -> None:
        if phase.index != self._phase and self._phase >= 0:
            self._compressors.clear()  # as Adam's moments are forgotten; and other layers are in use
        self._phase = phase.index
        self._share = self.warm_up.ratio_at(images - phase.start)

    def send(self, player: Player, batch: int) -> Arrival:
        loss, name, optimizer = super().send(player, batch)(), self._names[id(player)], player.optimizer
        assert isinstance(optimizer, SparseSteps), "players of a state that was made for it"
        if name not in self._in_use or not same(self._in_use[name].weights, in_use(player)):
            self._in_use[name] = InUse(player, optimizer)
        using = self._in_use[name]
        gradients = using.gradients()
        # All have to know of one that is not finite before any of them takes its gradient in.
        unbounded = ~torch.isfinite(torch.stack([gradient.sum() for gradient in gradients]).sum() + loss)
        told = torch.stack([loss, unbounded.float()])
        with self.world.waiting():
            dist.all_reduce(told, group=self.world.group)
        finite = told[1] == 0
        # Of this process's own images, and as it was before the loss was scaled.
        factor = self.world.size if player.scale is None else self.world.size / player.scale
        count = max(round(self._share * using.size), 1)
        message = self._compressor(name, using.size, loss.device).select(gradients, count, finite, factor)
        player.forget_gradient()
        messages = message.new_empty(self.world.size, len(message))
        finish = finisher(dist.all_gather(list(messages), message, group=self.world.group, async_op=True))

        def arrive() -> Tensor:
            with self.world.waiting():
                finish()
            indices, updates = mean_of(messages, count, using.room)
            optimizer.give(using.positions(indices), updates)
            return torch.where(finite, told[0], torch.nan)

        return arrive

    def parts(self) -> dict[str, dict[str, Tensor]]:
        """What every process keeps for later steps, of all processes; in host memory of the first."""
        tensors = {}
        for network, compressor in self._compressors.items():
            for name, tensor in compressor.tensors().items():
                for rank, theirs in enumerate(self.world.gathered(tensor)):
                    tensors[f"{network}/{rank}/{name}"] = theirs
        return {KEPT: tensors} if tensors else {}

    def load_parts(self, saved: dict[str, dict[str, Tensor]]) -> None:
        """Take over what `parts` gave; with another number of processes, each one gets the mean of what there was."""
        tensors = saved.get(KEPT, {})
        ranks = {int(name.split("/")[1]) for name in tensors}
        for network in {name.split("/")[0] for name in tensors}:
            names = {name.split("/")[2] for name in tensors if name.startswith(f"{network}/")}
            mine = {
                name: tensors[f"{network}/{self.world.rank}/{name}"]
                if len(ranks) == self.world.size
                else torch.stack([tensors[f"{network}/{rank}/{name}"] for rank in sorted(ranks)]).mean(0)
                for name in names
            }
            self._compressor(network, len(mine["residual"]), self.world.device).load_tensors(mine)

    def _compressor(self, network: str, size: int, device: torch.device) -> Compressor:
        if network not in self._compressors:
            self._compressors[network] = Compressor(
                size,
                beta1=self._optimizer.beta1,
                beta2=self._optimizer.beta2,
                epsilon=self._optimizer.epsilon,
                clip=self._clip,
                device=device,
            )
        return self._compressors[network]
