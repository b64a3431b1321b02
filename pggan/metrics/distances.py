"""Distances between feature vectors, a block of rows at a time, in float64.

They are calculated from products, ten times as fast as from differences: between equal rows of length L, up to about
1e-7 L comes out instead of 0, because the root doubles the share of digits that float64 rounds away.

Sets may hold an image more than once.  Its features differ by rounding then, as sums depend on the other images of a
batch; nearer than `rounding_of` the features, images count as the same one.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

ROWS = 1024  # whose distances to all others are held at once
# Of features of the same image, by their mean length: in float32, each of up to 2^6 layers rounds sums of up to 2^12
# products to 2^-24 each, by chance up or down, which is 2^(3 + 6 - 24) in all; and as much again.
SAME_IMAGE = 2.0**-14


def distance_blocks(a: Tensor, b: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Euclidean distances of rows [start : start + ROWS] of `a` [N, F] to all of `b` [M, F], with that start."""
    for start in range(0, len(a), ROWS):
        rows = a[start : start + ROWS].double()
        yield start, torch.cdist(rows, b.double(), compute_mode="use_mm_for_euclid_dist")


def nearest(a: Tensor, b: Tensor, count: int = 1, *, same: bool = False) -> tuple[Tensor, Tensor]:
    """Distances float64 and row numbers int64 [N, count] of the nearest of `b` [M, F] to each of `a` [N, F].

    Args: same: a begins with the rows of b, or b with those of a, and a row is not its own neighbour.
    """
    found = []
    for start, block in distance_blocks(a, b):
        if same:
            block.diagonal(start).fill_(torch.inf)
        found.append(block.topk(count, largest=False))
    return torch.cat([values for values, _ in found]), torch.cat([rows for _, rows in found])


def rounding_of(features: Tensor) -> float:
    """The distance up to which two of `features` [N, F] are those of the same image."""
    return SAME_IMAGE * float(torch.linalg.vector_norm(features, dim=1).mean())


def oriented_blocks(orientations: Sequence[Tensor], others: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Distances of images to all of `others` [M, F] as `distance_blocks`, and whether the mirrored image is nearer.

    Args: orientations: features [N, F] of the images as they are, and mirrored where that is the same image.
    """
    for (start, closest), *mirrored in zip(*(distance_blocks(one, others) for one in orientations), strict=True):
        are_mirrored = torch.zeros_like(closest, dtype=torch.bool)
        for _, block in mirrored:
            torch.lt(block, closest, out=are_mirrored)
            torch.minimum(closest, block, out=closest)
        yield start, closest, are_mirrored


def nearest_different(others: Tensor, *orientations: Tensor) -> tuple[Tensor, int]:
    """Distances float64 [N] of the first of `others` [M, F] to the nearest different one, on the host.

    The number says how many of the N the others hold more than once.  The distance is 0 where all others are the same
    image.

    Args: orientations: as of `oriented_blocks`.
    """
    found, repeated, rounding = [], 0, rounding_of(others)
    for start, block, _ in oriented_blocks(orientations, others):
        block.diagonal(start).fill_(torch.inf)
        are_same = block <= rounding
        repeated += int(are_same.any(1).sum())
        found.append(block.masked_fill_(are_same, torch.inf).amin(1))
    distances = torch.cat(found).cpu()
    return distances.masked_fill_(distances.isinf(), 0), repeated
