"""Functions called on several ranks that find each other, as those that a launcher starts do."""

import multiprocessing
import os
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Any

SECONDS = 600  # that a call may take
# The one server that forks all processes of a worker, with what they import: each then costs a fraction of a second.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "pggan.cli.main",
        "pggan.distributed.launch",
        "pggan.metrics.command",
        "pggan.run.report",
        "pggan.run.train",
        "pggan.training.timing",
        "hydra.core.override_parser.overrides_parser",
        "pytest",
        "tests.composed",
        "tests.definitions",
        "tests.launch.one_process",
    ]
)


@dataclass
class Outcome:
    """What became of one process."""

    code: int | None  # its exit code
    value: Any = None  # what the function returned
    error: str = ""  # or the traceback of what it raised
    pid: int = 0


# Of each worker of pytest-xdist others, and below those that the system gives to any connection meanwhile.
FIRST_PORT = 10_000 + 1000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 10)
PORTS = cycle(range(FIRST_PORT, FIRST_PORT + 1000))


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on just now."""
    ports: list[int] = []
    while len(ports) < count:
        port = next(PORTS)
        with suppress(OSError), socket.create_server(("localhost", port)):
            ports.append(port)
    return ports


def in_processes(count: int, function: Callable[..., Any], *arguments: Any) -> list[Outcome]:
    """`function(*arguments)` in `count` processes; what became of them, by rank."""
    (port,), started = free_ports(1), []
    for rank in range(count):
        here, there = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_call, args=(rank, count, port, there, function, arguments), daemon=True)
        process.start()
        there.close()
        started.append((process, here))
    outcomes = []
    for process, here in started:
        said: dict[str, Any] = {}
        if here.poll(SECONDS):
            with suppress(EOFError):  # it was killed
                said = here.recv()
        process.join(SECONDS)
        outcomes.append(Outcome(process.exitcode, pid=process.pid or 0, **said))
        process.kill()
    return outcomes


def values_of(outcomes: list[Outcome]) -> list[Any]:
    """What each process returned; fails with the tracebacks where one raised."""
    errors = [f"process {rank}: {outcome}" for rank, outcome in enumerate(outcomes) if outcome.code or outcome.error]
    assert not errors, "\n".join(errors)
    return [outcome.value for outcome in outcomes]


def set_port(port: int) -> None:
    """Where this process finds the others the next time."""
    os.environ["MASTER_PORT"] = str(port)


def _call(
    rank: int, count: int, port: int, there: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    os.environ.update(zip(names, map(str, (rank, rank, count, count)), strict=True))
    os.environ["MASTER_ADDR"] = "localhost"
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    set_port(port)
    try:
        there.send({"value": function(*arguments)})
    except BaseException as error:
        there.send({"error": f"{traceback.format_exc()}\n{error!r}"})
