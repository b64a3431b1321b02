"""What every phase of a schedule asks for, whatever it runs on: updates, operations, gradients, memory."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from pggan.config import OptimizerConfig
from pggan.core.architecture import Architecture
from pggan.core.schedule import Phase, Schedule
from pggan.losses.base import Loss
from pggan.networks.numerics import Compute
from pggan.training.cost.fake_step import Imagined
from pggan.training.cost.flops import Count, Counter, halfway
from pggan.training.gradients.batch_partition import ALONE, Division


@dataclass(frozen=True)
class PhaseCost:
    """One phase."""

    phase: Phase
    images: int
    updates: int
    count: Count  # of one update in which penalties are due
    flops: float  # of one update, mean over the interval of lazy penalties
    peak_bytes: int  # of a process, in the worse of the phases at this resolution, fading and stable


def phase_costs(
    architecture: Architecture,
    schedule: Schedule,
    loss: Loss,
    *,
    optimizer: OptimizerConfig,
    compute: Compute,
    device: torch.device,
    tell: Callable[[str], None],
    division: Division = ALONE,
) -> list[PhaseCost]:
    """The costs of all phases that `schedule` reaches; `tell` hears what is being looked at.

    Memory is that of one process of those among which `division` divides the batches.
    """
    counter = Counter(architecture, optimizer, loss)
    imagined = Imagined(architecture, optimizer, device, half=compute.dtype is torch.float16)
    peaks: dict[tuple[int, int], int] = {}
    costs = []
    for phase, updates in zip(schedule.phases, schedule.updates(), strict=True):
        if updates == 0:
            continue
        tell(f"Counting a step at {phase.name}")
        count = counter.count(halfway(phase))
        at = phase.resolution, phase.batch
        if at not in peaks:  # the fading phase comes first, and needs more
            part = replace(halfway(phase), batch=division.largest_share(phase.batch))
            passes = replace(compute, micro_batch=division.pass_size(phase.batch) or compute.micro_batch)
            peaks[at] = imagined.peak_bytes(part, loss, passes)
        images = min(phase.end, schedule.total) - phase.start
        costs.append(PhaseCost(phase, images, updates, count, count.flops.mean(loss.interval), peaks[at]))
    return costs
