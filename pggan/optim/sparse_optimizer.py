"""The optimizer where gradients are compressed: it applies sparse updates that the reducer has made."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pggan.optim.flat_memory import flatten_storage


class SparseOptimizer:
    """Subtracts updates, given entry by entry, from weights that lie side by side in memory.

    It has what `Trainable` uses of an optimizer.  E entries of one update.
    """

    def __init__(self, weights: Sequence[nn.Parameter], params: Sequence[Tensor]) -> None:
        """Moves the weights, once and for all; each keeps its strides.  `params`: the optimizer's views of them."""
        self.params = list(params)
        self.learning_rate: float | Tensor = 0.0  # to be set
        self.state: dict[Tensor, dict[str, Tensor]] = {}  # nothing is kept from step to step
        self.found_inf: Tensor | None = None
        self.grad_scale: Tensor | None = None  # updates don't grow with the loss
        self.updates: Tensor | None = None
        self._positions: Tensor | None = None
        self._memory = flatten_storage(weights)
        self.starts = {id(weight): int(weight.storage_offset()) for weight in weights}  # in memory

    def set_update(self, positions: Tensor, updates: Tensor) -> None:
        """The next step is to subtract `updates` [E], in units of the learning rate, at `positions` [E] in memory.

        Of the updates with the same position, all but one have to be 0: then their order does not matter.
        """
        self._positions, self.updates = positions, updates

    def step(self) -> None:
        """Take the step, if one was given, unless `found_inf`; without waiting for the device."""
        if self.updates is None or self._positions is None:
            return
        steps = self.updates * -self.learning_rate
        if self.found_inf is not None:
            steps = torch.where(self.found_inf == 0, steps, 0.0)
        self._memory.index_add_(0, self._positions, steps)
        self._positions = self.updates = None
