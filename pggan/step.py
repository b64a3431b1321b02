"""One training step.  No I/O, no configuration, no rank.

N batch, Z latent size, C channels, R resolution of the phase.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from pggan.draws import Draws
from pggan.losses.base import Loss, Reals, Terms
from pggan.schedule import Phase
from pggan.state import Player, State, follow


def train_step(
    state: State, phase: Phase, reals: Reals, loss: Loss, draws: Draws, *, decay: float
) -> dict[str, Tensor]:
    """Update D once, then G once, then the averaged G; returns what is worth watching, not reduced.

    `decay`: of the averaged generator, for this step.
    """
    count, latent_size = len(reals.images), state.average.architecture.latent_size
    generate = partial(state.g.network, resolution=phase.resolution, alpha=phase.alpha)
    critic = partial(state.d.network, resolution=phase.resolution, alpha=phase.alpha)

    with torch.no_grad():  # D: tell reals from fakes
        fakes = generate(draws.normal("d_latents", count, latent_size), reals.labels)  # [N, C, R, R]
    terms = loss.for_d(critic, reals, fakes, phase, draws)
    watched = update(state.d, terms, phase.learning_rate_d, "D")

    with frozen(state.d.network):  # G: raise the scores of fresh fakes
        fakes = generate(draws.normal("g_latents", count, latent_size), reals.fake_labels)  # [N, C, R, R]
        terms = loss.for_g(critic, reals, fakes)
        watched |= update(state.g, terms, phase.learning_rate_g, "G")

    follow(state.average, state.g.network, decay)
    state.images += count
    state.phase_index = phase.index
    return watched


def update(player: Player, terms: Terms, learning_rate: float, name: str) -> dict[str, Tensor]:
    """Add up the mean of every term, backpropagate, take one optimizer step unless a gradient is not finite.

    Whether it is taken is decided on the device: nothing here waits for it.
    """
    player.optimizer.zero_grad(set_to_none=True)  # levels not in use keep no gradient, and so are not updated
    total = torch.stack([term.mean() for term in terms.loss.values()]).sum()
    total.backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in player.network.parameters() if parameter.grad is not None]
    norm = torch.stack(torch._foreach_norm(gradients)).norm()
    for group in player.optimizer.param_groups:
        group["lr"] = learning_rate
    skip = ~torch.isfinite(norm + total.detach())
    player.optimizer.found_inf = skip.float()  # type: ignore[attr-defined] # fused Adam leaves all as it is then
    player.optimizer.step()
    player.skipped = torch.where(skip, player.skipped + 1, 0)
    named = {tag: term.detach() for tag, term in terms.loss.items()}
    return {
        f"{name}/loss": total.detach(),
        f"{name}/gradient_norm": norm,
        f"{name}/skipped": skip.int(),
        **named,
        **terms.shown,
    }


@contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """No gradient for `network`'s weights: the backward pass goes through it, not into it."""
    network.requires_grad_(False)
    try:
        yield
    finally:
        network.requires_grad_(True)
