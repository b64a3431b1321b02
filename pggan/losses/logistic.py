"""The non-saturating logistic loss with (lazy) R1."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from pggan.losses.base import GradientPenalty, Loss, PenaltyAt


@dataclass(frozen=True, kw_only=True)
class Logistic(Loss):
    """-log sigmoid of the scores for reals and G, -log(1 - sigmoid) for fakes, plus gamma / 2 |gradient|^2 at reals.

    Source: Goodfellow et al. 2014, section 3; R1: Mescheder et al. 2018; lazy: Karras et al. 2020, appendix B.
    """

    gamma: float
    zero_is_boundary: ClassVar[bool] = True
    scores_are_log_odds: ClassVar[bool] = True

    def d_terms(self, real_scores: Tensor, fake_scores: Tensor) -> dict[str, Tensor]:
        return {"D/loss_reals": F.softplus(-real_scores), "D/loss_fakes": F.softplus(fake_scores)}

    def g_terms(self, real_scores: Tensor | None, fake_scores: Tensor) -> dict[str, Tensor]:
        return {"G/loss_fakes": F.softplus(-fake_scores)}

    def penalties(self) -> tuple[GradientPenalty, ...]:
        weight, at = self.gamma / 2, PenaltyAt.reals
        return (GradientPenalty(name="D/r1", at=at, weight=weight, reg_interval=self.reg_interval),)
