"""One training step.  No I/O, no configuration, no rank.

N batch, Z latent size, C channels, R resolution of the phase.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pggan.core.rng import Draws
from pggan.core.schedule import Phase
from pggan.losses.base import Examination, GradientPenalty, Loss, Points, Reals, Terms
from pggan.networks.networks import Discriminator, Generator, prepared
from pggan.networks.numerics import Compute
from pggan.training.gradients.reducer import Exchange
from pggan.training.state import Player, State, follow


@dataclass(frozen=True)
class Stage:
    """What is the same for many steps: one compiled function, or one recording, serves them all."""

    loss: Loss
    due: tuple[GradientPenalty, ...]
    compute: Compute
    resolution: int
    missing_levels: int
    fading: bool
    batch: int  # images of all processes


class Inputs(NamedTuple):
    """The images and random numbers of one step; of this process's part of it, where there are several."""

    reals: Reals
    latents_d: Tensor  # [N, Z]
    latents_g: Tensor  # [N, Z]
    mix: Tensor | None  # [N, 1, 1, 1] in [0, 1)

    def rows(self, rows: Tensor) -> "Inputs":
        mix = None if self.mix is None else self.mix[rows]
        return Inputs(self.reals.rows(rows), self.latents_d[rows], self.latents_g[rows], mix)


class Passes(NamedTuple):
    """The forward passes of a step, as they are or compiled."""

    fakes: Callable[..., Tensor]
    d: Callable[..., Terms]
    g: Callable[..., Terms]


class Dials(NamedTuple):
    """What changes from step to step; tensors where the step is recorded, to be set without recording anew."""

    alpha: float | Tensor
    learning_rate_d: float | Tensor
    learning_rate_g: float | Tensor
    decay: float | Tensor  # of the averaged generator


def train_step(
    state: State, phase: Phase, reals: Reals, loss: Loss, draws: Draws, *, decay: float, compute: Compute
) -> dict[str, Tensor]:
    """Update D once, then G once, then the averaged G; returns what is worth watching, not reduced."""
    watched = learn(state, *set_up(state, phase, reals, loss, draws, decay=decay, compute=compute))
    state.images += phase.batch
    state.phase_index = phase.index
    return watched


def set_up(
    state: State,
    phase: Phase,
    reals: Reals,
    loss: Loss,
    draws: Draws,
    *,
    decay: float,
    compute: Compute,
    rows: Tensor | None = None,
) -> tuple[Stage, Inputs, Dials]:
    """All that one step needs to know, so that `learn` is arithmetic alone.

    `rows`: the positions in the batch of `reals`, where those are a part of it; the random numbers are the batch's.
    """
    count, size = phase.batch, state.average.architecture.latent_size
    due = tuple(penalty for penalty in loss.penalties() if penalty.due(phase, draws.images))
    mix = draws.uniform("mix", count, 1, 1, 1) if any(penalty.at is Points.mixed for penalty in due) else None
    drawn = (draws.normal("d_latents", count, size), draws.normal("g_latents", count, size), mix)
    if rows is not None:
        drawn = (drawn[0][rows], drawn[1][rows], None if mix is None else mix[rows])
    return (
        Stage(loss, due, compute, phase.resolution, phase.missing_levels, phase.fading, count),
        Inputs(reals, *drawn),
        Dials(phase.alpha, phase.learning_rate_d, phase.learning_rate_g, decay),
    )


def learn(
    state: State,
    stage: Stage,
    inputs: Inputs,
    dials: Dials,
    *,
    passes: Passes | None = None,
    exchange: Exchange | None = None,
) -> dict[str, Tensor]:
    """The step itself; never waits for the device."""
    passes, exchange = passes or Passes(make_fakes, look_at_images, look_at_fakes), exchange or Exchange()
    d, g, batch, compute, alpha = state.d, state.g, stage.batch, stage.compute, dials.alpha
    parts = micro_batches(inputs, state.average.architecture.stddev_group, compute.micro_batch)

    seen, watched = [], {}
    for part in parts:  # D: tell reals from fakes
        with torch.no_grad(), prepared(g.network, compute):
            fakes = passes.fakes(state, stage, part.latents_d, part.reals.labels, alpha)
        with prepared(d.network, compute):
            seen.append(backward(d, passes.d(state, stage, part, alpha, fakes), batch, exchange))
    arrived = exchange.send(d, batch)

    for number, part in enumerate(parts):  # G: raise the scores of fresh fakes, made while D's gradients travel
        with prepared(g.network, compute):
            fakes = passes.fakes(state, stage, part.latents_g, part.reals.fake_labels, alpha)
            if number == 0:
                watched, seen = update(d, seen, arrived(), dials.learning_rate_d, "D"), []
            with prepared(d.network, compute), frozen(d.network):
                seen.append(backward(g, passes.g(state, stage, part, alpha, fakes), batch, exchange))
    watched |= update(g, seen, exchange.send(g, batch)(), dials.learning_rate_g, "G")

    follow(state.average, g.network, dials.decay)
    return watched


def make_fakes(state: State, stage: Stage, latents: Tensor, labels: Tensor | None, alpha: float | Tensor) -> Tensor:
    """Fakes of `latents` [N, Z].  [N, C, R, R]"""
    fakes: Tensor = state.g.network(latents, labels, stage.resolution, alpha)
    return fakes


def look_at_images(state: State, stage: Stage, part: Inputs, alpha: float | Tensor, fakes: Tensor) -> Terms:
    """D's terms for reals and `fakes`."""
    critic = partial(state.d.network, resolution=stage.resolution, alpha=alpha)
    how = Examination(stage.due, stage.missing_levels, part.mix, state.d.scale, stage.compute.tangent)
    return stage.loss.for_d(critic, part.reals, fakes, how)


def look_at_fakes(state: State, stage: Stage, part: Inputs, alpha: float | Tensor, fakes: Tensor) -> Terms:
    """G's terms for fresh `fakes`."""
    return stage.loss.for_g(partial(state.d.network, resolution=stage.resolution, alpha=alpha), part.reals, fakes)


def micro_batches(inputs: Inputs, group: int, size: int | None) -> list[Inputs]:
    """The images in parts of at most `size`.

    A part is made of whole groups of minibatch stddev, so that the gradients of all parts add up to that of the batch.
    """
    count = len(inputs.latents_d)
    group = min(group, count)
    if size is None or size >= count:
        return [inputs]
    members = torch.arange(count, device=inputs.latents_d.device).view(group, -1)  # [group, groups]: groups are strided
    return [inputs.rows(part.flatten()) for part in torch.split(members, max(size // group, 1), 1)]


def backward(player: Player, terms: Terms, batch: int, exchange: Exchange) -> Terms:
    """Add the gradient of the terms' sums over `batch`; returns the terms without their gradient."""
    share = len(next(iter(terms.loss.values()))) / batch
    total = torch.stack([term.mean() for term in terms.loss.values()]).sum() * share
    (total if player.scale is None else total * player.scale).backward()  # type: ignore[no-untyped-call]
    exchange.add(player, total.detach(), batch)
    return Terms({tag: term.detach() for tag, term in terms.loss.items()}, terms.shown)


def update(
    player: Player, seen: list[Terms], total: Tensor, learning_rate: float | Tensor, name: str
) -> dict[str, Tensor]:
    """One optimizer step, unless loss or gradient are not finite; forgets the gradient, returns what to watch.

    `total`: the loss of the whole batch.
    """
    loss, shown = seen[0] if len(seen) == 1 else join(seen)
    norm = player.gradient_norm()
    player.step(learning_rate, torch.isfinite(norm + total))
    about = {"loss": total, "gradient_norm": norm, "skipped": (player.skipped > 0).float()}
    if player.scale is not None:
        about["loss_scale"] = player.scale.clone()  # of the next step
    return {**{f"{name}/{tag}": value for tag, value in about.items()}, **loss, **shown}


def join(parts: list[Terms]) -> Terms:
    """The terms of all micro-batches."""
    loss = {tag: torch.cat([terms.loss[tag] for terms in parts]) for tag in parts[0].loss}
    return Terms(loss, {tag: torch.cat([terms.shown[tag] for terms in parts]) for tag in parts[0].shown})


@contextmanager
def frozen(network: Generator | Discriminator) -> Iterator[None]:
    """No gradient for `network`'s weights: the backward pass goes through it, not into it."""
    for weight in network.weights:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in network.weights:
            weight.requires_grad_(True)
