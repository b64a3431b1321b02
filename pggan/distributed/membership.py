"""Taking part in a run of several processes: from meeting the others to parting from them, and with which images."""

import sys
import time
from collections.abc import Callable

import torch

from pggan.config import TrainConfig, WorkersConfig
from pggan.core.errors import EXIT_LEFT, EXIT_USER_ERROR, UserError
from pggan.distributed.process_group import EndedElsewhere, PeerLost, Place, World
from pggan.training.gradients.batch_partition import Division

WAIT_SECONDS = 5  # for the launcher to end this process: it knows better what has happened


def take_part(
    place: Place, device: Callable[[], torch.device], workers: WorkersConfig, run: Callable[[World], int]
) -> int:
    """What `run` returns in this process, which has the `device`, or the exit code for what went wrong in another one.

    Raises UserError when the others are not found in time.
    """
    problem: UserError | None = None
    try:
        found = device()
    except UserError as error:  # of all processes, most likely: only one tells
        problem, found = error, torch.device("cpu")
    world = World.joined(place, found, workers.join_seconds)
    try:
        with world.together():
            if problem is not None:
                raise problem
        code = run(world)
        world.leave()
        return code
    except EndedElsewhere:
        return EXIT_USER_ERROR
    except PeerLost as error:
        time.sleep(WAIT_SECONDS)
        print(error, file=sys.stderr, flush=True)
        return EXIT_LEFT


def division_of(config: TrainConfig, size: int, rank: int = 0) -> Division:
    """How batches are divided among `size` processes; raises UserError when a batch of the schedule can't be."""
    group, shards = config.model.stddev_group, config.workers.shards
    division = Division(rank, size, group, config.elastic, config.compute.micro_batch, shards)
    for phase in config.schedule.build().phases:
        division.require_enough("schedule.batch", phase.batch)
    return division
