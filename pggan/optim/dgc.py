"""Deep gradient compression (DGC) for Adam: ranks send the largest entries of an update now, and the others later.

Each rank adds its Adam updates to a residual, and sends the residual's largest entries.  The mean of all messages is
subtracted from the weights.  Source: Lin et al. 2018 for SGD; docs/scaling.md derives DGC for Adam with beta1 = 0.

Shapes: P trained parameters of one network, k entries per message, n ranks.
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

WARMUP_FACTOR = 4.0  # the warmup sends 25 % of the entries, then 6.25 %, 1.6 % … (Lin et al. 2018, section 3.3)
SENT_AS = torch.float8_e4m3fn  # dtype of sent values; their rounding errors stay in the residual, and are sent later
MAX_FP8 = 448.0  # largest value of float8_e4m3fn, which has no infinity
BLOCK = 2**16  # `pack` cuts vectors into blocks of this length, so that an index within a block fits into two bytes


class DgcReducer(GradientReducer):
    """Exchanges compressed Adam updates between ranks."""

    has_moments = True

    def __init__(self, group: ProcessGroup, state: State, *, ratio: float, warmup_images: int) -> None:
        """Makes `Descent` the optimizer of G and D.  `ratio`: share of entries sent after a phase's `warmup_images`."""
        super().__init__()
        self.group, self.ratio, self.warmup_images = group, ratio, warmup_images
        self._state = state
        for trainable in (state.g, state.d):
            trainable.optimizer = Descent(trainable.network.weights)
        self._compressors: dict[str, Compressor] = {}  # {"g" or "d": compressor for this network}
        self._share = 1.0

    def begin_step(self, phase: Phase, images: int) -> None:
        if phase.index != self._state.phase_index:
            self._compressors.clear()  # old residuals do not fit the weights of a new phase
        self._share = share_to_send(self.ratio, self.warmup_images, images - phase.start)

    def start_all_reduce(self, trainable: Trainable, batch: int) -> Handle:
        buffer = FlatBuffer(trainable, self._sums.pop(id(trainable)))
        gradient, sums = buffer.flat[: -buffer.num_sums], buffer.flat[-buffer.num_sums :]
        # If the gradient of any rank is NaN or infinite, no rank may change its residual.
        agreed = torch.cat([sums, (~torch.isfinite(buffer.flat.sum())).float()[None]])
        self.group.wait(self.group.start(dist.all_reduce, agreed))
        finite, count = agreed[-1] == 0, max(round(self._share * len(gradient)), 1)
        # The method `select` divides gradients by (loss scale / number of ranks), the factor that multiplied the loss.
        scale = torch.ones_like(agreed[-1]) if trainable.scale is None else trainable.scale
        compressor = self._compressor(trainable.name.lower(), len(gradient))
        message = compressor.select(gradient, count, finite, scale / self.group.world_size)
        messages = message.new_empty(self.group.world_size, len(message))
        work = self.group.start(dist.all_gather, list(messages), message)

        def wait() -> Tensor:
            self.group.wait(work)
            set_mean(gradient, messages, count).mul_(scale)  # times `scale`, because `Descent` divides by `scale`
            sums.copy_(torch.where(finite, agreed[:-1], torch.nan))
            return buffer.attach(buffer.flat)

        return wait

    def extra_state(self) -> StateDicts:
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

    def load_extra_state(self, saved: dict[str, Tensor]) -> None:
        """Load this rank's tensors or, if the number of ranks has changed, the mean of all ranks' tensors."""
        networks, ranks = ({key.split("/")[part] for key in saved} for part in (0, 1))
        self._compressors.clear()
        for network in networks:
            compressor = self._compressor(network, len(saved[f"{network}/0/residual"]))
            for name, tensor in compressor.tensors.items():
                by_rank = [saved[f"{network}/{rank}/{name}"] for rank in range(len(ranks))]
                same = len(ranks) == self.group.world_size
                tensor.copy_(by_rank[self.group.rank] if same else torch.stack(by_rank).mean(0))

    def _compressor(self, network: str, size: int) -> "Compressor":
        if network not in self._compressors or len(self._compressors[network].residual) != size:  # the network grew
            self._compressors[network] = Compressor(size, self.group.device)
        return self._compressors[network]


class Descent(Adam):
    """Subtracts the learning rate times `grad` from weights; `grad` holds the mean of all ranks' Adam updates."""

    @torch.no_grad()
    def step(self, rate: float | Tensor, skip: Tensor | None = None, scale: Tensor | None = None) -> None:
        rate = rate * (1 - (0 if skip is None else skip)) / (1 if scale is None else scale)
        for weight in self.weights:
            if weight.grad is not None:
                weight.sub_(weight.grad * rate)


class Compressor:
    """Chooses which entries of one network's updates to send, and keeps the other entries, the residual, for later."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.residual = torch.zeros(size, device=device)  # updates not sent yet, divided by the learning rate
        self.adam = Adam([self.residual])
        moments = self.adam.state[self.residual] = new_moments(self.residual)
        self.exp_avg_sq = moments["exp_avg_sq"]
        self.tensors = {"residual": self.residual, "exp_avg_sq": self.exp_avg_sq, "steps": moments["step"]}

    def select(self, gradient: Tensor, count: int, finite: Tensor, divisor: Tensor) -> Tensor:
        """Add Adam's update for `gradient` / `divisor` to the residual, and move `count` large entries to a message.

        `gradient` is overwritten.  If `finite` is false, the residual does not change, and the result is invalid.
        """
        self.residual.grad = gradient
        self.adam.step(-1.0, (~finite).float(), divisor)  # with learning rate -1, Adam adds the update to the residual
        # The message gets the residual's entries r with the largest r^2 * sqrt(v), where v is Adam's second moment.
        # With |r| instead of r^2, results were worse: weights with small gradients got few updates.
        indices = largest(self.exp_avg_sq.sqrt().mul_(self.residual).mul_(self.residual), count).sort().values
        waiting = self.residual[indices]
        sent = waiting.clamp(-MAX_FP8, MAX_FP8).to(SENT_AS)
        self.residual[indices] = torch.where(finite, waiting - sent.float(), waiting)
        return pack(indices, sent, len(self.residual))


def share_to_send(ratio: float, warmup_images: int, since: int) -> float:
    """The share of entries to send after `since` images of a phase: 1/4 at first, `ratio` after `warmup_images`."""
    larger = [share for share in (WARMUP_FACTOR**-power for power in range(1, 20)) if share > ratio]
    return larger[since * len(larger) // warmup_images] if since < warmup_images and larger else ratio


def pack(indices: Tensor, values: Tensor, size: int) -> Tensor:
    """Pack entries of a vector [P] (P = `size`) into a message: `values` [k] of one byte each, ascending `indices` [k].

    A message has the number of entries in each block (int32), all indices within blocks (uint16), and all values.
    """
    inside = torch.searchsorted(indices, torch.arange(0, size + BLOCK, BLOCK, device=indices.device)).diff()
    parts = inside.to(torch.int32), (indices % BLOCK).to(torch.uint16), values
    message = torch.cat([part.view(torch.uint8) for part in parts])
    return nn.functional.pad(message, (0, -len(message) % 4))  # `set_mean` needs messages aligned to 4 bytes


def set_mean(vector: Tensor, messages: Tensor, count: int) -> Tensor:
    """Set `vector` [P] to the mean of the sparse vectors in `messages` [ranks, bytes], each with `count` entries."""
    vector.zero_()
    starts = torch.arange(0, len(vector), BLOCK, device=vector.device)
    sizes = [4 * len(starts), 2 * count, count]
    for message in messages:  # All ranks get equal bits: the order of ranks is fixed, and a message has no index twice.
        inside, places, values = torch.split(message[: sum(sizes)], sizes)
        # With `output_size`, `repeat_interleave` does not wait for the GPU.
        blocks = starts.repeat_interleave(inside.view(torch.int32), output_size=count)
        indices = blocks + places.view(torch.uint16).long()
        vector.index_add_(0, indices, values.view(SENT_AS).float(), alpha=1 / len(messages))
    return vector


def largest(vector: Tensor, count: int) -> Tensor:
    """The indices [count] of the `count` largest entries of `vector` [P], in any order."""
    if vector.device.type == "cpu":  # on CPUs, NumPy's argpartition is up to thirty times as fast as topk
        return torch.from_numpy(np.argpartition(vector.numpy(), -count)[-count:])
    return vector.topk(count, sorted=False).indices
