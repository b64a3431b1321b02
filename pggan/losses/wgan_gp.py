"""The paper's loss: Wasserstein with gradient penalty and drift."""

from dataclasses import dataclass

from torch import Tensor

from pggan.losses.base import GradientPenalty, Loss, PenaltyAt

DRIFT = 0.001  # keeps the real scores near 0


@dataclass(frozen=True, kw_only=True)
class WganGp(Loss):
    """The difference of the scores, a penalty on the gradient's norm between reals and fakes, and a drift penalty.

    Source: Gulrajani et al. 2017, equation 3; drift: Karras et al. 2018, appendix A.1.
    """

    penalty_weight: float
    target: float  # gradient norm aimed at; 1, or 750 in the paper's CIFAR-10 run

    def d_terms(self, real_scores: Tensor, fake_scores: Tensor) -> dict[str, Tensor]:
        return {"D/wasserstein": fake_scores - real_scores, "D/drift": DRIFT * real_scores.square()}

    def g_terms(self, real_scores: Tensor | None, fake_scores: Tensor) -> dict[str, Tensor]:
        return {"G/wasserstein": -fake_scores}

    def penalties(self) -> tuple[GradientPenalty, ...]:
        penalty = GradientPenalty(
            name="D/gradient_penalty",
            at=PenaltyAt.interpolated,
            weight=self.penalty_weight,
            target=self.target,
            reg_interval=self.reg_interval,
            at_final_resolution=True,
        )
        return (penalty,)
