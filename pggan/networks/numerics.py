"""How a step is computed: choices that change its speed and memory, and its results by rounding only."""

from dataclasses import dataclass

import torch

from pggan.networks.convolution import Method
from pggan.networks.method_table import HEURISTIC, MethodTable


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """How one training step is computed."""

    dtype: torch.dtype | None = None  # of activations and kernels; None: that of the weights
    method: Method | None = None  # of all 3x3 convolutions; None: for each that of `method_table`
    method_table: MethodTable = HEURISTIC
    jvp: bool = False  # gradient penalties by forward-mode AD instead of differentiating twice
    micro_batch_size: int | None = None  # images per pass, a multiple of the stddev group; None: the whole batch
    activation_checkpointing: bool = False  # a block's activations are recomputed in the backward pass
    compiled: bool = False  # the passes of D and G go through torch.compile, which needs jvp
