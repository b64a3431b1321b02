"""Adam by PyTorch's fused kernel, without the class around it."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim.adam import adam


class Adam:
    """Adam (Kingma and Ba, 2015, algorithm 1) of the parameters that have gradients.

    It calculates what `torch.optim.Adam(…, fused=True)` does, to the bit.  The first object of that class imports
    PyTorch's compiler, which takes seconds of every start.
    """

    def __init__(self, params: Iterable[Tensor], *, beta1: float, beta2: float, epsilon: float) -> None:
        """Args: params: of any shapes; a parameter without `grad` in a step is not moved, and nothing is kept of it."""
        self.params = list(params)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.learning_rate: float | Tensor = 0.0  # to be set
        self.found_inf: Tensor | None = None  # float32: 1 skips the step, without waiting for the device
        self.grad_scale: Tensor | None = None  # gradients are divided by it
        self.state: dict[Tensor, dict[str, Tensor]] = {}  # by parameter: step, exp_avg, exp_avg_sq

    @torch.no_grad()
    def step(self) -> None:
        """Take one step down the gradients."""
        params, gradients = [], []
        for param in self.params:
            if param.grad is not None:
                params.append(param)
                gradients.append(param.grad)
                if param not in self.state:
                    self.state[param] = new_moments(param)
        kept = [self.state[param] for param in params]
        adam(
            params,
            gradients,
            [of["exp_avg"] for of in kept],
            [of["exp_avg_sq"] for of in kept],
            [],
            [of["step"] for of in kept],
            fused=True,
            grad_scale=self.grad_scale,
            found_inf=self.found_inf,
            amsgrad=False,
            beta1=self.beta1,
            beta2=self.beta2,
            lr=self.learning_rate,
            weight_decay=0.0,
            eps=self.epsilon,
            maximize=False,
        )


def new_moments(param: Tensor) -> dict[str, Tensor]:
    """Adam's state of a parameter before its first step: the number of steps [] and two moments as `param`."""
    return {
        "step": torch.zeros((), dtype=torch.float32, device=param.device),
        "exp_avg": torch.zeros_like(param),
        "exp_avg_sq": torch.zeros_like(param),
    }
