"""The rendezvous of the machines of a run: the c10d store of torchrun, kept by one of them, the rendezvous host."""

import socket
import time
import uuid
from contextlib import suppress
from functools import partial

from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from pggan.config import DistributedConfig
from pggan.core.errors import UserError
from pggan.distributed.connect import call_with_timeout, connection_problem, listens, reason

LOOPBACK = "127.0.0.1"  # not localhost, which some containers have no address for
RETRY_SECONDS = 1.0
WRONG_SERVICE_SECONDS = 30.0  # for the answer of a port that accepts connections
RENDEZVOUS_ERRORS = (RendezvousConnectionError, RendezvousTimeoutError, RendezvousClosedError)
WRONG_SERVICE = "Ping failed"  # torch's words when something else answers
SLOW = "has timed out"  # … when nobody does, or something that torch does not understand


def open_rendezvous(config: DistributedConfig) -> RendezvousHandler:
    """The rendezvous of all machines; raises UserError after `rdzv_timeout_seconds`, or when something else answers."""
    run_id = "pggan" if config.nnodes > 1 else uuid.uuid4().hex
    end = time.monotonic() + config.rdzv_timeout_seconds
    problem: Exception | None = None
    while True:
        left = end - time.monotonic()
        try:
            # A store that is there answers at once; something else that listens there may never.
            answered = config.rdzv_endpoint is not None and listens(config.rdzv_endpoint)
            return call_with_timeout(
                min(left, WRONG_SERVICE_SECONDS) if answered else left, lambda: _handler(config, run_id)
            )
        except TimeoutError as error:
            raise rendezvous_failed(config, problem or error) from error
        except (RendezvousConnectionError, OSError) as error:
            if WRONG_SERVICE in str(error.__cause__) or left < RETRY_SECONDS:
                raise rendezvous_failed(config, error) from error
            problem = error
            time.sleep(RETRY_SECONDS)  # the host may not have come so far


def _handler(config: DistributedConfig, run_id: str) -> RendezvousHandler:
    endpoint = config.rdzv_endpoint or f"{LOOPBACK}:0"
    host = endpoint.rpartition(":")[0]
    socket.getaddrinfo(host, None)  # torch tries for long without saying why
    parameters = partial(
        RendezvousParameters,
        backend="c10d",
        endpoint=endpoint,
        run_id=run_id,
        min_nodes=config.nnodes,
        max_nodes=config.nnodes,
        local_addr=config.local_addr,
        join_timeout=config.rdzv_timeout_seconds,
        read_timeout=min(config.rdzv_timeout_seconds, 60),
    )
    if config.local_addr is None or config.rdzv_endpoint is None:
        return get_rendezvous_handler(parameters())  # torch looks at the names of this machine
    if _addresses(host) & _addresses(config.local_addr):
        with suppress(RendezvousConnectionError):  # another agent on this machine may have come first
            return get_rendezvous_handler(parameters(is_host=True))
    return get_rendezvous_handler(parameters(is_host=False))


def _addresses(host: str) -> set[str]:
    try:
        return {host, *(str(found[4][0]) for found in socket.getaddrinfo(host, None))}
    except OSError:
        return {host}


def rendezvous_failed(config: DistributedConfig, error: Exception) -> UserError:
    """The UserError for an `error` from before all machines have joined."""
    cause = error.__cause__ or error
    if isinstance(error, RendezvousTimeoutError):
        why = f"not all {config.nnodes} machines joined within {config.rdzv_timeout_seconds} s"
    elif isinstance(error, RendezvousClosedError):
        why = "a run with this rendezvous has just ended"
    elif isinstance(error, TimeoutError) or WRONG_SERVICE in str(cause) or SLOW in str(cause):
        why = connection_problem(str(config.rdzv_endpoint))
    else:
        why = reason(cause)
    if config.rdzv_endpoint is None:
        return UserError(f"The ranks of this machine can't meet at {LOOPBACK}: {why}.", "Look at its network settings.")
    return UserError(
        f"The rendezvous at distributed.rdzv_endpoint={config.rdzv_endpoint} failed: {why}.",
        f"Start the same command on all {config.nnodes} machines, with the address of one of them that all can reach, "
        "and a port that is free there; distributed.rdzv_timeout_seconds is how long they wait for each other.",
    )
