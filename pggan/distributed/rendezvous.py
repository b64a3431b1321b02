"""Where the machines of a run meet: the c10d store of torchrun, kept by one of them."""

import socket
import time
import uuid

from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from pggan.config import WorkersConfig
from pggan.core.errors import UserError
from pggan.distributed.connect import listens, reason, who_answers, within

RETRY_SECONDS = 1.0
STRANGER_SECONDS = 30.0  # for the answer of a port that takes connections
MEETING_ERRORS = (RendezvousConnectionError, RendezvousTimeoutError, RendezvousClosedError)
STRANGER = "Ping failed"  # what torch says when something else answers
SLOW = "has timed out"  # … when nobody does, or nothing that it understands


def meeting_point(workers: WorkersConfig) -> RendezvousHandler:
    """Where the machines of this run meet, reached.

    Raises UserError when that takes longer than `workers.join_seconds`, or something else answers there.
    """
    run_id = "pggan" if workers.nodes > 1 else uuid.uuid4().hex
    end = time.monotonic() + workers.join_seconds
    problem: Exception | None = None
    while True:
        left = end - time.monotonic()
        try:
            # A store that is there answers at once; something else that listens there may never.
            answered = workers.rendezvous is not None and listens(workers.rendezvous)
            return within(min(left, STRANGER_SECONDS) if answered else left, lambda: _reached(workers, run_id))
        except TimeoutError as error:
            raise not_met(workers, problem or error) from error
        except (RendezvousConnectionError, OSError) as error:
            if STRANGER in str(error.__cause__) or left < RETRY_SECONDS:
                raise not_met(workers, error) from error
            problem = error
            time.sleep(RETRY_SECONDS)  # the machine there may not have come so far


def _reached(workers: WorkersConfig, run_id: str) -> RendezvousHandler:
    endpoint = workers.rendezvous or "localhost:0"
    socket.getaddrinfo(endpoint.rpartition(":")[0], None)  # torch tries for long without saying why

    def reached(**roles: bool) -> RendezvousHandler:
        parameters = RendezvousParameters(
            backend="c10d",
            endpoint=endpoint,
            run_id=run_id,
            min_nodes=workers.nodes,
            max_nodes=workers.nodes,
            local_addr=workers.address,
            join_timeout=workers.join_seconds,
            read_timeout=min(workers.join_seconds, 60),
            **roles,
        )
        return get_rendezvous_handler(parameters)

    if workers.address is None or workers.rendezvous is None:
        return reached()  # torch looks at the names of this machine
    if not _addresses(endpoint.rpartition(":")[0]) & _addresses(workers.address):
        return reached(is_host=False)
    try:
        return reached(is_host=True)
    except RendezvousConnectionError:  # another one on this machine may have come first
        return reached(is_host=False)


def _addresses(host: str) -> set[str]:
    try:
        return {host, *(str(found[4][0]) for found in socket.getaddrinfo(host, None))}
    except OSError:
        return {host}


def not_met(workers: WorkersConfig, error: Exception) -> UserError:
    """What to tell people about an `error` from before all machines have met."""
    return UserError(
        f"The machines did not meet at workers.rendezvous={workers.rendezvous}: {_why(error, workers)}.",
        f"Start the same command on all {workers.nodes} machines, with the address of one of them that all can reach, "
        "and a port that is free there; workers.join_seconds is how long they wait for each other.",
    )


def _why(error: Exception, workers: WorkersConfig) -> str:
    if isinstance(error, RendezvousTimeoutError):
        return f"not all {workers.nodes} came within {workers.join_seconds} s"
    if isinstance(error, RendezvousClosedError):
        return "a run that met there has just ended"
    cause = error.__cause__ or error
    if isinstance(error, TimeoutError) or STRANGER in str(cause) or SLOW in str(cause):
        return who_answers(str(workers.rendezvous))
    return reason(cause)
