"""The base of all GAN losses: terms of the scores, gradient penalties, and class terms.

A loss is a frozen dataclass; its fields are the keys of `configs/loss/<name>.yaml`.
N batch, C channels, R resolution, L labels.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import sqrt
from statistics import NormalDist
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.ops.convolution import switched
from pggan.ops.elementwise import to_float32

SIGN = "augment/sign"  # name of the metric that ADA adapts p by


class Reals(NamedTuple):
    """Real images and the labels that go with them."""

    images: Tensor  # [N, C, R, R] in [-1, 1], faded like the generator's output
    labels: Tensor | None  # [N, L] one-hot, of `images`; fakes for D's update are generated with the same labels
    fake_labels: Tensor | None  # [N, L] one-hot, drawn from the training set, of the fakes for G's update

    def select(self, indices: Tensor) -> "Reals":
        """The images and labels at `indices` [M]."""
        return Reals(*(None if part is None else part[indices] for part in self))  # type: ignore[arg-type]


# Augments images [N, C, R, R] for D.  The number says which: reals, fakes in D's update (0, 1) or in G's update (2, 3).
Show = Callable[[Tensor, int], Tensor]
# D at one resolution and alpha: from images [N, C, R, R] to scores [N] and class logits [N, L].
# `sub_batches`: number of equal parts of the images, such as reals and fakes, that don't affect each other's scores.
Critic = Callable[..., tuple[Tensor, Tensor]]


class PenaltyAt(Enum):
    """The images at which a gradient penalty takes the gradient."""

    reals = "reals"
    fakes = "fakes"
    interpolated = "interpolated"  # on the line between a real and a fake, uniformly


class PenaltyContext(NamedTuple):
    """The settings and random numbers of the gradient penalties in one pass of D."""

    due: "tuple[GradientPenalty, ...]"
    missing_levels: int  # doublings from this resolution to the final one
    mix: Tensor | None  # [N, 1, 1, 1], where each interpolated image lies between its real (0) and its fake (1)
    scale: Tensor | None  # loss scale of fp16, which keeps small gradients from becoming 0


@dataclass(frozen=True, kw_only=True)
class GradientPenalty:
    """Weight * (|gradient| / target - 1)^2 per image, or weight * |gradient|^2 with target 0.

    With target 0 and weight gamma / 2 this is R1 (at reals) or R2 (at fakes); with target 1 at interpolated images,
    WGAN-GP.
    Source: Gulrajani et al. 2017, equation 3; Mescheder et al. 2018, equation 9; target as in the official code.
    """

    name: str
    at: PenaltyAt
    weight: float
    target: float = 0.0

    def of(self, gradient: Tensor, missing_levels: int) -> Tensor:
        """The penalty [N] of the `gradient` [N, C, R, R] of scores, `missing_levels` below the final resolution."""
        gradient = to_float32(gradient).flatten(1)
        if self.at is PenaltyAt.interpolated:  # the official D gets images upsampled to the final resolution,
            gradient = gradient / 2**missing_levels  # and each upsampling halves the norm of the gradient
        if self.target == 0:
            return self.weight * gradient.square().sum(1)  # no root, whose derivative at 0 is NaN
        norm: Tensor = torch.linalg.vector_norm(gradient, dim=1)
        return self.weight * (norm - self.target).square() / self.target**2

    def of_scores(self, images: Tensor, scores: Tensor, context: PenaltyContext) -> Tensor:
        """The penalty [N] of `scores` [N] at `images` [N, C, R, R]; the result can be differentiated again."""
        scale = 1.0 if context.scale is None else context.scale
        with switched(weight_gradients=False):
            (gradient,) = torch.autograd.grad((scores * scale).sum(), images, create_graph=True)
        return self.of(to_float32(gradient) / scale, context.missing_levels)


class LossTerms(NamedTuple):
    """Values per image [N] by name, not averaged yet."""

    loss: dict[str, Tensor]  # the loss is the sum of the means of these terms
    metrics: dict[str, Tensor]  # only for reports; detached


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """A GAN loss: a subclass defines the terms of scores; this class runs D, and adds penalties and class terms."""

    needs_reals_for_g: ClassVar[bool] = False  # G's terms also depend on the scores of reals
    zero_is_boundary: ClassVar[bool] = False  # a score above 0 means real, below 0 fake; else only differences count
    scores_are_log_odds: ClassVar[bool] = False  # score differences are log-odds; else their unit is arbitrary

    reg_interval: int  # penalties are computed every so many updates of D, with so many times the weight (lazy)

    @abstractmethod
    def d_terms(self, real_scores: Tensor, fake_scores: Tensor) -> dict[str, Tensor]:
        """The terms [N] that D minimizes, by name, from scores [N]."""

    @abstractmethod
    def g_terms(self, real_scores: Tensor | None, fake_scores: Tensor) -> dict[str, Tensor]:
        """The terms [N] that G minimizes, by name, from scores [N]; `real_scores` only with `needs_reals_for_g`."""

    def penalties(self) -> tuple[GradientPenalty, ...]:
        """The gradient penalties that D minimizes."""
        return ()

    def signs(self, real_scores: Tensor, fake_scores: Tensor) -> Tensor:
        """Signs [N] whose mean says how well D tells reals from fakes: 0 as by chance, 1 always right.

        They are signs of reals' scores, or, if only score differences have a meaning, of reals' minus fakes' scores.
        """
        return torch.sign(real_scores if self.zero_is_boundary else real_scores - fake_scores)

    def mean_sign(self, of_reals: float) -> float:
        """The mean of `signs` if the scores of reals have the mean sign `of_reals`, from 0 to below 1.

        For score differences, this assumes normal scores with one deviation, and means +m of reals and -m of fakes.
        """
        if self.zero_is_boundary:
            return of_reals
        normal = NormalDist()
        return 2 * normal.cdf(sqrt(2) * normal.inv_cdf((1 + of_reals) / 2)) - 1

    def for_d(
        self,
        critic: Critic,
        reals: Reals,
        fakes: Tensor,
        context: PenaltyContext,
        show: Show = lambda images, place: images,
    ) -> LossTerms:
        """The terms of D's loss; `fakes` [N, C, R, R] carry no gradient.

        Penalties at reals and fakes differentiate with respect to the images before the augmentation.
        """
        penalised = {penalty.at for penalty in context.due}
        images = {PenaltyAt.reals: reals.images.detach(), PenaltyAt.fakes: fakes.detach()}
        for at in penalised & set(images):
            images[at].requires_grad_()
        seen_reals, seen_fakes = show(images[PenaltyAt.reals], 0), show(images[PenaltyAt.fakes], 1)
        if penalised & set(images):  # separate passes: the gradient at reals must not involve fakes
            real_scores, real_logits = critic(seen_reals)
            fake_scores, fake_logits = critic(seen_fakes)
        else:  # one pass with a large batch is faster than two passes
            both, logits = critic(torch.cat([seen_reals, seen_fakes]), sub_batches=2)
            (real_scores, fake_scores), (real_logits, fake_logits) = both.chunk(2), logits.chunk(2)
        scores = {PenaltyAt.reals: real_scores, PenaltyAt.fakes: fake_scores}
        if PenaltyAt.interpolated in penalised:
            assert context.mix is not None, "mix is drawn if a penalty needs interpolated images"
            mixed = torch.lerp(seen_reals, seen_fakes, context.mix).detach().requires_grad_()
            images[PenaltyAt.interpolated], scores[PenaltyAt.interpolated] = mixed, critic(mixed)[0]
        terms = self.d_terms(real_scores, fake_scores)
        for penalty in context.due:
            terms[penalty.name] = penalty.of_scores(images[penalty.at], scores[penalty.at], context)
        if reals.labels is not None:
            terms["D/class_loss_reals"] = class_loss(real_logits, reals.labels)
            terms["D/class_loss_fakes"] = class_loss(fake_logits, reals.labels)
        return LossTerms(terms, {f"scores/{at.value}": of.detach() for at, of in scores.items()})

    def for_g(
        self, critic: Critic, reals: Reals, fakes: Tensor, show: Show = lambda images, place: images
    ) -> LossTerms:
        """The terms of G's loss; gradients flow to G through `fakes` [N, C, R, R]."""
        real_scores = None
        if self.needs_reals_for_g:
            with torch.no_grad():
                real_scores, _ = critic(show(reals.images, 2))
        fake_scores, fake_logits = critic(show(fakes, 3))
        terms = self.g_terms(real_scores, fake_scores)
        if reals.fake_labels is not None:
            terms["G/class_loss_fakes"] = class_loss(fake_logits, reals.fake_labels)
        return LossTerms(terms, {})


def class_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy [N] of class `logits` [N, L] against one-hot `labels` [N, L].  (AC-GAN, weight 1 as official)"""
    return F.cross_entropy(logits, labels, reduction="none")
