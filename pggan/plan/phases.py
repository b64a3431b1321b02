"""What every phase of a schedule costs, whatever it runs on: updates, operations, gradients, memory."""

from dataclasses import dataclass, replace

import torch

from pggan.config import PlanConfig
from pggan.core.architecture import Architecture
from pggan.core.schedule import Phase
from pggan.core.tables import Log
from pggan.distributed.process_group import ProcessGroup
from pggan.losses import build_loss
from pggan.networks.numerics import ComputeOptions
from pggan.optim.batch_partition import BatchPartition
from pggan.training.fake_step import Count, FakeStep


@dataclass(frozen=True)
class PhaseCost:
    """The cost of one phase."""

    phase: Phase
    images: int
    updates: int
    count: Count  # of one update in which penalties are due
    flops: float  # of one update, mean over the interval of lazy penalties
    peak_bytes: int  # of a rank, in the worse of the phases at this resolution, fading and stable


def halfway(phase: Phase) -> Phase:
    """`phase` with alpha in the middle if it fades: at 0 or 1 there would be nothing to blend."""
    return replace(phase, alpha=0.5) if phase.fading else phase


def phase_costs(
    config: PlanConfig, architecture: Architecture, options: ComputeOptions, group: ProcessGroup, log: Log
) -> list[PhaseCost]:
    """The costs of all phases that the schedule reaches; `log` is told what is being counted."""
    schedule, loss = config.schedule.build(), build_loss(config.loss)
    partition = BatchPartition.of(config, (phase.batch for phase in schedule.phases), group.world_size, group.rank)
    fake = FakeStep(architecture, config.optimizer, group.device, half=options.dtype is torch.float16)
    peaks: dict[tuple[int, int], int] = {}
    costs = []
    for phase, updates in zip(schedule.phases, schedule.updates(), strict=True):
        if updates == 0:
            continue
        log(f"Counting a step at {phase.name}")
        count = fake.count(halfway(phase), loss)
        at = phase.resolution, phase.batch
        if at not in peaks:  # the fading phase comes first, and needs more
            part = replace(halfway(phase), batch=partition.largest_part(phase.batch))
            size = partition.micro_batch_size(phase.batch) or options.micro_batch_size
            peaks[at] = fake.peak_bytes(part, loss, replace(options, micro_batch_size=size))
        images = min(phase.end, schedule.total) - phase.start
        costs.append(PhaseCost(phase, images, updates, count, count.flops.mean(loss.reg_interval), peaks[at]))
    return costs
