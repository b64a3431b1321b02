"""The base class of all GAN losses, with gradient penalties and a loss for class labels.

Shapes: N batch size, C channels, R resolution, L labels.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.ops.convolution import switched
from pggan.ops.elementwise import to_float32

SIGN = "augment/sign"  # name of the metric from which ADA computes its probability p: the mean sign of D's scores


class Reals(NamedTuple):
    """A batch of real images, with labels."""

    images: Tensor  # [N, C, R, R] in [-1, 1], blended with the lower resolution while layers fade in
    labels: Tensor | None  # [N, L] one-hot labels of `images`; the fakes in D's update have the same labels
    fake_labels: Tensor | None  # [N, L] one-hot labels of the fakes in G's update

    def select(self, indices: Tensor) -> "Reals":
        return Reals(*(None if part is None else part[indices] for part in self))  # type: ignore[arg-type]


# `Show` functions augment images before D sees them.  Second argument: 0 reals, 1 fakes in D's loss; 2, 3 in G's.
Show = Callable[[Tensor, int], Tensor]
# A `Critic` is D at one stage of progressive growing: images [N, C, R, R] -> scores [N] and class logits [N, L].
# A D with P parts, such as a plain D and heads on pretrained features, returns scores [N, P].  Each part has a loss.
# With sub_batches=2, D computes minibatch statistics of reals (first half) and fakes (second half) separately.
Critic = Callable[..., tuple[Tensor, Tensor]]
# The images at which a gradient penalty differentiates D's scores; interpolated: random mixtures of a real and a fake.
PenaltyAt = Literal["reals", "fakes", "interpolated"]


class PenaltyContext(NamedTuple):
    """The settings and random numbers of the gradient penalties in one update of D."""

    due: "tuple[GradientPenalty, ...]"  # the penalties that this update of D computes
    missing_levels: int  # log2(final resolution / this resolution)
    mix: Tensor | None  # [N, 1, 1, 1], weight of the fake in each interpolated image
    scale: Tensor | None  # loss scale of fp16


@dataclass(frozen=True, kw_only=True)
class GradientPenalty:
    """A penalty of weight * (|gradient| / target - 1)^2 per image, or of weight * |gradient|^2 if the target is 0.

    Source: Gulrajani et al. 2017, equation 3; Mescheder et al. 2018, equation 9.
    """

    name: str
    at: PenaltyAt
    weight: float
    target: float = 0.0

    def of(self, gradient: Tensor, missing_levels: int) -> Tensor:
        """The penalty [N] for the `gradient` [N, C, R, R] of scores, as if images had side R * 2**missing_levels."""
        gradient = to_float32(gradient).flatten(1)
        # In the official code, D gets images upsampled to the final resolution; each doubling halves the gradient norm.
        factor = 2.0**missing_levels
        if self.target == 0:  # the formula below would divide by 0
            return self.weight / factor**2 * gradient.square().sum(1)
        norm: Tensor = torch.linalg.vector_norm(gradient, dim=1)
        target = self.target * factor
        return self.weight / target**2 * (norm - target).square()

    def of_scores(self, images: Tensor, scores: Tensor, context: PenaltyContext) -> Tensor:
        """The differentiable penalty [N] for the gradient of `scores` [N] with respect to `images` [N, C, R, R]."""
        scale = context.scale
        total = (scores if scale is None else scores * scale).sum()  # without `sum`, `grad` loads sympy, which is slow
        with switched(weight_gradients=False):
            (gradient,) = torch.autograd.grad(total, images, create_graph=True)
        return self.of(gradient if scale is None else to_float32(gradient) / scale, context.missing_levels)


class LossTerms(NamedTuple):
    """Loss terms and metrics by name; each tensor [N] has one value per image."""

    loss: dict[str, Tensor]  # the loss is the sum of the batch means of these terms
    metrics: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """The base class of GAN losses, which map scores to loss terms.  Fields are keys of configs/loss/NAME.yaml."""

    needs_reals_for_g: ClassVar[bool] = False
    zero_is_boundary: ClassVar[bool] = False  # whether D's score is positive for real images, negative for fakes
    scores_are_log_odds: ClassVar[bool] = False  # whether score differences are log-odds

    reg_interval: int = 1  # n: every n-th update of D has penalties, n times as strong (Karras et al. 2020, app. B)

    @abstractmethod
    def d_terms(self, real_scores: Tensor, fake_scores: Tensor) -> dict[str, Tensor]:
        """The loss terms [N] of D, by name, computed from scores [N]."""

    @abstractmethod
    def g_terms(self, real_scores: Tensor | None, fake_scores: Tensor) -> dict[str, Tensor]:
        """The loss terms [N] of G, by name.  `real_scores` is None if `needs_reals_for_g` is False."""

    def penalties(self) -> tuple[GradientPenalty, ...]:
        """The gradient penalties that D's loss has in every `reg_interval`-th update."""
        return ()

    def signs(self, real_scores: Tensor, fake_scores: Tensor) -> Tensor:
        """The signs [N] of scores: 1 where D is right, -1 where D is wrong.  ADA computes its p from their mean."""
        return torch.sign(real_scores if self.zero_is_boundary else real_scores - fake_scores)

    def mean_sign(self, of_reals: float) -> float:
        """Mean of `signs` for scores N(m, s^2) of reals, N(-m, s^2) of fakes.  `of_reals`: mean sign of real scores."""
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
        """The terms of D's loss.  R1 and R2 penalise gradients at images [N, C, R, R] before augmentation."""
        penalised = {penalty.at for penalty in context.due}
        images = {"reals": reals.images.detach(), "fakes": fakes.detach()}
        for at in penalised & set(images):
            images[at].requires_grad_()
        seen_reals, seen_fakes = show(images["reals"], 0), show(images["fakes"], 1)
        if penalised & set(images):  # two batches: in a joint batch, R1 would compute gradients at fakes, too
            real_scores, real_logits = critic(seen_reals)
            fake_scores, fake_logits = critic(seen_fakes)
        else:  # without R1 and R2, one joint batch is faster than two batches
            both, logits = critic(torch.cat([seen_reals, seen_fakes]), sub_batches=2)
            (real_scores, fake_scores), (real_logits, fake_logits) = both.chunk(2), logits.chunk(2)
        scores = {"reals": real_scores, "fakes": fake_scores}
        if "interpolated" in penalised:
            assert context.mix is not None, "a penalty at interpolated images needs `context.mix`"
            mixed = torch.lerp(seen_reals, seen_fakes, context.mix).detach().requires_grad_()
            images["interpolated"], scores["interpolated"] = mixed, critic(mixed)[0]
        terms = sum_of_parts(self.d_terms, real_scores, fake_scores)
        for penalty in context.due:
            terms[penalty.name] = penalty.of_scores(images[penalty.at], scores[penalty.at], context)
        if reals.labels is not None:
            terms["D/class_loss_reals"] = class_loss(real_logits, reals.labels)
            terms["D/class_loss_fakes"] = class_loss(fake_logits, reals.labels)
        of_plain_d = {at: of if of.ndim == 1 else of[:, 0] for at, of in scores.items()}
        return LossTerms(terms, {f"scores/{at}": of.detach() for at, of in of_plain_d.items()})

    def for_g(
        self, critic: Critic, reals: Reals, fakes: Tensor, show: Show = lambda images, place: images
    ) -> LossTerms:
        """The terms of G's loss; gradients flow to G through `fakes` [N, C, R, R]."""
        real_scores = None
        if self.needs_reals_for_g:
            with torch.no_grad():
                real_scores, _ = critic(show(reals.images, 2))
        fake_scores, fake_logits = critic(show(fakes, 3))
        terms = sum_of_parts(self.g_terms, real_scores, fake_scores)
        if reals.fake_labels is not None:
            terms["G/class_loss_fakes"] = class_loss(fake_logits, reals.fake_labels)
        return LossTerms(terms, {})


def sum_of_parts(
    terms_of: Callable[..., dict[str, Tensor]], real_scores: Tensor | None, fake_scores: Tensor
) -> dict[str, Tensor]:
    """Call the method `terms_of`, such as `d_terms`.  For scores [N, P], add up the terms [N] of the P parts of D."""
    if fake_scores.ndim == 1:
        return terms_of(real_scores, fake_scores)
    reals = fake_scores.shape[1] * [None] if real_scores is None else real_scores.unbind(1)
    parts = [terms_of(*scores) for scores in zip(reals, fake_scores.unbind(1), strict=True)]
    return {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}


def class_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy [N] of class logits [N, L] and one-hot labels [N, L], as in AC-GAN."""
    return F.cross_entropy(logits, labels, reduction="none")
