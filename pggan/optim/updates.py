"""Adam, the EMA's decay, and flat tensors.  A flat tensor [P] holds all weights of a network, with padding."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import ceil

import torch
from torch import Tensor
from torch.optim.adam import adam

BETA1, BETA2, EPSILON = 0.0, 0.99, 1e-8  # Adam's parameters in the paper
ALIGNMENT = 16  # in a flat tensor, each weight tensor begins at a multiple of 16 elements, which is faster


class Adam:
    """Adam (Kingma and Ba, 2015, algorithm 1) for the weights that have gradients.

    The results equal those of `torch.optim.Adam(…, fused=True)` bit for bit.  But the class `torch.optim.Adam` imports
    PyTorch's compiler, which would delay every start by seconds.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self.weights = list(weights)
        self.state: dict[Tensor, dict[str, Tensor]] = {}  # {weight: Adam's moments from `new_moments`}

    @torch.no_grad()
    def step(self, rate: float | Tensor, skip: Tensor | None = None, scale: Tensor | None = None) -> None:
        """Update the weights, except if the tensor `skip` is 1.  Gradients are divided by the loss `scale`."""
        used = [weight for weight in self.weights if weight.grad is not None]
        for weight in used:
            if weight not in self.state:
                self.state[weight] = new_moments(weight)
        kept = [self.state[weight] for weight in used]
        adam(
            [in_memory_order(weight.detach()) for weight in used],
            [in_memory_order(weight.grad) for weight in used if weight.grad is not None],
            [in_memory_order(of["exp_avg"]) for of in kept],
            [in_memory_order(of["exp_avg_sq"]) for of in kept],
            [],
            [of["step"] for of in kept],
            fused=True,
            grad_scale=scale,
            found_inf=skip,
            amsgrad=False,
            beta1=BETA1,
            beta2=BETA2,
            lr=rate,
            weight_decay=0.0,
            eps=EPSILON,
            maximize=False,
        )


def new_moments(weight: Tensor) -> dict[str, Tensor]:
    """Adam's moments and step count of a weight, all 0."""
    return {
        "step": torch.zeros((), dtype=torch.float32, device=weight.device),
        "exp_avg": torch.zeros_like(weight, requires_grad=False),
        "exp_avg_sq": torch.zeros_like(weight, requires_grad=False),
    }


def in_memory_order(weight: Tensor) -> Tensor:
    """A contiguous view of a channels-last tensor, because PyTorch's fused Adam on CPUs copies other layouts."""
    return weight.permute(0, 2, 3, 1) if weight.ndim == 4 else weight


def flatten_storage(weights: Sequence[Tensor]) -> Tensor:
    """Move `weights` into a new tensor [P], and return the tensor.  `weights` become views with unchanged strides."""
    starts = [0, *accumulate(ceil(weight.numel() / ALIGNMENT) * ALIGNMENT for weight in weights)]
    memory = torch.zeros(starts[-1], dtype=weights[0].dtype, device=weights[0].device)
    for weight, start in zip(weights, starts, strict=False):
        weight.data = memory.as_strided(weight.shape, weight.stride(), start).copy_(weight.data)
    return memory


def ema_decay(
    images: int, batch: int, *, half_life_images: float | None, rampup: float | None, decay_per_update: float | None
) -> float:
    """The decay of the EMA of G's weights in one update with `batch` images, after `images` images of training.

    If `decay_per_update` is None, an old value's share in the EMA halves in `half_life_images` images.
    `rampup` limits the half-life to `rampup` * `images`, so the EMA follows G quickly at first (Karras et al. 2020).
    """
    if decay_per_update is not None:
        return decay_per_update
    assert half_life_images is not None, "half_life_images or decay_per_update is given"
    if rampup is not None:
        half_life_images = min(half_life_images, images * rampup)
    return float(0.5 ** (batch / max(half_life_images, 1e-8)))
