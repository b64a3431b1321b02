"""The relativistic pairing loss with R1 and R2."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from pggan.losses.base import GradientPenalty, Loss, PenaltyAt


@dataclass(frozen=True, kw_only=True)
class Relativistic(Loss):
    """The logistic loss of each fake's score minus its real's, plus gamma / 2 |gradient|^2 at reals and at fakes.

    Source: Jolicoeur-Martineau 2018, equation 4; with R1 + R2: Huang et al. (R3GAN) 2024, section 2.
    """

    gamma: float
    needs_reals_for_g: ClassVar[bool] = True
    scores_are_log_odds: ClassVar[bool] = True

    def d_terms(self, real_scores: Tensor, fake_scores: Tensor) -> dict[str, Tensor]:
        return {"D/relativistic": F.softplus(fake_scores - real_scores)}

    def g_terms(self, real_scores: Tensor | None, fake_scores: Tensor) -> dict[str, Tensor]:
        assert real_scores is not None, "needs_reals_for_g asks for them"
        return {"G/relativistic": F.softplus(real_scores - fake_scores)}

    def penalties(self) -> tuple[GradientPenalty, ...]:
        return tuple(
            GradientPenalty(name=name, at=at, weight=self.gamma / 2, reg_interval=self.reg_interval)
            for name, at in (("D/r1", PenaltyAt.reals), ("D/r2", PenaltyAt.fakes))
        )
