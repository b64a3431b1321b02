"""The forward passes of a training step: fakes, D's terms and G's terms, eager or compiled.

N batch, Z latent size, C channels, R resolution.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pggan.augmentation.base import D_PASS, G_PASS, Transforms
from pggan.core.batch import Reals
from pggan.losses.base import SIGN, LossTerms
from pggan.losses.gradient_penalty import PenaltyContext
from pggan.networks.features.discriminator import ProjectedDiscriminator
from pggan.optim.state import State
from pggan.training.inputs import StepInputs, StepSpec


def make_fakes(state: State, spec: StepSpec, latents: Tensor, labels: Tensor | None, alpha: float | Tensor) -> Tensor:
    """Fakes [N, C, R, R] of `latents` [N, Z]."""
    fakes: Tensor = state.g.network(latents, labels, spec.resolution, alpha)
    return fakes


def transforms_of(state: State, spec: StepSpec, augment: Tensor | None, of_pass: slice) -> Transforms:
    """The transforms of D in a pass, `of_pass` among those that have random numbers in `augment` [N, TRANSFORMS, …]."""
    if spec.augmentation is None or augment is None:
        return Transforms()
    return spec.augmentation.transforms(
        augment[:, of_pass], None if state.d.adaptive_p is None else state.d.adaptive_p.p
    )


def d_forward(
    state: State,
    spec: StepSpec,
    reals: Reals,
    fakes: Tensor,
    alpha: float | Tensor,
    *,
    mix: Tensor | None,
    augment: Tensor | None = None,
) -> LossTerms:
    """D's terms for `reals` and `fakes` [N, C, R, R].

    Where D looks at pretrained features, too, gradient penalties are taken at images and projected features together.
    """
    d, transforms = state.d.network, transforms_of(state, spec, augment, D_PASS)
    critic = partial(d, resolution=spec.resolution, alpha=alpha)
    if isinstance(d, ProjectedDiscriminator) and d.architecture.has_features(spec.resolution):
        with torch.no_grad():
            features = d.features(
                torch.cat([transforms.reals(reals.images), transforms.fakes(fakes)])
            )  # [2 N, F, 1, 1]
        reals, fakes = reals._replace(images=features[: len(fakes)]), features[len(fakes) :]
        critic, transforms = partial(d.score_features, resolution=spec.resolution, alpha=alpha), Transforms()
    context = PenaltyContext(spec.due, spec.missing_levels, mix, state.d.scale, spec.options.jvp)
    terms = spec.loss.for_d(critic, reals, fakes, context, transforms)
    if state.d.adaptive_p is not None:
        terms.metrics[SIGN] = spec.loss.signs(terms.metrics["scores/reals"], terms.metrics["scores/fakes"])
    return terms


def g_forward(
    state: State, spec: StepSpec, reals: Reals, fakes: Tensor, alpha: float | Tensor, *, augment: Tensor | None = None
) -> LossTerms:
    """G's terms for fresh `fakes` [N, C, R, R]."""
    critic = partial(state.d.network, resolution=spec.resolution, alpha=alpha)
    return spec.loss.for_g(critic, reals, fakes, transforms_of(state, spec, augment, G_PASS))


class Passes(NamedTuple):
    """The forward passes that a step takes: functions of tensors and of a StepSpec, which can be compiled."""

    fakes: Callable[..., Tensor] = make_fakes
    d: Callable[..., LossTerms] = d_forward
    g: Callable[..., LossTerms] = g_forward

    def fakes_for_d(self, state: State, inputs: StepInputs) -> Tensor:
        """Fakes [N, C, R, R] that D is to score below the reals of `inputs`."""
        return self.fakes(state, inputs.spec, inputs.latents_d, inputs.reals.labels, inputs.alpha)

    def fakes_for_g(self, state: State, inputs: StepInputs) -> Tensor:
        """Fakes [N, C, R, R] whose scores G is to raise."""
        return self.fakes(state, inputs.spec, inputs.latents_g, inputs.reals.fake_labels, inputs.alpha)

    def d_terms(self, state: State, inputs: StepInputs, fakes: Tensor) -> LossTerms:
        """D's terms for the reals of `inputs` and `fakes` [N, C, R, R]."""
        return self.d(state, inputs.spec, inputs.reals, fakes, inputs.alpha, mix=inputs.mix, augment=inputs.augment)

    def g_terms(self, state: State, inputs: StepInputs, fakes: Tensor) -> LossTerms:
        """G's terms for `fakes` [N, C, R, R]."""
        return self.g(state, inputs.spec, inputs.reals, fakes, inputs.alpha, augment=inputs.augment)


def compiled_passes() -> Passes:
    """The passes through torch.compile, each one graph per StepSpec, kept on disk by torch for later runs."""
    torch._dynamo.config.recompile_limit = 256  # levels, fading or not, penalised or not, precisions
    compiled = partial(torch.compile, fullgraph=True, dynamic=False)
    return Passes(compiled(make_fakes), compiled(d_forward), compiled(g_forward))
