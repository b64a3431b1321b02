"""What every loss is made of: formulas of the scores, gradient penalties, and label terms.

A loss is one frozen dataclass in one file of this room; its fields are the keys of `configs/loss/<file>.yaml`.
N batch, C channels, R resolution, L labels.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from math import inf
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.batch import Reals
from pggan.core.validation import require
from pggan.losses.gradient_penalty import Critic, GradientPenalty, PenaltyAt, PenaltyContext


class LossTerms(NamedTuple):
    """Named values per image [N], not reduced."""

    loss: dict[str, Tensor]  # their means add up to the loss
    metrics: dict[str, Tensor]  # to be reported only, without gradient


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """A GAN objective: subclasses give the formulas, this class runs the discriminator and adds label terms."""

    needs_reals_for_g: ClassVar[bool] = False  # G's terms depend on real scores, too

    reg_interval: int  # updates of D from one evaluation of the penalties to the next

    def __post_init__(self) -> None:
        require(self.reg_interval >= 1, "loss.reg_interval", self.reg_interval, "at least 1")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float):
                require(0 <= value < inf, f"loss.{field.name}", value, "from 0 up to below infinity")

    @abstractmethod
    def d_terms(self, real_scores: Tensor, fake_scores: Tensor) -> dict[str, Tensor]:
        """Named terms [N] that D minimises, of scores [N]."""

    @abstractmethod
    def g_terms(self, real_scores: Tensor | None, fake_scores: Tensor) -> dict[str, Tensor]:
        """Named terms [N] that G minimises, of scores [N]; `real_scores` only with `needs_reals_for_g`."""

    def penalties(self) -> tuple[GradientPenalty, ...]:
        """The gradient penalties that D minimises."""
        return ()

    def for_d(self, critic: Critic, reals: Reals, fakes: Tensor, context: PenaltyContext) -> LossTerms:
        """The discriminator's terms; `fakes` [N, C, R, R] carry no gradient."""
        penalised = {penalty.at for penalty in context.due}
        images = {PenaltyAt.reals: reals.images.detach(), PenaltyAt.fakes: fakes.detach()}
        if PenaltyAt.interpolated in penalised:
            assert context.mix is not None, "drawn when a penalty is taken at interpolated images"
            images[PenaltyAt.interpolated] = torch.lerp(reals.images, fakes, context.mix).detach()
        for at in penalised:
            images[at].requires_grad_(not context.jvp)
        scores: dict[PenaltyAt, Tensor] = {}
        if not context.jvp and penalised & {PenaltyAt.reals, PenaltyAt.fakes}:
            # A gradient at one batch must not pass through the other.
            scores[PenaltyAt.reals], real_logits = critic(images[PenaltyAt.reals])
            scores[PenaltyAt.fakes], fake_logits = critic(images[PenaltyAt.fakes])
        else:  # one large batch is faster than two
            both, logits = critic(torch.cat([images[PenaltyAt.reals], images[PenaltyAt.fakes]]), parts=2)
            (scores[PenaltyAt.reals], scores[PenaltyAt.fakes]) = both.chunk(2)
            real_logits, fake_logits = logits.chunk(2)
        terms = self.d_terms(scores[PenaltyAt.reals], scores[PenaltyAt.fakes])
        for penalty in context.due:
            at = penalty.at
            if context.jvp:
                terms[penalty.name], scores[at] = penalty.by_jvp(critic, images[at], context)
            else:
                if at not in scores:
                    scores[at] = critic(images[at])[0]
                terms[penalty.name] = penalty.by_autograd(images[at], scores[at], context)
        if reals.labels is not None:
            terms["D/labels_reals"] = label_loss(real_logits, reals.labels)
            terms["D/labels_fakes"] = label_loss(fake_logits, reals.labels)
        return LossTerms(terms, {f"scores/{at.value}": of.detach() for at, of in scores.items()})

    def for_g(self, critic: Critic, reals: Reals, fakes: Tensor) -> LossTerms:
        """The generator's terms; `fakes` [N, C, R, R] carry its gradient."""
        real_scores = None
        if self.needs_reals_for_g:
            with torch.no_grad():
                real_scores, _ = critic(reals.images)
        fake_scores, fake_logits = critic(fakes)
        terms = self.g_terms(real_scores, fake_scores)
        if reals.fake_labels is not None:
            terms["G/labels_fakes"] = label_loss(fake_logits, reals.fake_labels)
        return LossTerms(terms, {})


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy [N] of class `logits` [N, L] against one-hot `labels` [N, L].  (AC-GAN, weight 1 as official)"""
    return F.cross_entropy(logits, labels, reduction="none")
