"""Whether an exported generator draws what the network draws, and whether there is a place for it."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.errors import UserError
from pggan.networks.networks import Generator

TOLERANCE = 1e-4  # between two images in [-1, 1]: an eightieth of a step of 8 bits
# Times the network's own rounding, its images in float32 beside float64, that two orders of the same sums may differ:
# hardly trained networks enlarge rounding beyond TOLERANCE, where pixel norm divides by features that are nearly 0.
ROUNDINGS = 8
BATCHES = (1, 3)  # images at a time: a batch has to be free
Inputs = tuple[Tensor, ...]  # latents [N, Z], and one-hot labels [N, L] where there are any


class DifferenceError(Exception):
    """An exported generator that does not draw what the network draws: a fault of this program, not of the user."""


def require_empty(folder: Path) -> None:
    """Raise UserError unless `folder`, given as out=, is new or empty: what is there is never replaced."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"out={folder} exists.", "Name a new or empty directory, or remove it first.")


def largest_difference(
    network: Generator, resolution: int, alpha: float, exported: Callable[[Inputs], Tensor]
) -> float:
    """The largest difference between images of `exported` and of the network, over all BATCHES of random latents.

    Raises DifferenceError beyond TOLERANCE, or beyond ROUNDINGS where the network's own rounding is larger.
    """
    differences, allowed, exact, a = [], TOLERANCE, deepcopy(network).double(), network.architecture
    for count in BATCHES:
        inputs: Inputs = (torch.randn(count, a.latent_size, generator=torch.Generator().manual_seed(count)),)
        if a.num_classes:
            inputs = (*inputs, F.one_hot(torch.arange(count) % a.num_classes, a.num_classes).float())
        wide, labels = [each.double() for each in inputs], (None,) * (2 - len(inputs))
        with torch.no_grad():
            ours, best = network(*inputs, *labels, resolution, alpha), exact(*wide, *labels, resolution, alpha)
        allowed = max(allowed, ROUNDINGS * float((ours - best).abs().max()))
        differences.append((exported(inputs) - ours).abs().max())
    largest = float(torch.stack(differences).max())  # NaN where there is one
    if not largest <= allowed:  # a NaN is refused, too
        raise DifferenceError(f"The export draws images that differ from the network's by {largest:.1e}.")
    return largest
