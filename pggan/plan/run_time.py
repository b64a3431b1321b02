"""How long a run takes: measured on the devices here, or assumed from a rate."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from pggan.config import PlanConfig
from pggan.core.architecture import Architecture
from pggan.data.format.pyramid import INDEX_FILE
from pggan.distributed.process_group import ProcessGroup
from pggan.networks.numerics import ComputeOptions
from pggan.plan.calibration import ASSUMED, EXTRAPOLATED, Calibration, Timing
from pggan.plan.overhead import Overhead, OverheadProbe
from pggan.plan.phases import PhaseCost
from pggan.plan.start_time import seconds_of_starting
from pggan.plan.updates import noise
from pggan.training.device_rates import measured_rates

NOTHING = Overhead(0.0, 0.0, 0.0, 0.0)
LEAST_IMAGES = 16  # of noise, to load from


@dataclass(frozen=True)
class RunTime:
    """How long a run takes, and how that is known."""

    timings: Sequence[Timing]
    overhead: Overhead
    devices: int  # that it runs on
    note: str


def measured_time(
    config: PlanConfig,
    architecture: Architecture,
    *,
    group: ProcessGroup,
    costs: Sequence[PhaseCost],
    log: Callable[[str], None],
) -> RunTime:
    """The time of every update, and of everything else that a run does, measured by all its ranks."""
    with TemporaryDirectory(prefix="pggan-plan-") as name:
        folder, start, overhead = Path(name), 0.0, NOTHING
        pyramid = noise(
            folder / "noise",
            architecture,
            max(LEAST_IMAGES, config.model.stddev_group * group.local_world_size),
        )
        with group.collective_errors():
            if group.is_main:
                log("Measuring the start of a run")
                prepared = config.data.path is not None and (Path(config.data.path) / INDEX_FILE).is_file()
                data = Path(str(config.data.path)) if prepared else pyramid.path
                start = seconds_of_starting(config, data, folder / "start", group)
        calibration = Calibration(config, architecture, costs, group, pyramid=pyramid, log=log_to_stderr)
        comparing = calibration.seconds_of_comparing()
        timings = calibration.timings(costs, log)
        trainer = calibration.run.trainer
        extra_state = trainer.reducer.extra_state()
        if group.is_main:
            log("Measuring grids, ticks and a checkpoint")
            probe = OverheadProbe(config, trainer.state, extra_state, group.device, folder / "run")
            overhead = probe.overhead(costs, timings, start=start, comparing=comparing)
        group.barrier()
    guessed = [cost.phase.name for cost, time in zip(costs, timings, strict=True) if time.source == EXTRAPOLATED]
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
            f"Time: as if updates ran at the {rate / 1e12:.3g} TFLOP/s of a large matrix product here. They don't: "
            "that is crude, several times too short for narrow networks and low resolutions; calibrate=true measures."
        )
    seconds = [cost.flops / rate for cost in costs]
    timings = [Timing(each, each, 0.0, ASSUMED) for each in seconds]
    return RunTime(timings, NOTHING, 1, f"{note} Without the start, grids, ticks and checkpoints.")


def log_to_stderr(text: str) -> None:
    """Report a line that is no part of the plan."""
    print(text, file=sys.stderr)
