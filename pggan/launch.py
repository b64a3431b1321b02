"""`pggan train`: here, as one of several processes, or as the parent of several."""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from omegaconf import OmegaConf

from pggan.config import TrainConfig
from pggan.device import choose_device, count_devices, device_of
from pggan.distributed.world import EndedElsewhere, PeerLost, Place, World, launched
from pggan.errors import EXIT_FAILED, EXIT_USER_ERROR, UserError
from pggan.run import division_of, teller
from pggan.run import run as run_in
from pggan.run_dir import choose_run_dir, plain

CONFIG_VARIABLE = "PGGAN_CONFIG"  # the configuration, as YAML, from parent to worker
WAIT_SECONDS = 60  # for the launcher to end this process: it knows better what has happened


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
    problem: UserError | None = None
    try:
        device = device_of(place, config.devices)
    except UserError as error:  # of all processes, most likely: only one tells
        problem, device = error, torch.device("cpu")
    world = World.joined(place, device, config.workers.join_seconds)
    try:
        with world.together():
            if problem is not None:
                raise problem
        code = run_in(config, world)
        world.leave()
        return code
    except EndedElsewhere:
        return EXIT_USER_ERROR
    except PeerLost as error:
        print(error, file=sys.stderr, flush=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(WAIT_SECONDS)
        return EXIT_FAILED


def run_several(config: TrainConfig, kind: str, count: int) -> int:
    """Start `count` processes on this machine; they get the configuration as it was composed here, once."""
    from pggan.distributed.agent import run_workers  # slow to import

    # Named here, so that processes started again after a loss come back to it.
    devices = f"cpu:{count}" if kind == "cpu" else str(count)
    config = replace(config, run_dir=str(choose_run_dir(config)), devices=devices)
    os.environ[CONFIG_VARIABLE] = OmegaConf.to_yaml(OmegaConf.create(plain(config)))
    os.environ.setdefault(
        "OMP_NUM_THREADS", str(1 if config.elastic else max(1, len(os.sched_getaffinity(0)) // count))
    )
    if config.workers.nodes == 1 and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return run_workers(
        [sys.executable, "-m", "pggan.distributed.worker"], count, config.workers, teller(Path(str(config.run_dir)))
    )
