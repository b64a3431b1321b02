"""Taking part in a run of several processes, from meeting the others to parting from them."""

import signal
import sys
import time
from collections.abc import Callable

import torch

from pggan.distributed.world import EndedElsewhere, PeerLost, Place, World
from pggan.errors import EXIT_FAILED, EXIT_USER_ERROR

WAIT_SECONDS = 60  # for the launcher to end this process: it knows better what has happened


def take_part(place: Place, device: torch.device, run: Callable[[World], int]) -> int:
    """What `run` returns in this process, or the exit code for what went wrong in another one."""
    world = World.joined(place, device)
    try:
        code = run(world)
        world.leave()
        return code
    except EndedElsewhere:
        return EXIT_USER_ERROR
    except PeerLost as error:
        print(error, file=sys.stderr, flush=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(WAIT_SECONDS)
        return EXIT_FAILED
