"""What every loss is made of: formulas of the scores, and penalties on the discriminator's input gradient.

A loss is one frozen dataclass in one file of this folder, named after the file; its fields are its options, so they
are also the keys of `configs/loss/<name>.yaml`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.draws import Draws
from pggan.schedule import Phase
from pggan.schema import require


class Critic(Protocol):
    """The discriminator at one stage."""

    def __call__(self, images: Tensor, *, parts: int = 1) -> tuple[Tensor, Tensor]:
        """Scores [N] and class logits [N, L] of `images` [N, C, R, R], made of `parts` independent batches."""


class Reals(NamedTuple):
    """A batch of real images and the labels that go with it."""

    images: Tensor  # [N, C, R, R] in [-1, 1], faded like the generator's output
    labels: Tensor | None  # [N, L] one-hot, of these images; also given to the fakes of the D step
    fake_labels: Tensor | None  # [N, L] one-hot, drawn from the training set for the fakes of the G step


class Terms(NamedTuple):
    """Named values per image [N], not reduced."""

    loss: dict[str, Tensor]  # their means add up to the loss
    shown: dict[str, Tensor]  # for the eye only, without gradient


class Points(Enum):
    """Where a gradient penalty looks."""

    reals = "reals"
    fakes = "fakes"
    mixed = "mixed"  # on the line between a real and a fake, uniformly


class Reference(Enum):
    """The resolution at which a gradient norm is taken.

    native: that of the phase.  official: the final one, as in the official code, whose networks see every image
    upsampled to the final resolution; that norm is smaller by a factor of 2 per missing level.
    """

    native = "native"
    official = "official"


@dataclass(frozen=True, kw_only=True)
class GradientPenalty:
    """Weight * (|gradient| / target - 1)^2 per image, or weight * |gradient|^2 with target 0.

    The gradient is that of the score at the image.  With target 0 and weight gamma / 2 this is R1 (at reals) or R2 (at
    fakes); with target 1 at mixed points, WGAN-GP.
    Source: Gulrajani et al. 2017, equation 3; Mescheder et al. 2018, equation 9; target as in the official code.
    """

    name: str
    at: Points
    weight: float
    target: float = 0.0
    interval: int = 1  # updates from one evaluation to the next; the weight is multiplied by it (lazy penalty)
    reference: Reference = Reference.native

    def due(self, phase: Phase, images: int) -> bool:
        return (images // phase.batch) % self.interval == 0

    def of(self, points: Tensor, scores: Tensor, phase: Phase) -> Tensor:
        """The penalty [N] of `scores` [N] at `points` [N, C, R, R]; differentiable in the discriminator's weights."""
        (gradient,) = torch.autograd.grad(scores.sum(), points, create_graph=True)
        gradient = gradient.float().flatten(1)
        if self.reference is Reference.official:
            gradient = gradient / 2**phase.missing_levels
        weight = self.weight * self.interval
        if self.target == 0:
            return weight * gradient.square().sum(1)  # no root: its derivative at 0 is not a number
        norm: Tensor = torch.linalg.vector_norm(gradient, dim=1)
        return weight * (norm - self.target).square() / self.target**2


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """A GAN objective.  Subclasses give the formulas; this class runs the discriminator and adds label terms."""

    needs_reals_for_g: ClassVar[bool] = False  # the G terms look at real scores, too

    interval: int  # updates of D from one evaluation of the penalties to the next

    def __post_init__(self) -> None:
        require(self.interval >= 1, "loss.interval", self.interval, "at least 1")

    @abstractmethod
    def d_terms(self, real_scores: Tensor, fake_scores: Tensor) -> dict[str, Tensor]:
        """Named terms [N] that D minimises, of scores [N]."""

    @abstractmethod
    def g_terms(self, real_scores: Tensor | None, fake_scores: Tensor) -> dict[str, Tensor]:
        """Named terms [N] that G minimises, of scores [N]; `real_scores` only with `needs_reals_for_g`."""

    def penalties(self) -> tuple[GradientPenalty, ...]:
        """Gradient penalties that D minimises."""
        return ()

    def for_d(self, critic: Critic, reals: Reals, fakes: Tensor, phase: Phase, draws: Draws) -> Terms:
        """The discriminator's terms; `fakes` [N, C, R, R] carry no gradient."""
        due = [penalty for penalty in self.penalties() if penalty.due(phase, draws.images)]
        looked_at = {penalty.at for penalty in due}
        real_images = reals.images.detach().requires_grad_(Points.reals in looked_at)
        fake_images = fakes.detach().requires_grad_(Points.fakes in looked_at)
        if looked_at & {Points.reals, Points.fakes}:  # a gradient at one batch must not pass through the other
            real_scores, real_logits = critic(real_images)
            fake_scores, fake_logits = critic(fake_images)
        else:  # one large batch is faster than two
            scores, logits = critic(torch.cat([real_images, fake_images]), parts=2)
            (real_scores, fake_scores), (real_logits, fake_logits) = scores.chunk(2), logits.chunk(2)
        terms = self.d_terms(real_scores, fake_scores)
        shown = {"scores/reals": real_scores.detach(), "scores/fakes": fake_scores.detach()}
        at = {Points.reals: (real_images, real_scores), Points.fakes: (fake_images, fake_scores)}
        if Points.mixed in looked_at:
            mix = draws.uniform("mix", len(fakes), 1, 1, 1)
            mixed = torch.lerp(reals.images, fakes, mix).detach().requires_grad_()
            at[Points.mixed] = mixed, critic(mixed)[0]
            shown["scores/mixed"] = at[Points.mixed][1].detach()
        for penalty in due:
            terms[penalty.name] = penalty.of(*at[penalty.at], phase)
        if reals.labels is not None:
            terms["D/labels_reals"] = label_loss(real_logits, reals.labels)
            terms["D/labels_fakes"] = label_loss(fake_logits, reals.labels)
        return Terms(terms, shown)

    def for_g(self, critic: Critic, reals: Reals, fakes: Tensor) -> Terms:
        """The generator's terms; `fakes` [N, C, R, R] carry its gradient."""
        real_scores = None
        if self.needs_reals_for_g:
            with torch.no_grad():
                real_scores, _ = critic(reals.images)
        fake_scores, fake_logits = critic(fakes)
        terms = self.g_terms(real_scores, fake_scores)
        if reals.fake_labels is not None:
            terms["G/labels_fakes"] = label_loss(fake_logits, reals.fake_labels)
        return Terms(terms, {})


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy [N] of class `logits` [N, L] against one-hot `labels` [N, L].  (AC-GAN, weight 1 as official)"""
    return F.cross_entropy(logits, labels, reduction="none")
