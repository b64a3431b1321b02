"""Directions in the space of latents along which images change in one respect.  Unit vectors [K, Z].

N latents, Z latent size, K directions, F features at 4x4.  A latent is N(0, 1), so along a unit vector the standard
deviation of latents is 1, and strengths are in standard deviations.
"""

from collections.abc import Sequence
from math import sqrt
from pathlib import Path

import torch
from torch import Tensor

from pggan.core.errors import UserError
from pggan.core.rng import generator_for
from pggan.networks.networks import Generator
from pggan.sampling.latents.latents import load_vectors, save_vectors, seed_latents

OBSERVED = 4096  # latents whose features show the principal components
SPARE, ITERATIONS = 8, 8  # components calculated beyond those asked for, and rounds, which make these exact
HEADER = "directions"


def move(latents: Tensor, direction: Tensor, strength: float) -> Tensor:
    """`latents` [N, Z] moved along `direction` [Z], from the length that latents typically have."""
    typical: Tensor = latents / latents.norm(dim=1, keepdim=True) * sqrt(latents.shape[1])
    return typical + strength * direction


def directions_of_weights(network: Generator, count: int) -> Tensor:
    """The `count` directions that the first layer amplifies most: eigenvectors of its weights.

    Source: Shen and Zhou 2021 (closed-form factorisation), equation 4.
    """
    size = network.architecture.latent_size
    weight = network.stem.dense.weight[:, :size].detach().double().cpu()
    return strongest(torch.linalg.eigh(weight.T @ weight), count)


@torch.no_grad()
def directions_of_activations(network: Generator, count: int, labels: Tensor | None) -> Tensor:
    """The `count` directions that lead along the principal components of the 4x4 features, the strongest first.

    Source: Härkönen et al. 2020 (GANSpace), section 2.2: components of activations of an early layer, and the latents
    that lead to each one by linear regression.  `labels` [1, L]: the class, where there are any.
    """
    latents = seed_latents(list(range(OBSERVED)), network.architecture.latent_size)
    device = network.weights[0].device
    labels = None if labels is None else labels.expand(OBSERVED, -1).to(device)
    features = network.features(latents.to(device), labels).flatten(1).cpu()  # [N, F]
    features = features - features.mean(0)
    # Subspace iteration (Halko et al. 2011, algorithm 4.4): all components of thousands of features would take minutes.
    shape = (features.shape[1], min(count + SPARE, features.shape[1]))
    basis = torch.randn(shape, generator=generator_for(0, "principal components", 0))
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(features.T @ (features @ basis)).Q
    coordinates = (features @ basis).double()
    coordinates = coordinates @ strongest(torch.linalg.eigh(coordinates.T @ coordinates), count).T.double()  # [N, K]
    return unit(coordinates.T @ latents.double())


def direction_between(negative: Tensor, positive: Tensor) -> Tensor:
    """The direction [1, Z] from the mean of `negative` to that of `positive` latents [N, Z]; UserError if equal."""
    means = [unit(latents.double()).mean(0) for latents in (negative, positive)]
    difference = means[1] - means[0]
    if float(difference.norm()) == 0:
        raise UserError("Both sets of latents have the same mean.", "Give two sets that differ: positive=, negative=.")
    return unit(difference[None])


def strongest(eigen: Sequence[Tensor], count: int) -> Tensor:
    """The `count` eigenvectors [K, Z] of the largest eigenvalues, each with its largest number above 0."""
    vectors = eigen[1].flip(1).T[:count]
    largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
    return unit(vectors * largest.sign())


def unit(vectors: Tensor) -> Tensor:
    """`vectors` [N, Z] with length 1, in float32."""
    scaled: Tensor = vectors / vectors.norm(dim=1, keepdim=True)
    return scaled.float()


def save_directions(directions: Tensor, path: Path, about: dict[str, object]) -> None:
    """Write `directions` [K, Z] as a file that `load_direction` reads."""
    save_vectors(HEADER, directions, path, about)


def load_direction(given: str, size: int) -> Tensor:
    """The direction [Z], Z = `size`, that FILE or FILE:NUMBER names, from 0; raises UserError unless it is there."""
    path, colon, number = given.rpartition(":")
    if not (colon and number.isdecimal()):
        path, number = given, "0"
    directions = load_vectors(HEADER, path, size, "direction")
    if int(number) >= len(directions):
        raise UserError(f"direction={given}: the file has {len(directions)}.", f"Use 0 to {len(directions) - 1}.")
    return unit(directions[int(number)][None])[0]
