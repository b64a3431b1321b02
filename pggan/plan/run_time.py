"""How long a run takes: measured on the devices here, or assumed from a rate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from pggan.config import PlanConfig
from pggan.core.architecture import Architecture
from pggan.distributed.process_group import ProcessGroup
from pggan.networks.numerics import ComputeOptions
from pggan.plan.calibration import ASSUMED, EXTRAPOLATED, Calibration, Timing, write_noise
from pggan.plan.overhead import measured_overhead, start_seconds
from pggan.plan.phases import PhaseCost
from pggan.training.device_rates import measured_rates

LEAST_IMAGES = 16  # of noise, to load from


@dataclass(frozen=True)
class RunTime:
    """How long a run takes, and how that is known."""

    timings: Sequence[Timing]
    overhead: dict[str, float]  # seconds of everything else in the whole run, by kind
    devices: int  # that it runs on
    note: str


def measured_time(
    config: PlanConfig,
    architecture: Architecture,
    costs: Sequence[PhaseCost],
    group: ProcessGroup,
    *,
    data: Path | None,
    log: Callable[[str], None],
) -> RunTime:
    """The time of every update, and of everything else that a run does, measured by all its ranks.

    Args: data: the prepared images of the run, if there are any; log: is told what is being measured.
    """
    with TemporaryDirectory(prefix="pggan-plan-") as name:
        noise, start = Path(name, "noise"), 0.0
        write_noise(noise, architecture, max(LEAST_IMAGES, config.model.stddev_group * group.local_world_size))
        with group.collective_errors():
            if group.is_main:
                log("Measuring the start of a run")
                start = start_seconds(config, data or noise, Path(name, "start"), group)
        calibration = Calibration(config, architecture, costs, group, noise)
        timings = calibration.timings(log)
        log("Measuring grids, ticks and a checkpoint")
        overhead = {"start": start, **measured_overhead(config, calibration.run, Path(name, "run"), costs, timings)}
        group.barrier()
    guessed = [cost.phase.name for cost, timing in zip(costs, timings, strict=True) if timing.source == EXTRAPOLATED]
    ranks = group.world_size
    together = f" by {ranks} ranks, which add up their gradients" if ranks > 1 else ""
    note = f"Time: real updates of every phase{together}, plus the start of a run, grids, ticks and checkpoints."
    if guessed:
        note += f" Extrapolated by operations from the phase before: {', '.join(guessed)}."
    return RunTime(timings, overhead, ranks, note)


def assumed_time(
    config: PlanConfig, options: ComputeOptions, device: torch.device, costs: Sequence[PhaseCost]
) -> RunTime:
    """The time of every update on one device, from a rate."""
    if config.tflops is not None:
        rate, note = config.tflops * 1e12, f"Time: from tflops={config.tflops:g}, at every resolution."
    else:
        rate = measured_rates(device, config.precision, options.dtype or torch.float32).multiplying
        note = (
            f"Time: as if updates ran at the {rate / 1e12:.3g} TFLOP/s of a large matrix product here. They do not: "
            "this is several times too short for narrow networks and low resolutions; calibrate=true measures."
        )
    timings = [Timing(cost.flops / rate, cost.flops / rate, 0.0, ASSUMED) for cost in costs]
    nothing = dict.fromkeys(("start", "grids", "ticks", "checkpoints"), 0.0)
    return RunTime(timings, nothing, 1, f"{note} Without the start, grids, ticks and checkpoints.")
