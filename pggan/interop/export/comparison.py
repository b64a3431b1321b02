"""Whether an exported generator draws what the network draws."""

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.networks.networks import Generator

TOLERANCE = 1e-4  # between two images in [-1, 1]: an eightieth of a step of 8 bits
# Times the network's own rounding, its images in float32 beside float64, that two orders of the same sums may differ:
# hardly trained networks enlarge rounding beyond TOLERANCE, where pixel norm divides by features that are nearly 0.
ROUNDINGS = 8
BATCHES = (1, 3)  # images at a time: a batch has to be free
Inputs = tuple[Tensor, ...]  # latents [N, Z], and one-hot labels [N, L] where there are any


class DifferenceError(Exception):
    """An exported generator that does not draw what the network draws: a fault of this program, not of the user."""


def example_inputs(network: Generator, count: int) -> Inputs:
    """Random latents [N, Z], always the same, and labels [N, L] where there are any."""
    a, random = network.architecture, torch.Generator().manual_seed(count)
    latents = torch.randn(count, a.latent_size, generator=random)
    if not a.num_classes:
        return (latents,)
    return latents, F.one_hot(torch.arange(count) % a.num_classes, a.num_classes).float()


def draw(network: Generator, inputs: Inputs, resolution: int, alpha: float) -> Tensor:
    """Images [N, C, R, R] of the network itself."""
    with torch.no_grad():
        return network(inputs[0], inputs[1] if len(inputs) > 1 else None, resolution, alpha)  # type: ignore[no-any-return]


def largest_difference(
    network: Generator, resolution: int, alpha: float, exported: Callable[[Inputs], Tensor]
) -> float:
    """The largest difference between images of `exported` and of the network, over all BATCHES of random latents.

    Raises DifferenceError beyond TOLERANCE, or beyond ROUNDINGS where the network's own rounding is larger.
    """
    differences, allowed, exact = [], TOLERANCE, deepcopy(network).double()
    for count in BATCHES:
        inputs = example_inputs(network, count)
        ours, theirs = draw(network, inputs, resolution, alpha), exported(inputs)
        wide = draw(exact, tuple(tensor.double() for tensor in inputs), resolution, alpha)
        allowed = max(allowed, ROUNDINGS * float((ours - wide).abs().max()))
        if theirs.shape != ours.shape:
            raise DifferenceError(f"The export draws {tuple(theirs.shape)}, the network {tuple(ours.shape)}.")
        differences.append((theirs - ours).abs().max())
    largest = float(torch.stack(differences).max())  # NaN where there is one
    if not largest <= allowed:  # a NaN is refused, too
        raise DifferenceError(f"The export draws images that differ from the network's by {largest:.1e}.")
    return largest
