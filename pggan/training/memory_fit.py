"""Whether the steps of a schedule fit into memory, found out before it starts, and micro-batches that do."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

import torch

from pggan.core.architecture import MIN_RESOLUTION, Architecture
from pggan.core.errors import UserError
from pggan.core.schedule import Phase
from pggan.optim.batch_partition import BatchPartition
from pggan.training.inputs import half_micro_batch
from pggan.training.step_cost import StepCostEstimator
from pggan.training.trainer_factory import TrainerFactory

USABLE = 0.9  # share of the free memory; fragments and scratch space take the rest
# The memory of a captured step in units of what an eager one needs: during a capture, the allocator can't give back
# what it has cached.  1.17 to 1.46, 1.33 in the median, for 23 kinds of steps from 16x16 to 1024x1024 (PyTorch 2.15).
CAPTURED = 1.4
NEGLIGIBLE_BYTES = 2**29  # bytes that are not worth the seconds of finding out how many they are
MAX_BYTES_PER_NUMBER = 200  # bytes per number of the feature maps, more than any step was seen to need
MIN_ACTIVATION_SHARE = 0.5  # phases with less than this share of the largest one's activations need less memory


class MemoryFit(NamedTuple):
    """The memory that steps need, in words, and the micro-batches of phases that need more than is free."""

    summary: str
    micro_batch_sizes: Mapping[tuple[int, int], int]  # {(resolution, batch): images}
    most_bytes: int = 0  # of the largest step; 0 where they are few and were not counted


def usable_share(*, capture: bool) -> float:
    """The share of the free memory that an eager step may need; `capture`: if it is to be captured, too."""
    return USABLE / CAPTURED if capture else USABLE


def activations(architecture: Architecture, phase: Phase) -> int:
    """Numbers in the feature maps of a phase, roughly: what its memory grows with."""
    levels = [level for level in architecture.resolutions if level <= phase.resolution]
    return phase.batch * sum(architecture.width(level) * level**2 for level in levels)


def fit_memory(
    architecture: Architecture,
    phases: Sequence[Phase],
    factory: TrainerFactory,
    *,
    device: torch.device,
    free: int | None,
    partition: BatchPartition,
    gradient_copies: int = 0,
    every_phase: bool = False,
) -> MemoryFit:
    """The memory that the steps of `phases` need, and micro-batches with which they take `free` bytes.

    Args: gradient_copies: copies of all gradients that are kept besides; every_phase: find out the need of each phase,
    which takes half a minute for the paper's networks.
    Raises UserError when even the smallest micro-batch of a phase needs more in an eager step.
    """
    usable = usable_share(capture=factory.capture)
    own = [(phase, replace(phase, batch=partition.largest_local_batch(phase.batch))) for phase in phases]
    sizes = [activations(architecture, local) for _, local in own]
    bound = MAX_BYTES_PER_NUMBER * max(sizes) + MAX_BYTES_PER_NUMBER * architecture.multiply_adds(MIN_RESOLUTION) // 16
    every_phase |= architecture.features is not None  # its maps are as large at every resolution
    if architecture.features is None and bound < NEGLIGIBLE_BYTES and (free is None or bound < usable * free):
        return MemoryFit(f"less than {NEGLIGIBLE_BYTES // 2**20} MiB for a step", {})
    estimator = StepCostEstimator(architecture, factory, device)
    available = inf if free is None else free - gradient_copies * estimator.weight_bytes
    found: dict[tuple[int, int], int] = {}
    needs: dict[int, int] = {}  # bytes by resolution
    for size_of_maps, (phase, local) in sorted(zip(sizes, own, strict=True), key=lambda pair: -pair[0]):
        if size_of_maps < MIN_ACTIVATION_SHARE * max(sizes) and not found and not every_phase:
            break  # larger ones fit as they are
        kind, group = (local.resolution, phase.batch), min(architecture.stddev_group, local.batch)
        fixed = partition.micro_batch_size(phase.batch) or factory.options.micro_batch_size
        size = min(found.get(kind, local.batch), fixed or local.batch)
        while (need := estimator.peak_bytes(local, size)) > usable * available:
            if size <= group or fixed is not None:
                if need <= USABLE * available:
                    break  # without CUDA graphs
                raise UserError(
                    f"A step at {local.resolution}x{local.resolution} needs {need / 2**30:.1f} GiB with "
                    f"micro-batches of {size} images; {available / 2**30:.1f} GiB are free on {device}.",
                    "Set compute.activation_checkpointing=true, a smaller compute.micro_batch_size, smaller "
                    "model.fmap_max and model.fmap_base, or a lower schedule.final_resolution.",
                )
            size = found[kind] = half_micro_batch(size, group)
        needs[local.resolution] = max(need, needs.get(local.resolution, 0))
    return MemoryFit(_summary(needs, found, available, every_phase=every_phase), found, max(needs.values()))


def _summary(needs: dict[int, int], sizes: dict[tuple[int, int], int], available: float, *, every_phase: bool) -> str:
    where = max(needs, key=lambda resolution: needs[resolution])
    words = [f"{needs[where] / 2**30:.2f} GiB at most, at {where}x{where}"]
    if available < inf:
        words[0] += f" of {available / 2**30:.1f} GiB free"
    words += [f"{r}x{r} in micro-batches of {size}" for (r, _), size in sizes.items()]
    if every_phase:
        words.append(", ".join(f"{r}x{r} {need / 2**30:.2f}" for r, need in sorted(needs.items())))
    return "; ".join(words)
