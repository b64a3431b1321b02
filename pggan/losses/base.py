"""What every loss is made of: formulas of the scores, and penalties on the discriminator's input gradient.

A loss is one frozen dataclass in one file of this folder, named after the file; its fields are its options, so they
are also the keys of `configs/loss/<name>.yaml`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from enum import Enum
from math import inf
from typing import ClassVar, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.schedule import Phase
from pggan.core.validation import require
from pggan.networks.activation import widened
from pggan.networks.convolution import for_images_alone


class Critic(Protocol):
    """The discriminator at one stage."""

    def __call__(self, images: Tensor, *, parts: int = 1) -> tuple[Tensor, Tensor]:
        """Scores [N] and class logits [N, L] of `images` [N, C, R, R], made of `parts` independent batches."""


class Reals(NamedTuple):
    """A batch of real images and the labels that go with it."""

    images: Tensor  # [N, C, R, R] in [-1, 1], faded like the generator's output
    labels: Tensor | None  # [N, L] one-hot, of these images; also given to the fakes of the D step
    fake_labels: Tensor | None  # [N, L] one-hot, drawn from the training set for the fakes of the G step

    def rows(self, rows: Tensor) -> "Reals":
        """Some of the batch."""
        return Reals(*(None if part is None else part[rows] for part in self))  # type: ignore[arg-type]


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

    def of(self, gradient: Tensor, missing_levels: int) -> Tensor:
        """The penalty [N] of the scores' `gradient` [N, C, R, R] at its points."""
        gradient = widened(gradient).flatten(1)
        if self.reference is Reference.official:
            gradient = gradient / 2**missing_levels
        weight = self.weight * self.interval
        if self.target == 0:
            return weight * gradient.square().sum(1)  # no root: its derivative at 0 is not a number
        norm: Tensor = torch.linalg.vector_norm(gradient, dim=1)
        return weight * (norm - self.target).square() / self.target**2


class Examination(NamedTuple):
    """What the discriminator's terms depend on besides images and weights."""

    due: tuple[GradientPenalty, ...]
    missing_levels: int
    mix: Tensor | None  # [N, 1, 1, 1], where each mixed image lies between its real (0) and its fake (1)
    scale: Tensor | None  # of the loss in half precision; small gradients are kept from vanishing by it
    tangent: bool  # penalties by a forward derivative, not by differentiating twice


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """A GAN objective.  Subclasses give the formulas; this class runs the discriminator and adds label terms."""

    needs_reals_for_g: ClassVar[bool] = False  # the G terms look at real scores, too

    interval: int  # updates of D from one evaluation of the penalties to the next

    def __post_init__(self) -> None:
        require(self.interval >= 1, "loss.interval", self.interval, "at least 1")
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
        """Gradient penalties that D minimises."""
        return ()

    def for_d(self, critic: Critic, reals: Reals, fakes: Tensor, how: Examination) -> Terms:
        """The discriminator's terms; `fakes` [N, C, R, R] carry no gradient."""
        looked_at = {penalty.at for penalty in how.due}
        points = {Points.reals: reals.images.detach(), Points.fakes: fakes.detach()}
        if Points.mixed in looked_at:
            assert how.mix is not None, "drawn when a penalty looks at mixed points"
            points[Points.mixed] = torch.lerp(reals.images, fakes, how.mix).detach()
        for at in looked_at:
            points[at].requires_grad_(not how.tangent)
        scores: dict[Points, Tensor] = {}
        if not how.tangent and looked_at & {Points.reals, Points.fakes}:
            # A gradient at one batch must not pass through the other.
            scores[Points.reals], real_logits = critic(points[Points.reals])
            scores[Points.fakes], fake_logits = critic(points[Points.fakes])
        else:  # one large batch is faster than two
            both, logits = critic(torch.cat([points[Points.reals], points[Points.fakes]]), parts=2)
            (scores[Points.reals], scores[Points.fakes]), (real_logits, fake_logits) = both.chunk(2), logits.chunk(2)
        terms = self.d_terms(scores[Points.reals], scores[Points.fakes])
        for penalty in how.due:
            if how.tangent:
                terms[penalty.name], scores[penalty.at] = by_tangent(critic, penalty, points[penalty.at], how)
            else:
                if penalty.at not in scores:
                    scores[penalty.at] = critic(points[penalty.at])[0]
                terms[penalty.name] = by_autograd(penalty, points[penalty.at], scores[penalty.at], how)
        if reals.labels is not None:
            terms["D/labels_reals"] = label_loss(real_logits, reals.labels)
            terms["D/labels_fakes"] = label_loss(fake_logits, reals.labels)
        return Terms(terms, {f"scores/{at.value}": of.detach() for at, of in scores.items()})

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


def by_autograd(penalty: GradientPenalty, points: Tensor, scores: Tensor, how: Examination) -> Tensor:
    """The penalty [N] of `scores` [N] at `points` [N, C, R, R], differentiable a second time."""
    scale = 1.0 if how.scale is None else how.scale
    with for_images_alone():
        (gradient,) = torch.autograd.grad((scores * scale).sum(), points, create_graph=True)
    return penalty.of(widened(gradient) / scale, how.missing_levels)


def by_tangent(critic: Critic, penalty: GradientPenalty, points: Tensor, how: Examination) -> tuple[Tensor, Tensor]:
    """The same penalty [N] with the same gradient in the weights, and the scores, without differentiating twice.

    For g the gradient of the summed scores, the penalty p(g) changes with the weights as the scores' derivative along
    dp/dg does: d p(g) = dp/dg . dg = d (dp/dg . dscores/dx), with dp/dg held fixed.  The sums agree, not each image.
    """

    def scores_at(images: Tensor) -> Tensor:
        return critic(images)[0]

    with torch.no_grad():  # for the weights
        scores, pullback = torch.func.vjp(scores_at, points)  # type: ignore[misc]
        scale = torch.ones_like(scores) if how.scale is None else how.scale.expand_as(scores)
        gradient = widened(pullback(scale)[0]) / scale[0]
        value, pullback = torch.func.vjp(lambda g: penalty.of(g, how.missing_levels), gradient)  # type: ignore[misc]
        (along,) = pullback(torch.ones_like(value))
    _, directional = torch.func.jvp(scores_at, (points,), (along.to(points.dtype),))  # type: ignore[misc]
    return value + (directional - directional.detach()), scores


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy [N] of class `logits` [N, L] against one-hot `labels` [N, L].  (AC-GAN, weight 1 as official)"""
    return F.cross_entropy(logits, labels, reduction="none")
