"""Weights side by side in memory, so that one operation updates all of them.  P numbers of a network, and padding."""

from collections.abc import Sequence
from itertools import accumulate
from math import ceil

import torch
from torch import Tensor, nn

ALIGNMENT = 16  # numbers; vector instructions and tensor cores are slower where weights begin elsewhere


def flat_offsets(weights: Sequence[nn.Parameter]) -> list[int]:
    """Where each weight begins in the memory that they share, and where that ends."""
    return [0, *accumulate(ceil(weight.numel() / ALIGNMENT) * ALIGNMENT for weight in weights)]


def flatten_storage(weights: Sequence[nn.Parameter]) -> Tensor:
    """Move `weights`, each with its strides, into one tensor [P], which is returned."""
    places = flat_offsets(weights)
    memory = torch.zeros(places[-1], dtype=weights[0].dtype, device=weights[0].device)
    for weight, start in zip(weights, places, strict=False):
        weight.data = memory.as_strided(weight.shape, weight.stride(), start).copy_(weight.data)
    return memory


def flat_storage(weights: Sequence[nn.Parameter]) -> Tensor | None:
    """The tensor [P] into which `flatten_storage` has moved `weights`; None if any lies somewhere else now."""
    storage, places = weights[0].untyped_storage(), flat_offsets(weights)
    for weight, start in zip(weights, places, strict=False):
        if weight.untyped_storage()._cdata != storage._cdata or weight.storage_offset() != start:
            return None
    return weights[0].detach().as_strided((places[-1],), (1,), 0)
