"""How long the updates of a run take on the devices here: real ones, of real images' size, as training makes them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from torch import Tensor

from pggan.config import PlanConfig
from pggan.core.architecture import Architecture
from pggan.core.devices import free_memory
from pggan.core.errors import UserError
from pggan.core.schedule import Phase
from pggan.data.format.pyramid import ImagePyramid
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.batch_partition import BatchPartition
from pggan.plan.phases import PhaseCost, halfway
from pggan.plan.updates import TimedUpdates
from pggan.training.memory_fit import USABLE

MEASURED, EXTRAPOLATED, ASSUMED = "measured", "extrapolated", "assumed"
ROUNDS = 3  # of all phases in turn: what else the machine does for a while does not fall on one of them
LEAST_SECONDS = 1.5  # that steps of one kind are timed in all rounds, however many that takes


@dataclass(frozen=True)
class Timing:
    """Of the updates of one phase."""

    seconds: float  # of an update of the run, mean over the interval of lazy penalties
    lone_seconds: float  # of one that a single device would make, with nothing to exchange
    fixed_seconds: float  # of that, however small the batch
    source: str  # MEASURED, EXTRAPOLATED from the last one that was, or ASSUMED from a rate


@dataclass(frozen=True)
class Probe:
    """Updates of one kind, timed in every round."""

    updates: TimedUpdates
    phase: Phase
    rounds: list[float] = field(default_factory=list)  # seconds of an update

    @property
    def seconds(self) -> float:
        """Of an update."""
        return median(self.rounds)


@dataclass(frozen=True)
class Probes:
    """What is timed of one phase."""

    run: Probe  # the updates of the run
    lone: Probe  # one rank's part of the batch, with nothing to reduce; in a run of one rank, the same
    small: (
        Probe | None
    )  # a stddev_group of minibatch stddev alone; None where the part is no larger, or another phase tells

    def all(self) -> list[Probe]:
        """Each one once."""
        found = [self.run] if self.lone is self.run else [self.run, self.lone]
        return [*found, self.small] if self.small is not None else found

    def fixed_seconds(self) -> float:
        """Of an update on one device, however small its batch: the line through two batch sizes, at 0 images."""
        if self.small is None:
            return 0.0  # it can't be divided any further
        stddev_group = self.small.phase.batch
        per_image = (self.lone.seconds - self.small.seconds) / (self.lone.phase.batch - stddev_group)
        return max(self.small.seconds - per_image * stddev_group, 0.0)

    def timing(self, fixed_seconds: float) -> Timing:
        """What follows from all rounds; of the whole batch on one device, a part of it and `fixed_seconds` tell."""
        fixed = min(fixed_seconds, self.lone.seconds)
        lone = fixed + (self.lone.seconds - fixed) * self.run.phase.batch / self.lone.phase.batch
        return Timing(self.run.seconds, lone, fixed, MEASURED)


class Calibration:
    """Trainers on all ranks of a run, which train on noise in order to see how long that takes."""

    def __init__(
        self,
        config: PlanConfig,
        architecture: Architecture,
        costs: Sequence[PhaseCost],
        group: ProcessGroup,
        *,
        pyramid: ImagePyramid,
        log: Callable[[str], None],
    ) -> None:
        """Args: pyramid: images to train on; log: is told what does not work here."""
        self.config, self.group = config, group
        self.stddev_group = config.model.stddev_group
        phases = [cost.phase for cost in costs]
        batches = (phase.batch for phase in phases)
        self.partition = BatchPartition.of(config, batches, group.world_size, group.rank)
        self.run = TimedUpdates(config, architecture, phases, group, pyramid=pyramid, log=log)
        self.lone = self.run
        if group.world_size > 1 or config.elastic:
            alone = replace(config, elastic=False, gradients={"name": "fp32"})
            single = ProcessGroup.single_process(group.device)
            self.lone = TimedUpdates(alone, architecture, phases, single, pyramid=pyramid, log=log)

    def timings(self, costs: Sequence[PhaseCost], log: Callable[[str], None]) -> list[Timing]:
        """One per phase; from the first that does not fit or would take too long on, they follow from the last rate.

        Raises UserError if not even the first one fits.
        """
        deadline = time.monotonic() + self.config.limit_seconds
        found: list[Probes] = []
        for number, cost in enumerate(costs):
            if not self._goes_on(cost, costs[number - 1] if number else None, found, deadline):
                break
            found.append(self._probes(halfway(cost.phase), found))
            self._take(found[-1], 1, log)
        for number in range(2, ROUNDS + 1):
            for probes in found:
                need = 2 * sum(probe.seconds * (probe.updates.warmup + 1) for probe in probes.all())
                if self.group.broadcast_object(time.monotonic() + need < deadline):
                    self._take(probes, number, log)
        fixed = {probes.run.phase.resolution: probes.fixed_seconds() for probes in reversed(found)}
        timings = [probes.timing(fixed[probes.run.phase.resolution]) for probes in found]
        last, flops = timings[-1], costs[len(found) - 1].flops
        for cost in costs[len(found) :]:
            scale = cost.flops / flops
            lone = last.lone_seconds * scale
            timings.append(Timing(last.seconds * scale, lone, min(last.fixed_seconds, lone), EXTRAPOLATED))
        return timings

    def seconds_of_comparing(self) -> float:
        """How long the ranks take to compare their weights, as at every tick; before any `timings`."""
        state = self.run.trainer.state
        weights: dict[str, list[Tensor]] = {"G": list(state.g.network.weights), "D": list(state.d.network.weights)}
        self.group.barrier()
        start = time.perf_counter()
        self.group.require_equal_weights(weights)
        return time.perf_counter() - start

    def _goes_on(self, cost: PhaseCost, before: PhaseCost | None, found: Sequence[Probes], deadline: float) -> bool:
        """Whether the phase of `cost` can be measured, in time; raises UserError if it is the first and can't."""
        free = self.group.all_reduce_min(free_memory(self.group.device, self.group.local_world_size))
        fits = free is None or cost.peak_bytes <= USABLE * free
        if before is None:
            with self.group.collective_errors():
                if not fits and self.group.is_main:
                    phase = cost.phase
                    raise UserError(
                        f"A step at {phase.name} with {phase.batch} images does not fit into the memory that is free.",
                        "Leave out calibrate=true, or lower schedule.batch.",
                    )
            return True
        probe = found[-1].run
        need = 2 * (probe.updates.warmup + 1) * probe.seconds * cost.flops / before.flops
        return bool(self.group.broadcast_object(fits and time.monotonic() + need < deadline))

    def _probes(self, phase: Phase, found: Sequence[Probes]) -> Probes:
        run = Probe(self.run, phase)
        part = self.partition.largest_part(phase.batch)
        lone = run if self.run is self.lone else Probe(self.lone, replace(phase, batch=part))
        stddev_group = min(self.stddev_group, part)
        tells = stddev_group < part and phase.resolution not in [probes.run.phase.resolution for probes in found]
        return Probes(run, lone, Probe(self.lone, replace(phase, batch=stddev_group)) if tells else None)

    def _take(self, probes: Probes, round_number: int, log: Callable[[str], None]) -> None:
        phase = probes.run.phase
        log(f"Measuring steps at {phase.name}, batch {phase.batch} ({round_number} of {ROUNDS} times)")
        steps = -(-self.config.steps // ROUNDS)
        for probe in probes.all():
            probe.rounds.append(probe.updates.seconds(probe.phase, steps, LEAST_SECONDS / ROUNDS))
