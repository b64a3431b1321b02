"""Whether a schedule fits into memory, found out before it starts, and how it can be made to."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from pggan.config import OptimizerConfig
from pggan.core.architecture import SMALLEST_RESOLUTION, Architecture
from pggan.core.errors import UserError
from pggan.core.schedule import Phase, Schedule
from pggan.losses.base import Loss
from pggan.networks.numerics import Compute
from pggan.training.cost.fake_step import Imagined
from pggan.training.gradients.batch_partition import ALONE, Division

USABLE = 0.9  # share of the free memory; fragments and scratch space take the rest
SMALL = 2**29  # bytes that are not worth the seconds of finding out how many they are
BOUND = 200  # bytes per number of the feature maps, more than any step was seen to need
LIKELY = 0.5  # phases with less than this share of the largest one's activations need less memory

MicroBatches = Mapping[tuple[int, int], int]  # {(resolution, batch): images per pass}, where the batch is too large


def free_bytes(device: torch.device, processes: int = 1) -> int | None:
    """Memory that a new computation can have on `device`; None where the system doesn't tell.

    `processes` share the memory of one machine's CPUs.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 // processes for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None


def activations(architecture: Architecture, phase: Phase) -> int:
    """Numbers in the feature maps of a phase, roughly: what its memory grows with."""
    levels = [level for level in architecture.resolutions if level <= phase.resolution]
    return phase.batch * sum(architecture.width(level) * level**2 for level in levels)


def fit(
    architecture: Architecture,
    schedule: Schedule,
    loss: Loss,
    *,
    optimizer: OptimizerConfig,
    compute: Compute,
    device: torch.device,
    free: int | None,
    division: Division = ALONE,
    flat_tensors: int = 0,
    recorded: bool = False,
    every_phase: bool = False,
) -> tuple[str, MicroBatches]:
    """What steps need, in words, and the micro-batches of phases that need more than is free.

    `flat_tensors`: copies of all gradients that are kept besides; `recorded`: steps are recorded as CUDA graphs, each
    of which keeps its memory as long as its resolution is trained; `every_phase`: tell the need of each, not of the
    largest alone, which takes half a minute for the paper's networks.
    Raises UserError when even the smallest micro-batch of a phase needs more.
    """
    # A step that is not recorded yet, having another penalty due, needs memory besides those that are.
    usable = USABLE / 2 if recorded and loss.interval > 1 else USABLE
    phases = [replace(phase, batch=division.largest_share(phase.batch)) for phase in schedule.phases]
    wholes = dict(zip(phases, schedule.phases, strict=True))
    sizes = {phase: activations(architecture, phase) for phase in phases}
    bound = BOUND * max(sizes.values()) + BOUND * architecture.multiply_adds(SMALLEST_RESOLUTION) // 16
    if bound < SMALL and (free is None or bound < usable * free):
        return f"less than {SMALL // 2**20} MiB", {}
    imagined = Imagined(architecture, optimizer, device, half=compute.dtype is torch.float16)
    if free is not None:
        free -= flat_tensors * sum(
            weight.nbytes for player in (imagined.state.g, imagined.state.d) for weight in player.network.weights
        )
    found: dict[tuple[int, int], int] = {}
    needs: dict[int, int] = {}  # bytes by resolution
    for phase in sorted(phases, key=lambda phase: -sizes[phase]):
        if sizes[phase] < LIKELY * max(sizes.values()) and not found and not every_phase:
            break  # larger ones fit as they are
        group = min(architecture.stddev_group, phase.batch)
        fixed = division.pass_size(wholes[phase].batch) or compute.micro_batch
        size = min(fixed or phase.batch, phase.batch)
        need = imagined.peak_bytes(phase, loss, replace(compute, micro_batch=size))
        while free is not None and need > usable * free:
            if size <= group or fixed is not None:
                raise UserError(
                    f"A step at {phase.resolution}x{phase.resolution} needs {need / 2**30:.1f} GiB with {size} images "
                    f"per pass; {free / 2**30:.1f} GiB are free on {device}.",
                    "Take compute.recompute=true, a smaller compute.micro_batch, smaller model.fmap_max and "
                    "model.fmap_base, or a lower schedule.final_resolution.",
                )
            size = max(size // 2 // group, 1) * group
            found[phase.resolution, wholes[phase].batch] = size
            need = imagined.peak_bytes(phase, loss, replace(compute, micro_batch=size))
        needs[phase.resolution] = max(need, needs.get(phase.resolution, 0))
    where = max(needs, key=lambda resolution: needs[resolution])
    words = [f"{needs[where] / 2**30:.2f} GiB at most, at {where}x{where}"]
    if free is not None:
        words[0] += f" of {free / 2**30:.1f} GiB free"
    words += [f"{r}x{r} in passes of {size}" for (r, _), size in found.items()]
    if every_phase:
        words.append(", ".join(f"{r}x{r} {need / 2**30:.2f}" for r, need in sorted(needs.items())))
    return "; ".join(words), found
