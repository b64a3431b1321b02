"""Connecting to other ranks: for a limited time, and without torch's pages of C++ errors on the console."""

import os
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import TypeVar

from pggan.core.environment import LOG_LEVEL

NCCL_REASON = "Last error:"  # the line before what NCCL found
ANSWER_SECONDS = 5.0  # beyond torch's own limit, which comes first unless it does not hold

T = TypeVar("T")


def call_with_timeout(seconds: float, connect: Callable[[], T]) -> T:
    """Call `connect`, which should take `seconds` at most; returns or raises what it does, or raises TimeoutError.

    torch waits for ever for an answer from a port where something else listens; its thread is abandoned then.
    """
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(connect())
        except Exception as error:
            outcome.set_exception(error)

    with _quiet():
        Thread(target=work, name="connecting", daemon=True).start()
        return outcome.result(timeout=seconds + ANSWER_SECONDS)


@contextmanager
def _quiet() -> Iterator[None]:
    """Discard what is written to standard error, unless torch was told to log more than errors."""
    if os.environ.get("TORCH_CPP_LOG_LEVEL", LOG_LEVEL) != LOG_LEVEL:
        yield
        return
    shown, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(shown, 2)
        os.close(shown)
        os.close(nowhere)


def connection_problem(address: str) -> str:
    """Why a connection to `address`, HOST:PORT, fails, in words."""
    with _quiet():  # torch may still be trying
        return "something else answers there" if listens(address) else "nobody answers there"


def listens(address: str) -> bool:
    """Whether `address`, HOST:PORT, accepts connections."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def reason(error: BaseException | None) -> str:
    """The first sentence of an error's message, without the place in torch's sources that raised it.

    NCCL's says what has failed; a later line says why, and belongs to it.
    """
    first, *rest = str(error or "").splitlines() or ["unknown"]
    said = re.sub(r"^\[\S+:\d+\] ", "", first).split(". ")[0].rstrip(".")
    why = rest[rest.index(NCCL_REASON) + 1 :] if NCCL_REASON in rest else []
    return ": ".join([said, *why[:1]])
