"""What every phase of a schedule costs, whatever it runs on: updates, operations, gradients, memory."""

from dataclasses import dataclass, replace

import torch

from pggan.config import PlanConfig
from pggan.core.architecture import Architecture
from pggan.core.schedule import Phase
from pggan.core.tables import Log
from pggan.distributed.process_group import ProcessGroup
from pggan.losses import build_loss
from pggan.losses.base import Loss
from pggan.networks.numerics import ComputeOptions
from pggan.optim.batch_partition import BatchPartition
from pggan.training.fake_step import Count, FakeStep, StepKernels
from pggan.training.memory_fit import USABLE


@dataclass(frozen=True)
class PhaseCost:
    """The cost of one phase."""

    phase: Phase
    images: int
    updates: int
    count: Count  # of one update in which penalties are due
    flops: float  # of one update, mean over the interval of lazy penalties
    peak_bytes: int  # of a rank, in the worse of the phases at this resolution, fading and stable
    micro_batch_size: int | None = None  # images per pass of a rank, where the whole batch is not one
    kernels: StepKernels | None = None  # of one update, where it is predicted for a card


def halfway(phase: Phase) -> Phase:
    """`phase` with alpha in the middle if it fades: at 0 or 1 there would be nothing to blend."""
    return replace(phase, alpha=0.5) if phase.fading else phase


def phase_costs(
    config: PlanConfig,
    architecture: Architecture,
    options: ComputeOptions,
    group: ProcessGroup,
    log: Log,
    *,
    memory: int | None = None,
) -> list[PhaseCost]:
    """The costs of all phases that the schedule reaches.

    Args: log: told what is being counted; memory: bytes of the card that the run is predicted for, whose group is on
    the device "meta".
    """
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
        part = replace(halfway(phase), batch=partition.largest_part(phase.batch))
        size = partition.micro_batch_size(phase.batch) or options.micro_batch_size
        how, kernels = replace(options, micro_batch_size=size), None
        if memory is not None:
            how, kernels = fitting_kernels(fake, part, loss, how, memory)
            peaks.setdefault(at, kernels.peak_bytes)
        elif at not in peaks:  # the fading phase comes first, and needs more
            peaks[at] = fake.peak_bytes(part, loss, how)
        images, flops = min(phase.end, schedule.total) - phase.start, count.flops.mean(loss.reg_interval)
        costs.append(PhaseCost(phase, images, updates, count, flops, peaks[at], how.micro_batch_size, kernels))
    return costs


def fitting_kernels(
    fake: FakeStep, phase: Phase, loss: Loss, options: ComputeOptions, memory: int
) -> tuple[ComputeOptions, StepKernels]:
    """The kernels of a step in passes as large as `memory` bytes allow, and the options that say so.

    A pass of a single group of minibatch stddev is the smallest, whether it fits or not.
    """
    kernels, group = fake.kernels(phase, loss, options), min(fake.state.g_ema.architecture.stddev_group, phase.batch)
    while kernels.peak_bytes > USABLE * memory and (size := options.micro_batch_size or phase.batch) > group:
        options = replace(options, micro_batch_size=max(size // 2 // group, 1) * group)
        kernels = fake.kernels(phase, loss, options)
    return options, kernels
