"""Computes one training step."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pggan.losses.ada import augment
from pggan.losses.base import SIGN, LossTerms, PenaltyContext
from pggan.networks.layers import backpropagate, use_options
from pggan.optim.reducer import GradientReducer
from pggan.optim.state import State, Trainable
from pggan.training.inputs import StepInputs


def train_step(state: State, micro_batches: Sequence[StepInputs], reducer: GradientReducer) -> dict[str, Tensor]:
    """Update D, then G, then the averaged G; returns metrics on the device, without waiting for the GPU."""
    d, g, first = state.d, state.g, micro_batches[0]  # All micro-batches have equal settings.
    options, side, batch, terms = first.spec.options, first.spec.resolution, first.spec.batch, []
    metrics: dict[str, Tensor] = {}

    for micro_batch in micro_batches:
        with torch.no_grad(), use_options(g.network, options):
            fakes = g.network(micro_batch.latents_d, micro_batch.reals.labels, side, first.alpha)
        with use_options(d.network, options):
            terms.append(backward(d, d_terms(state, micro_batch, fakes), batch, reducer))
    wait_for_d = reducer.start_all_reduce(d, batch)

    for micro_batch in micro_batches:  # G draws new fakes while the ranks sum D's gradients
        with use_options(g.network, options):
            fakes = g.network(micro_batch.latents_g, micro_batch.reals.fake_labels, side, first.alpha)
            if micro_batch is first:  # D must be updated before D scores G's fakes.
                metrics, terms = update(d, terms, wait_for_d(), first.learning_rate_d, batch), []
            with use_options(d.network, options, frozen=True):
                terms.append(backward(g, g_terms(state, micro_batch, fakes), batch, reducer))
    wait_for_g = reducer.start_all_reduce(g, batch)
    metrics |= update(g, terms, wait_for_g(), first.learning_rate_g, batch)

    state.flat_averages.lerp_(state.flat_weights, 1 - first.ema_decay)
    return metrics


def d_terms(state: State, inputs: StepInputs, fakes: Tensor) -> LossTerms:
    """The terms of D's loss for the reals of `inputs` and for `fakes` [N, C, R, R].

    With pretrained features, a gradient penalty treats augmented images and their features as two separate inputs of
    D.  So the penalty is not backpropagated through the pretrained network.
    """
    d: Any = state.d.network
    spec, reals = inputs.spec, inputs.reals
    judge, show = d, partial(shown, state, inputs)
    if spec.resolution >= d.features_from:
        with torch.no_grad():  # [2 N, F, 1, 1]: features of N reals and N fakes
            features = d.features(torch.cat([show(reals.images, 0), show(fakes, 1)]))
        reals, fakes = reals._replace(images=features[: len(fakes)]), features[len(fakes) :]
        judge, show = d.score_features, partial(shown, state, inputs._replace(augment=None))
    critic = partial(judge, resolution=spec.resolution, alpha=inputs.alpha)
    context = PenaltyContext(spec.due, spec.missing_levels, inputs.mix, state.d.scale)
    terms = spec.loss.for_d(critic, reals, fakes, context, show)
    if state.d.adaptive_p is not None:
        terms.metrics[SIGN] = spec.loss.signs(terms.metrics["scores/reals"], terms.metrics["scores/fakes"])
    return terms


def g_terms(state: State, inputs: StepInputs, fakes: Tensor) -> LossTerms:
    """The terms of G's loss for `fakes` [N, C, R, R]."""
    critic = partial(state.d.network, resolution=inputs.spec.resolution, alpha=inputs.alpha)
    return inputs.spec.loss.for_g(critic, inputs.reals, fakes, partial(shown, state, inputs))


def shown(state: State, inputs: StepInputs, images: Tensor, place: int) -> Tensor:
    """Augment `images` [N, C, R, R] if the run uses ADA; `place` says which of a step's four augmentations this is."""
    draws, adaptive_p = inputs.augment, state.d.adaptive_p
    return images if draws is None or adaptive_p is None else augment(images, draws[:, place], adaptive_p.p)


def backward(trainable: Trainable, terms: LossTerms, batch: int, reducer: GradientReducer) -> LossTerms:
    """Backpropagate this rank's share of the mean loss over `batch` images.  Return `terms` detached from autograd."""
    share = len(next(iter(terms.loss.values()))) / batch
    total = torch.stack([term.mean() for term in terms.loss.values()]).sum()
    total = total if share == 1 else total * share
    backpropagate(total if trainable.scale is None else total * trainable.scale, through_d=trainable.name == "G")
    sums = total.detach()[None]
    if SIGN in terms.metrics:
        sums = torch.cat([sums, terms.metrics[SIGN].mean(0, keepdim=True) * share])
    reducer.accumulate(trainable, sums, batch)
    return LossTerms({tag: term.detach() for tag, term in terms.loss.items()}, terms.metrics)


def update(
    trainable: Trainable, terms: list[LossTerms], means: Tensor, learning_rate: float | Tensor, batch: int
) -> dict[str, Tensor]:
    """Take an optimizer step, unless the loss or a gradient is infinite or NaN; returns metrics.

    `means` has the mean loss of all ranks' images and, with ADA, the mean sign of D's scores.
    """
    name, loss, norm = trainable.name, means[0], trainable.gradient_norm()
    wrong = (norm + loss) * 0 != 0  # true for infinity and NaN: only a finite number times 0 gives 0
    skip = wrong.float()
    trainable.update(learning_rate, wrong, skip)
    about = {f"{name}/loss": loss, f"{name}/gradient_norm": norm, f"{name}/skipped": skip}
    if trainable.scale is not None:
        about[f"{name}/loss_scale"] = trainable.scale.clone()
    if trainable.adaptive_p is not None:
        about["augment/p"] = trainable.adaptive_p.follow(means[1], batch)
    per_image = terms[0].loss | terms[0].metrics
    if len(terms) > 1:
        per_image = {tag: torch.cat([(one.loss | one.metrics)[tag] for one in terms]) for tag in per_image}
    return about | per_image
