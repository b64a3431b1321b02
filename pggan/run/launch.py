"""`pggan train`: here, as one of several processes, or as the parent of several."""

import os
from dataclasses import replace
from functools import partial

from pggan.config import TrainConfig
from pggan.core.errors import UserError
from pggan.distributed.devices import choose_device, count_devices, device_of, threads_of_each
from pggan.distributed.membership import division_of, take_part
from pggan.distributed.process_group import Place, World, launched
from pggan.run.run import run as run_in
from pggan.run.run import teller
from pggan.run.run_dir import choose_run_dir, plain


def run(config: TrainConfig) -> int:
    """Train to the end of the schedule, or go on with it; returns the exit code."""
    place = launched()
    if place is not None:
        return run_as_one_of_several(config, place)
    refuse_copies(config)
    kind, count = count_devices(config.devices)
    size = count * config.workers.nodes
    if size == 1:
        return run_in(config, World.alone(choose_device(kind)))
    division_of(config, size)
    return run_several(config, kind, count)


def refuse_copies(config: TrainConfig) -> None:
    """Raise UserError when srun has started this command several times, which do not know of each other."""
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    if tasks > 1 and tasks != config.workers.nodes:
        raise UserError(
            f"srun has started this command {tasks} times, and each would train a run of its own.",
            "Start it once per machine (--ntasks-per-node=1), with workers.nodes= and workers.rendezvous=, as "
            "scripts/slurm/train.sbatch does. For separate runs: env -u SLURM_STEP_NUM_TASKS pggan train …",
        )


def run_as_one_of_several(config: TrainConfig, place: Place) -> int:
    """Join the others that a launcher has started."""
    if config.run_dir is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0:
        raise UserError("Processes that are started again need to know where they were.", "Add run_dir=DIR.")
    return take_part(place, partial(device_of, place, config.devices), config.workers, partial(run_in, config))


def run_several(config: TrainConfig, kind: str, count: int) -> int:
    """Start `count` processes on this machine; they get the configuration as it was composed here, once."""
    from pggan.distributed.agent import run_workers  # slow to import

    # Named here, so that processes started again after a loss come back to it.
    run_dir = choose_run_dir(config)
    config = replace(config, run_dir=str(run_dir), devices=f"cpu:{count}" if kind == "cpu" else str(count))
    threads = threads_of_each(count, elastic=config.elastic)
    return run_workers("train", plain(config), count, config.workers, threads=threads, say=teller(run_dir))
