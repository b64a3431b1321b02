"""The cost of every phase of a schedule, whatever it runs on: steps, operations, gradients, memory."""

from dataclasses import dataclass, replace

from pggan.config import PlanConfig
from pggan.core.architecture import Architecture
from pggan.core.formatting import Log
from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.batch_partition import BatchPartition
from pggan.training.inputs import half_micro_batch
from pggan.training.step_cost import Count, StepCostEstimator, StepKernels
from pggan.training.trainer_factory import TrainerFactory

USABLE = 0.9  # share of a card's memory; fragments and scratch space take the rest
CAPTURED = 1.4  # memory of a captured step in units of what an eager one needs, the median of 23 kinds of steps


def usable_share(*, capture: bool) -> float:
    """The share of the free memory that an eager step may need; `capture`: if it is to be captured, too."""
    return USABLE / CAPTURED if capture else USABLE


@dataclass(frozen=True)
class PhaseCost:
    """The cost of one phase."""

    phase: Phase
    images: int
    steps: int
    count: Count  # of one step in which penalties are due
    flops: float  # of one step, mean over the interval of lazy penalties
    peak_bytes: int  # of a rank, in the worse of the phases at this resolution, fading and stable
    micro_batch_size: int | None = None  # images per pass of a rank, where the whole batch is not one
    kernels: StepKernels | None = None  # of one step, where it is predicted for a card


def halfway(phase: Phase) -> Phase:
    """`phase` with alpha in the middle if it fades: at 0 or 1 there would be nothing to blend."""
    return replace(phase, alpha=0.5) if phase.fading else phase


def phase_costs(
    config: PlanConfig,
    architecture: Architecture,
    factory: TrainerFactory,
    group: ProcessGroup,
    log: Log,
    *,
    memory: int | None = None,
) -> list[PhaseCost]:
    """The costs of all phases that the schedule reaches.

    Args: log: told what is being counted; memory: bytes of the card that the run is predicted for, whose group is on
    the device "meta".
    """
    schedule, interval = config.schedule.build(), factory.loss.reg_interval
    partition = BatchPartition.of(config, (phase.batch for phase in schedule.phases), group.world_size, group.rank)
    estimator = StepCostEstimator(architecture, factory, group.device)
    peaks: dict[tuple[int, int], int] = {}
    costs = []
    for phase, steps in zip(schedule.phases, schedule.steps(), strict=True):
        if steps == 0:
            continue
        log(f"Counting a step at {phase.name}")
        count = estimator.count(halfway(phase))
        at = phase.resolution, phase.batch
        local = replace(halfway(phase), batch=partition.largest_local_batch(phase.batch))
        size, kernels = partition.micro_batch_size(phase.batch), None
        if memory is not None:
            size, kernels = fitting_kernels(estimator, local, usable_share(capture=factory.capture) * memory, size)
            peaks.setdefault(at, kernels.peak_bytes)
        elif at not in peaks:  # the fading phase comes first, and needs more
            peaks[at] = estimator.peak_bytes(local, size)
        images, flops = min(phase.end, schedule.total) - phase.start, count.flops.mean(interval)
        costs.append(PhaseCost(phase, images, steps, count, flops, peaks[at], size, kernels))
    return costs


def fitting_kernels(
    estimator: StepCostEstimator, phase: Phase, usable: float, configured_size: int | None
) -> tuple[int | None, StepKernels]:
    """Images per pass with which a step needs at most `usable` bytes, None for the whole batch, and its kernels.

    A pass of a single group of minibatch stddev is the smallest, whether it fits or not.

    Args: configured_size: images per pass where they are given, and stay as they are.
    """
    kernels, size = estimator.kernels(phase, configured_size), configured_size
    group = min(estimator.state.g_ema.architecture.stddev_group, phase.batch)
    while configured_size is None and kernels.peak_bytes > usable and (whole := size or phase.batch) > group:
        size = half_micro_batch(whole, group)
        kernels = estimator.kernels(phase, size)
    return size, kernels
