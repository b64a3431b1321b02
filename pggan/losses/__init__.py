"""The GAN losses: the paper's WGAN-GP, the logistic loss and the relativistic loss."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.errors import UserError
from pggan.losses.base import GradientPenalty, Loss

DRIFT = 0.001  # weight of the drift penalty, which keeps scores of reals near 0


@dataclass(frozen=True, kw_only=True)
class WganGp(Loss):
    """WGAN-GP (Gulrajani et al. 2017, equation 3) with drift penalty (Karras et al. 2018, appendix A.1)."""

    penalty_weight: float
    target: float  # the gradient norm at which the penalty is 0: usually 1, but 750 for CIFAR-10 in the paper

    def d_terms(self, real_scores: Tensor, fake_scores: Tensor) -> dict[str, Tensor]:
        return {"D/wasserstein": fake_scores - real_scores, "D/drift": DRIFT * real_scores.square()}

    def g_terms(self, real_scores: Tensor | None, fake_scores: Tensor) -> dict[str, Tensor]:
        return {"G/wasserstein": -fake_scores}

    def penalties(self) -> tuple[GradientPenalty, ...]:
        weight, target = self.penalty_weight * self.reg_interval, self.target
        return (GradientPenalty(name="D/gradient_penalty", at="interpolated", weight=weight, target=target),)


@dataclass(frozen=True, kw_only=True)
class Logistic(Loss):
    """The non-saturating logistic loss (Goodfellow et al. 2014, section 3) with R1 (Mescheder et al. 2018)."""

    gamma: float
    zero_is_boundary: ClassVar[bool] = True
    scores_are_log_odds: ClassVar[bool] = True

    def d_terms(self, real_scores: Tensor, fake_scores: Tensor) -> dict[str, Tensor]:
        return {"D/loss_reals": F.softplus(-real_scores), "D/loss_fakes": F.softplus(fake_scores)}

    def g_terms(self, real_scores: Tensor | None, fake_scores: Tensor) -> dict[str, Tensor]:
        return {"G/loss_fakes": F.softplus(-fake_scores)}

    def penalties(self) -> tuple[GradientPenalty, ...]:
        weight = self.gamma / 2 * self.reg_interval
        return (GradientPenalty(name="D/r1", at="reals", weight=weight),)


@dataclass(frozen=True, kw_only=True)
class Relativistic(Loss):
    """The relativistic loss (Jolicoeur-Martineau 2018, equation 4) with R1 and R2 (R3GAN: Huang et al. 2024)."""

    gamma: float
    needs_reals_for_g: ClassVar[bool] = True
    scores_are_log_odds: ClassVar[bool] = True

    def d_terms(self, real_scores: Tensor, fake_scores: Tensor) -> dict[str, Tensor]:
        return {"D/relativistic": F.softplus(fake_scores - real_scores)}

    def g_terms(self, real_scores: Tensor | None, fake_scores: Tensor) -> dict[str, Tensor]:
        assert real_scores is not None, "G's relativistic loss needs the scores of reals"
        return {"G/relativistic": F.softplus(real_scores - fake_scores)}

    def penalties(self) -> tuple[GradientPenalty, ...]:
        weight = self.gamma / 2 * self.reg_interval
        r1 = GradientPenalty(name="D/r1", at="reals", weight=weight)
        return r1, GradientPenalty(name="D/r2", at="fakes", weight=weight)


def missing_object(**options: Any) -> Loss:
    """Raise UserError: the setting loss=object works only if a Python script gives a loss object to `pggan.train`."""
    problem = f"The loss of this run is an object from a Python script (class {options['type'] or 'unknown'})."
    raise UserError(problem, "Call pggan.train(…, loss=…) in a script. For several GPUs, run the script with torchrun.")


LOSSES: dict[str, Callable[..., Loss]] = {
    "logistic": Logistic,
    "object": missing_object,
    "relativistic": Relativistic,
    "wgan_gp": WganGp,
}


def build_loss(options: Mapping[str, Any]) -> Loss:
    """Build the loss that `options["name"]` names, from the other options (keys of configs/loss/NAME.yaml)."""
    return LOSSES[options["name"]](**{key: value for key, value in options.items() if key != "name"})


@contextmanager
def own_loss(loss: object) -> Iterator[None]:
    """In the `with` block, the literal setting loss=object selects `loss`.  Raises UserError for invalid loss terms."""
    if not isinstance(loss, Loss):
        problem, names = f"loss={loss!r} is no loss.", ", ".join(LOSSES.keys() - {"object"})
        raise UserError(problem, f"Pass an instance of a subclass of pggan.Loss, or the override 'loss=NAME': {names}.")
    scores = torch.linspace(-1, 1, 8, requires_grad=True)
    of_g = loss.g_terms(scores.detach() if loss.needs_reals_for_g else None, -scores)
    found: dict[str, Any] = {"d_terms": loss.d_terms(scores, -scores), "g_terms": of_g}
    for method, terms in found.items():
        values: dict[str, Any] = {**terms} if isinstance(terms, Mapping) and terms else {"no terms": str(terms)}
        for name, one in values.items():
            if not (isinstance(one, Tensor) and one.requires_grad and one.shape == (8,) and one.isfinite().all()):
                problem = f"In a test with 8 images, {type(loss).__name__}.{method} returned {name}: {one}."
                remedy = "Return a dictionary of tensors with a gradient, each with one finite number per image."
                raise UserError(problem, remedy)
    LOSSES["object"] = lambda **options: loss
    try:
        yield
    finally:
        LOSSES["object"] = missing_object
