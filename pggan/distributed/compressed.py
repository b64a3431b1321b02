"""Gradients sent by Deep Gradient Compression: most of an update waits in the process that made it.

Adam's work is done here, before anything is sent, and the players' own optimizer takes plain steps.
P parameters of one network in use, n processes.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from pggan.config import OptimizerConfig
from pggan.distributed.compression import Compressor, WarmUp, restore
from pggan.distributed.exchange import Exchanged
from pggan.distributed.world import World
from pggan.schedule import Phase
from pggan.state import Player, State

KEPT = "compression"  # the part of a checkpoint


class Compressed(Exchanged):
    """Only the entries that matter most are sent; what a checkpoint needs of the rest is in `parts`."""

    flat_tensors = 3  # gradients, what sending is worth, and the update

    def __init__(
        self, world: World, state: State, optimizer: OptimizerConfig, *, warm_up: WarmUp, clip: float | None
    ) -> None:
        """Args: clip: the largest norm of the mean gradient; that of each process is limited to clip / sqrt(n)."""
        super().__init__(world)
        self.warm_up = warm_up
        self._optimizer = optimizer
        self._clip = None if clip is None else clip / world.size**0.5
        self._names = {id(state.g): "g", id(state.d): "d"}
        self._compressors: dict[str, Compressor] = {}
        self._phase = -1
        self._share = 1.0

    def prepare(self, phase: Phase, images: int) -> None:
        if phase.index != self._phase and self._phase >= 0:
            self._compressors.clear()  # as Adam's moments are forgotten; and other layers are in use
        self._phase = phase.index
        self._share = self.warm_up.ratio_at(images - phase.start)

    def begin(self, numbers: Tensor, player: Player) -> Callable[[], None]:
        gradient = numbers[:-1]
        # Of this process's own images, and as it was before the loss was scaled.
        factor = self.world.size if player.scale is None else self.world.size / player.scale
        # All have to know of one that is not finite before any of them takes its gradient in.
        told = torch.stack([numbers[-1], (~torch.isfinite(gradient.sum() + numbers[-1])).float()])
        with self.world.waiting():
            dist.all_reduce(told, group=self.world.group)
        finite = told[1] == 0
        count = max(round(self._share * len(gradient)), 1)
        compressor = self._compressor(self._names[id(player)], len(gradient), numbers.device)
        message = compressor.select(gradient, count, finite, factor)
        messages = message.new_empty(self.world.size, len(message))
        gathering = dist.all_gather(list(messages), message, group=self.world.group, async_op=True)

        def add_up() -> None:
            assert gathering is not None, "asynchronous operations give one"
            gathering.wait()
            restore(messages, count, gradient)
            if player.scale is not None:
                gradient.mul_(player.scale)
            numbers[-1] = torch.where(finite, told[0], torch.nan)

        return add_up

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
