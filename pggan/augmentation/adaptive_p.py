"""How often ADA transforms images: the probability p, raised and lowered as D gets surer or less sure of reals."""

from collections.abc import Callable

import torch
from torch import Tensor

from pggan.augmentation.ada import MAX_P, Ada
from pggan.augmentation.base import Augmentation


class AdaptiveP:
    """The probability p and what it is adapted by; part of a run's state.  Never waits for the device.

    Source: Karras et al. 2020, section 3.1: every `interval` updates, p moves by a fixed amount towards the mean sign
    that is aimed at.
    """

    def __init__(self, device: torch.device, *, target: float, interval: int, rampup_images: int) -> None:
        """Args: target: the mean sign aimed at; rampup_images: images in which p could rise from 0 to 1."""
        self.target, self.interval, self.rampup_images = target, interval, rampup_images
        self.p, self.signs, self.images = (torch.zeros((), device=device) for _ in range(3))
        self.updates = torch.zeros((), dtype=torch.int32, device=device)

    @classmethod
    def of(
        cls, augmentation: Augmentation | None, mean_sign: Callable[[float], float], device: torch.device
    ) -> "AdaptiveP | None":
        """A probability that begins at 0; None unless `augmentation` adapts p.

        Args: mean_sign: of D's scores under the loss, at the target of the augmentation.
        """
        if not isinstance(augmentation, Ada) or augmentation.p is not None:
            return None
        target, interval = mean_sign(augmentation.target), augmentation.interval
        return cls(device, target=target, interval=interval, rampup_images=augmentation.rampup_images)

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors [] of a checkpoint: p, from 0 to 1, and sums since p was last moved."""
        return {"p": self.p, "signs": self.signs, "images": self.images, "updates": self.updates}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `state_dict` gave; what is missing, as all is in checkpoints of runs without ADA, is 0."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(tensors[name]) if name in tensors else tensor.zero_()

    def follow(self, sign: Tensor, batch: int) -> Tensor:
        """Take in the mean `sign` of D's scores in one update, of a whole batch; returns a copy of p."""
        known = sign.isfinite()  # not where scores are not, whose update is skipped
        self.signs.add_(torch.where(known, sign * batch, 0))
        self.images.add_(known * batch)
        self.updates.add_(1)
        due = self.updates >= self.interval
        direction = torch.sign(self.signs - self.target * self.images)
        self.p.add_(direction * self.images * (due / self.rampup_images)).clamp_(0, MAX_P)
        for total in (self.signs, self.images, self.updates):
            total.mul_(~due)
        return self.p.clone()
