"""Taking part in a run of several ranks: from the rendezvous to the end."""

import sys
import time
from collections.abc import Callable

import torch

from pggan.core.errors import EXIT_LEFT, EXIT_USER_ERROR, UserError
from pggan.distributed.process_group import PeerLost, ProcessGroup, RankInfo, RemoteUserError

WAIT_SECONDS = 5  # for the agent to end this process: it knows better what has happened


def run_distributed(
    info: RankInfo, device: Callable[[], torch.device], timeout_seconds: float, run: Callable[[ProcessGroup], int]
) -> int:
    """The exit code of this rank: of `run` with its `device`, or that of an error on another rank.

    Raises UserError when the others are not found within `timeout_seconds`.
    """
    problem: UserError | None = None
    try:
        found = device()
    except UserError as error:  # on all ranks, most likely: only one reports it
        problem, found = error, torch.device("cpu")
    group = ProcessGroup.connect(info, found, timeout_seconds)
    try:
        with group.collective_errors():
            if problem is not None:
                raise problem
        code = run(group)
        group.shutdown()
        return code
    except RemoteUserError:
        return EXIT_USER_ERROR
    except PeerLost as error:
        time.sleep(WAIT_SECONDS)
        print(error, file=sys.stderr, flush=True)
        return EXIT_LEFT
