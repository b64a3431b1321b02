"""Non-saturating logistic loss with (lazy) R1."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from pggan.losses.base import Loss
from pggan.losses.gradient_penalty import GradientPenalty, PenaltyAt


@dataclass(frozen=True, kw_only=True)
class Logistic(Loss):
    """Source: Goodfellow et al. 2014, section 3; R1: Mescheder et al. 2018; lazy: Karras et al. 2020, appendix B."""

    gamma: float

    def d_terms(self, real_scores: Tensor, fake_scores: Tensor) -> dict[str, Tensor]:
        return {"D/reals": F.softplus(-real_scores), "D/fakes": F.softplus(fake_scores)}

    def g_terms(self, real_scores: Tensor | None, fake_scores: Tensor) -> dict[str, Tensor]:
        return {"G/fakes": F.softplus(-fake_scores)}

    def penalties(self) -> tuple[GradientPenalty, ...]:
        r1 = GradientPenalty(name="D/r1", at=PenaltyAt.reals, weight=self.gamma / 2, reg_interval=self.reg_interval)
        return (r1,)
