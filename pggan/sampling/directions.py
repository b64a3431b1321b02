"""`pggan directions`: directions of latents along which images change in one respect, and a sheet of what they do.

N latents, Z latent size, K directions, F features at 4x4.  A latent is N(0, 1), so along a unit vector the standard
deviation of latents is 1, and strengths are in standard deviations.
"""

from math import sqrt

import torch
from torch import Tensor

from pggan.config.commands import DirectionsConfig
from pggan.core.devices import set_threads
from pggan.core.errors import UserError
from pggan.core.rng import generator_for
from pggan.core.text import next_command
from pggan.networks.networks import Generator
from pggan.sampling.generate import observed_features
from pggan.sampling.images import check_output, output_path, save_png, sheet, sheet_zoom
from pggan.sampling.latents import load_vectors, parse_seeds, save_vectors, seed_latents
from pggan.sampling.trained_generator import load

STEPS = 7  # images from one border of the contact sheet to the other
OBSERVED = 4096  # latents whose features show the principal components
SPARE, ITERATIONS = 8, 8  # components calculated beyond those asked for, and rounds, which make these exact


def run(config: DirectionsConfig) -> int:
    """Write the directions, and a sheet with a row for each direction and seed; returns the exit code."""
    set_threads(config.threads)
    seeds = parse_seeds(config.seeds)
    generator = load(config.run, config.device, config.checkpoint)
    settings = generator.settings(resolution=config.resolution, alpha=config.alpha, label=config.label)
    count = min(config.count, generator.latent_size)
    directions = principal_directions(generator.network, count, settings.label)
    target = output_path(config.out, config.run, "directions", ".safetensors")
    out = check_output(str(target), (".safetensors",))
    about = {**config.generator_keys, "images": generator.images}
    save_vectors("directions", directions, out, about)
    strengths = torch.linspace(-config.strength, config.strength, STEPS).tolist()
    rows = [(n, latent) for n in range(len(directions)) for latent in generator.latents(seeds)]
    moved = [move(latent[None], directions[n], by)[0] for n, latent in rows for by in strengths]
    captions = [f"{n}: {by:+.1f}" for n, _ in rows for by in strengths]
    side = settings.resolution * sheet_zoom(settings.resolution, STEPS)
    shown = out.with_suffix(".png")
    save_png(sheet(generator.stream(moved, settings), STEPS, len(rows), side, captions), shown)
    several = "s" * (len(directions) > 1)
    print(f"{out}: {len(directions)} direction{several} of {generator.latent_size} numbers, shown in {shown}")
    print(next_command("sample", "seeds=0-7", "strength=-3,0,3", **config.generator_keys, direction=out))
    return 0


def move(latents: Tensor, direction: Tensor, strength: float) -> Tensor:
    """`latents` [N, Z] moved along `direction` [Z], from the length that latents typically have."""
    typical: Tensor = latents / latents.norm(dim=1, keepdim=True) * sqrt(latents.shape[1])
    return typical + strength * direction


@torch.no_grad()
def principal_directions(network: Generator, count: int, label: int | None = None) -> Tensor:
    """The `count` directions that lead along the principal components of the 4x4 features, the strongest first.

    Source: Härkönen et al. 2020 (GANSpace), section 2.2: components of activations of an early layer, and the latents
    that lead to each one by linear regression.  `label`: the class, where there are any.
    """
    latents = seed_latents(list(range(OBSERVED)), network.architecture.latent_size)
    features = observed_features(network, latents, label).flatten(1).cpu()  # [N, F]
    features = features - features.mean(0)
    # Subspace iteration (Halko et al. 2011, algorithm 4.4): all components of thousands of features would take minutes.
    shape = (features.shape[1], min(count + SPARE, features.shape[1]))
    basis = torch.randn(shape, generator=generator_for(0, "principal components", 0))
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(features.T @ (features @ basis)).Q
    coordinates = (features @ basis).double()
    vectors = torch.linalg.eigh(coordinates.T @ coordinates).eigenvectors.flip(1).T[:count]  # the strongest first
    largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
    components = unit(vectors * largest.sign()).T.double()  # each with its largest number above 0
    return unit((coordinates @ components).T @ latents.double())


def unit(vectors: Tensor) -> Tensor:
    """`vectors` [N, Z] with length 1, in float32."""
    scaled: Tensor = vectors / vectors.norm(dim=1, keepdim=True)
    return scaled.float()


def load_directions(path: str, size: int, key: str = "directions") -> Tensor:
    """The directions [K, Z] of a file, Z = `size`, with length 1; raises UserError unless it is a valid one."""
    return unit(load_vectors("directions", path, size, key))


def load_direction(given: str, size: int) -> Tensor:
    """The direction [Z], Z = `size`, that FILE or FILE:NUMBER names, from 0; raises UserError unless it is there."""
    path, colon, number = given.rpartition(":")
    if not (colon and number.isdecimal()):
        path, number = given, "0"
    directions = load_directions(path, size, "direction")
    if int(number) >= len(directions):
        raise UserError(f"direction={given}: the file has {len(directions)}.", f"Use 0 to {len(directions) - 1}.")
    return directions[int(number)]
