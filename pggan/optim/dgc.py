"""Deep gradient compression for Adam: of every update only the largest entries are sent, the rest is sent later.

Each rank makes Adam's updates of its own gradients; they wait in its residual until they are sent.  The mean of what
all ranks have sent is subtracted from the weights.  Source: Lin et al. 2018 (residuals, warmup), made for SGD; what
becomes of it with Adam is derived in docs/scaling.md, for beta1 = 0.

P parameters of the levels in use of one network, k entries sent, n ranks, S sums (reducer.py).
"""

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.reducer import EXTRA_STATE, FlatBuffer, GradientReducer, Handle
from pggan.optim.state import State, StateDicts, Trainable
from pggan.optim.updates import Adam, new_moments

WARMUP_FACTOR = 4.0  # from one ratio of the warmup to the next: 25 %, 6.25 %, 1.6 % … (Lin et al. 2018, section 3.3)
SENT_AS = torch.float8_e4m3fn  # 3 bits of mantissa; what rounding leaves out is sent later
MAX_FP8 = 448.0  # of this type, which has no infinity
BLOCK = 2**16  # indices that differ in their last two bytes only


class DgcReducer(GradientReducer):
    """Sends the entries that matter most; what a checkpoint needs of the rest is in `extra_state`."""

    has_moments = True

    def __init__(self, group: ProcessGroup, state: State, *, ratio: float, warmup_images: int) -> None:
        """Replaces the optimizers of `state`: Adam's work is done here.

        Args: ratio: the share of a network's numbers that each rank sends per update; warmup_images: the images of a
        phase over which the share falls to that.
        """
        super().__init__()
        self.group, self.ratio, self.warmup_images = group, ratio, warmup_images
        self._state = state
        for trainable in (state.g, state.d):
            trainable.optimizer = Descent(trainable.network.weights)
        self._compressors: dict[str, Compressor] = {}  # by the name of a network
        self._share = 1.0

    def begin_step(self, phase: Phase, images: int) -> None:
        if phase.index != self._state.phase_index:  # of the last step
            self._compressors.clear()  # for its weights are other ones
        self._share = share_to_send(self.ratio, self.warmup_images, images - phase.start)

    def start_all_reduce(self, trainable: Trainable, batch: int) -> Handle:
        buffer = FlatBuffer(trainable, self._sums.pop(id(trainable)))
        gradient, sums = buffer.flat[: -buffer.num_sums], buffer.flat[-buffer.num_sums :]
        # All have to know of one that is not finite before any of them takes its gradient in.
        agreed = torch.cat([sums, (~torch.isfinite(buffer.flat.sum())).float()[None]])
        with self.group.collective():
            dist.all_reduce(agreed, group=self.group.torch_group)
        finite, count = agreed[-1] == 0, max(round(self._share * len(gradient)), 1)
        # A rank's gradient is its share of the mean, and may be scaled.
        scale = torch.ones_like(agreed[-1]) if trainable.scale is None else trainable.scale
        compressor = self._compressor(trainable.name.lower(), len(gradient))
        message = compressor.select(gradient, count, finite, scale / self.group.world_size)
        messages = message.new_empty(self.group.world_size, len(message))
        work = dist.all_gather(list(messages), message, group=self.group.torch_group, async_op=True)

        def wait() -> Tensor:
            self.group.wait(work)
            set_mean(gradient, messages, count).mul_(scale)  # as a scaled loss would have it
            sums.copy_(torch.where(finite, agreed[:-1], torch.nan))
            return buffer.attach(buffer.flat)

        return wait

    def extra_state(self) -> StateDicts:
        """The residuals and moments that ranks keep for later steps, of all ranks, on rank 0; nothing on the others."""
        mine = {
            network: {name: tensor.cpu() for name, tensor in compressor.tensors.items()}
            for network, compressor in self._compressors.items()
        }
        tensors = {
            f"{network}/{rank}/{name}": tensor
            for rank, networks in enumerate(self.group.all_gather_object(mine))
            for network, named in networks.items()
            for name, tensor in named.items()
        }
        return {EXTRA_STATE: tensors} if tensors and self.group.is_main else {}

    def load_extra_state(self, state_dicts: StateDicts) -> None:
        """Take over what `extra_state` gave; with another number of ranks, each one gets the mean of what there was."""
        saved = state_dicts.get(EXTRA_STATE, {})
        networks, ranks = ({key.split("/")[part] for key in saved} for part in (0, 1))
        self._compressors.clear()
        for network in networks:
            compressor = self._compressor(network, len(saved[f"{network}/0/residual"]))
            for name, tensor in compressor.tensors.items():
                by_rank = [saved[f"{network}/{rank}/{name}"] for rank in range(len(ranks))]
                same = len(ranks) == self.group.world_size
                tensor.copy_(by_rank[self.group.rank] if same else torch.stack(by_rank).mean(0))

    def _compressor(self, network: str, size: int) -> "Compressor":
        if network not in self._compressors or len(self._compressors[network].residual) != size:  # other levels
            self._compressors[network] = Compressor(size, self.group.device)
        return self._compressors[network]


class Descent(Adam):
    """Subtracts gradients, which are updates in units of the learning rate."""

    @torch.no_grad()
    def step(self, rate: float | Tensor, skip: Tensor | None = None, scale: Tensor | None = None) -> None:
        rate = rate * (1 - (0 if skip is None else skip)) / (1 if scale is None else scale)
        for weight in self.weights:
            if weight.grad is not None:
                weight.sub_(weight.grad * rate)


class Compressor:
    """The updates of one network that one rank has not sent yet, and the moment that makes updates of gradients."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.residual = torch.zeros(size, device=device)  # updates not sent yet, in units of the learning rate
        self.adam = Adam([self.residual])
        moments = self.adam.state[self.residual] = new_moments(self.residual)
        self.exp_avg_sq = moments["exp_avg_sq"]
        self.tensors = {"residual": self.residual, "exp_avg_sq": self.exp_avg_sq, "steps": moments["step"]}

    def select(self, gradient: Tensor, count: int, finite: Tensor, divisor: Tensor) -> Tensor:
        """Take in this rank's gradient / `divisor`; returns the message that all are to be sent.

        The message holds those `count` entries of the residual that the loss depends on most; they leave it.
        `gradient`: fp32 [P]; its memory is used.  `divisor`: fp32.
        `finite`: false on all ranks if the gradient of any is not; then nothing changes, and the message is void.
        """
        self.residual.grad = gradient
        self.adam.step(-1.0, (~finite).float(), divisor)  # uphill: the residual is what is to be subtracted
        # Halfway between the size of the update and the fall of the loss, which is the update times the usual gradient:
        # the latter alone starves small gradients, which made faces of fewer kinds.
        indices = largest(self.exp_avg_sq.sqrt().mul_(self.residual).mul_(self.residual), count).sort().values
        waiting = self.residual[indices]
        sent = waiting.clamp(-MAX_FP8, MAX_FP8).to(SENT_AS)
        # What rounding left out waits, too: nothing is ever lost.  An update that is not finite is not made, nor sent.
        self.residual[indices] = torch.where(finite, waiting - sent.float(), waiting)
        return pack(indices, sent, len(self.residual))


def share_to_send(ratio: float, warmup_images: int, since: int) -> float:
    """The share of entries to send when `since` images of a phase have been shown: a quarter, a sixteenth … `ratio`.

    It falls in steps of equal length over the first `warmup_images`, while all gradients are new.
    """
    larger = [share for share in (WARMUP_FACTOR**-power for power in range(1, 20)) if share > ratio]
    return larger[since * len(larger) // warmup_images] if since < warmup_images and larger else ratio


def pack(indices: Tensor, values: Tensor, size: int) -> Tensor:
    """One message, bytes [4 P / 65536 + 3 k]: of `indices` [k], ascending and below P, and one-byte `values` [k].

    It holds how many indices are in each block of 65536, then the indices' places in their blocks, then the values.
    """
    inside = torch.searchsorted(indices, torch.arange(0, size + BLOCK, BLOCK, device=indices.device)).diff()
    parts = inside.to(torch.int32), (indices % BLOCK).to(torch.uint16), values
    message = torch.cat([part.view(torch.uint8) for part in parts])
    return nn.functional.pad(message, (0, -len(message) % 4))  # messages lie side by side, and int32 wants its place


def set_mean(vector: Tensor, messages: Tensor, count: int) -> Tensor:
    """Set `vector` [P] to the mean of `messages` [n, bytes], which `pack` made of `count` entries each; returns it.

    The bits are the same on every rank: messages are added in their order, and no index comes twice in one of them.
    """
    vector.zero_()
    starts = torch.arange(0, len(vector), BLOCK, device=vector.device)
    sizes = [4 * len(starts), 2 * count, count]
    for message in messages:
        inside, places, values = torch.split(message[: sum(sizes)], sizes)
        # Told the size, `repeat_interleave` asks no device.
        blocks = starts.repeat_interleave(inside.view(torch.int32), output_size=count)
        indices = blocks + places.view(torch.uint16).long()
        vector.index_add_(0, indices, values.view(SENT_AS).float(), alpha=1 / len(messages))
    return vector


def largest(vector: Tensor, count: int) -> Tensor:
    """The indices [count] of the largest entries of `vector` [P], in no particular order."""
    if vector.device.type == "cpu":  # up to thirty times as fast as topk
        return torch.from_numpy(np.argpartition(vector.numpy(), -count)[-count:])
    return vector.topk(count, sorted=False).indices
