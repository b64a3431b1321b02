"""The gradient reducer of Deep Gradient Compression: most of an update waits on the rank that made it.

Adam's work is done here, before anything is sent; the optimizers are given what arrives of the updates.
P parameters of the levels in use of one network, n ranks.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from pggan.config import DgcConfig, OptimizerConfig
from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.compression import Compressor, mean_of, share_to_send
from pggan.optim.reducer import GradientReducer, Handle
from pggan.optim.sparse_optimizer import SparseOptimizer
from pggan.optim.state import State, StateDicts, Trainable, in_memory_order

EXTRA_STATE = "compression"  # the component of a checkpoint


class ParameterVector:
    """The weights of one network that have gradients, as one vector [P]."""

    def __init__(self, trainable: Trainable, optimizer: SparseOptimizer) -> None:
        self.weights = trainable.weights_in_use
        device = self.weights[0].device
        sizes = [weight.numel() for weight in self.weights]
        self.size = sum(sizes)
        self.scratch = torch.zeros(self.size, device=device)  # of `mean_of`
        begins = torch.tensor([0, *sizes], device=device).cumsum(0)
        starts = torch.tensor([optimizer.starts[id(weight)] for weight in self.weights], device=device)
        self._ends, self._shifts = begins[1:], starts - begins[:-1]

    def positions(self, indices: Tensor) -> Tensor:
        """The positions in the optimizer's memory of the entries at `indices`."""
        return indices + self._shifts[torch.bucketize(indices, self._ends, right=True)]


class DgcReducer(GradientReducer):
    """Sends only the entries that matter most; what a checkpoint needs of the rest is in `extra_state`."""

    gradient_copies = 2  # what sending is worth, and scratch for the update

    def __init__(self, group: ProcessGroup, state: State, optimizer: OptimizerConfig, dgc: DgcConfig) -> None:
        super().__init__()
        self.group, self.dgc = group, dgc
        self._optimizer = optimizer
        self._clip = None if dgc.clip is None else dgc.clip / group.world_size**0.5  # of each rank, not of the mean
        self._world_size = torch.tensor(float(group.world_size), device=group.device)
        self._names = {id(state.g): "g", id(state.d): "d"}
        self._compressors: dict[str, Compressor] = {}
        self._vectors: dict[str, ParameterVector] = {}
        self._state = state
        self._phase: int | None = None  # of the last step; None if only the state knows it
        self._share = 1.0

    def begin_step(self, phase: Phase, images: int) -> None:
        if phase.index != (self._state.phase_index if self._phase is None else self._phase):
            self._compressors.clear()  # for its weights are other ones
        self._phase = phase.index
        self._share = share_to_send(self.dgc.ratio, self.dgc.warmup_images, images - phase.start)

    def start_all_reduce(self, trainable: Trainable, batch: int) -> Handle:
        sums, name, optimizer = self._sums.pop(id(trainable)), self._names[id(trainable)], trainable.optimizer
        assert isinstance(optimizer, SparseOptimizer), "trainables of a state that was made for it"
        vector = self._vectors.get(name)
        if vector is None or not trainable.uses(vector.weights):
            vector = self._vectors[name] = ParameterVector(trainable, optimizer)
        gradients = [in_memory_order(weight.grad).flatten() for weight in vector.weights if weight.grad is not None]
        # All have to know of one that is not finite before any of them takes its gradient in.
        unbounded = ~torch.isfinite(torch.stack([gradient.sum() for gradient in gradients]).sum() + sums.sum())
        agreed = torch.cat([sums, unbounded.float()[None]])
        with self.group.collective():
            dist.all_reduce(agreed, group=self.group.torch_group)
        finite = agreed[-1] == 0
        # Of this rank's own images, and as it was before the loss was scaled.
        factor = self._world_size if trainable.scale is None else self._world_size / trainable.scale
        count = max(round(self._share * vector.size), 1)
        message = self._compressor(name, vector.size).select(gradients, count, finite, factor)
        trainable.zero_grad()
        messages = message.new_empty(self.group.world_size, len(message))
        work = dist.all_gather(list(messages), message, group=self.group.torch_group, async_op=True)

        def wait() -> Tensor:
            self.group.wait(work)
            indices, updates = mean_of(messages, count, vector.scratch)
            optimizer.set_update(vector.positions(indices), updates)
            return torch.where(finite, agreed[:-1], torch.nan)

        return wait

    def extra_state(self) -> StateDicts:
        """The residuals and moments that ranks keep for later steps, of all ranks, on rank 0; nothing on the others."""
        tensors = {}
        for network, compressor in self._compressors.items():
            for name, tensor in compressor.state_dict().items():
                for rank, theirs in enumerate(self.group.gather(tensor)):
                    tensors[f"{network}/{rank}/{name}"] = theirs
        return {EXTRA_STATE: tensors} if tensors else {}

    def load_extra_state(self, state_dicts: StateDicts) -> None:
        """Take over what `extra_state` gave; with another number of ranks, each one gets the mean of what there was."""
        saved: dict[str, dict[str, dict[int, Tensor]]] = {}  # by network, name and rank
        for key, tensor in state_dicts.get(EXTRA_STATE, {}).items():
            network, rank, name = key.split("/")
            saved.setdefault(network, {}).setdefault(name, {})[int(rank)] = tensor
        self._compressors.clear()
        self._phase = None
        for network, by_name in saved.items():
            mine = {}
            for name, by_rank in by_name.items():
                same, ordered = len(by_rank) == self.group.world_size, [by_rank[rank] for rank in sorted(by_rank)]
                mine[name] = ordered[self.group.rank] if same else torch.stack(ordered).mean(0)
            self._compressor(network, len(mine["residual"])).load_state_dict(mine)

    def _compressor(self, network: str, size: int) -> Compressor:
        if network not in self._compressors:
            self._compressors[network] = Compressor(size, self._optimizer, self._clip, self.group.device)
        return self._compressors[network]
