"""Starts the ranks (processes) of a command with torchrun, which restarts all ranks if a rank fails or is killed.

The function `killed_if_stopped` kills a rank that SIGSTOP has stopped for too long.  A rank that runs but makes no
progress is ended by the method `ProcessGroup.end_if_stalled` or by the timeout of a collective.
"""

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Event, Thread
from types import FrameType
from typing import Any

from pggan.core.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PEER_LOST, EXIT_USER_ERROR, UserError
from pggan.core.process import PARENT_VARIABLE, TASK_VARIABLE, environment, signal_handlers

LOOPBACK = "127.0.0.1"  # used instead of the name `localhost`, which some containers can't resolve
RENDEZVOUS_SECONDS = 300  # All ranks have to connect within 300 seconds.
RANKS_VARIABLE = "PGGAN_RANKS"  # This environment variable holds the path of a folder that launcher and ranks share.
IGNORED = "SIGURG"  # The function `launch` handles signals; torchrun handles only SIGURG, which nobody sends.
ENDED = "ended"  # The file `ended` has the command's exit code; once the file exists, no rank is restarted.
# Each rank has a guard process, which runs GUARD and kills the rank if the rank sends no byte for `timeout` seconds.
# GUARD counts seconds itself, because a clock would also count the time while the machine is suspended.
GUARD = """
import os, select, signal, sys
rank, timeout, silent = int(sys.argv[1]), float(sys.argv[2]), 0
while silent < timeout:
    if not select.select([0], [], [], 1)[0]:
        silent += 1
    elif os.read(0, 4096):
        silent = 0
    else:
        sys.exit()
os.kill(rank, signal.SIGKILL)
"""


def launch(
    command: str,
    values: dict[str, Any],
    count: int,
    *,
    nnodes: int = 1,
    rdzv_endpoint: str | None = None,
    max_restarts: int = 0,
    threads: int,
    then: Callable[[], str] = str,
) -> int:
    """Run a command with `count` ranks on this machine, and pass signals on to the ranks; returns the exit code.

    The function `then` returns a text that tells the user how to go on after a failure or a signal.  Raises UserError
    if this machine does not find the other machines of the run, or loses the connection to the other machines.
    """
    with tempfile.TemporaryDirectory(prefix="pggan-") as folder:
        ended = Path(folder, ENDED)
        variables = {
            TASK_VARIABLE: json.dumps([command, values]),
            PARENT_VARIABLE: str(os.getpid()),
            RANKS_VARIABLE: folder,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
            "TORCHELASTIC_SIGNALS_TO_HANDLE": IGNORED,
        }
        if nnodes == 1 and sys.platform == "linux":  # By default, Gloo looks up the host name, which can fail.
            variables["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")

        def relay(number: int, frame: FrameType | None) -> None:
            ended.write_text(str(EXIT_INTERRUPTED))
            reached = False
            for file in Path(folder).glob("pid-*"):
                with suppress(ProcessLookupError, ValueError):  # Skip a rank that has ended or has an empty pid file.
                    os.kill(int(file.read_text()), number)
                    reached = True
            if not reached:
                raise KeyboardInterrupt(then())

        with environment(variables), signal_handlers(relay):
            done = run_ranks(folder, count, nnodes, rdzv_endpoint, max_restarts)
        if ended.exists():
            return int(ended.read_text())
    if done:
        return 0
    print(f"Ranks were lost, and no restarts are left (distributed.max_restarts). {then()}", file=sys.stderr)
    return EXIT_FAILED


def run_ranks(folder: str, count: int, nnodes: int, rdzv_endpoint: str | None, max_restarts: int) -> bool:
    """Let torchrun start the ranks, and restart them after failures; returns whether the ranks succeeded."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    try:
        own_address, is_host = meeting_place(rdzv_endpoint) if rdzv_endpoint else (LOOPBACK, None)
        settings = LaunchConfig(
            min_nodes=nnodes,
            max_nodes=nnodes,
            nproc_per_node=count,
            run_id="pggan",
            rdzv_backend="c10d",
            rdzv_endpoint=rdzv_endpoint or f"{LOOPBACK}:0",
            rdzv_configs={"join_timeout": RENDEZVOUS_SECONDS, "is_host": is_host},
            local_addr=own_address,
            max_restarts=max_restarts,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            signals_to_handle=IGNORED,
        )
        elastic_launch(settings, sys.executable)("-m", "pggan")
    except ChildFailedError:  # Torchrun has logged the failure.
        return False
    except (RendezvousError, OSError) as error:
        raise UserError(
            f"The machines did not meet at distributed.rdzv_endpoint={rdzv_endpoint}, or were disconnected: {error}",
            f"Start the same command on all machines within five minutes (distributed.nnodes={nnodes}). The endpoint "
            "is ADDRESS:PORT of one machine: all machines must be able to reach it, and the port must be free.",
        ) from error
    return True


def report_rank(run: Callable[[str, dict[str, Any]], int], guarded: Callable[[Callable[[], int]], int]) -> int:
    """Run the command of this rank; a returned exit code other than 0 makes torchrun restart all ranks."""
    command, values = json.loads(os.environ.pop(TASK_VARIABLE))
    folder = Path(os.environ.pop(RANKS_VARIABLE))
    ended = folder / ENDED
    (folder / f"pid-{os.environ['LOCAL_RANK']}").write_text(str(os.getpid()))
    if ended.exists():
        return 0

    def unless_lost() -> int:
        try:
            return run(command, values)
        except KeyboardInterrupt:
            if ended.exists():
                raise
            return EXIT_PEER_LOST  # Torchrun has interrupted this rank, because another rank was lost.

    code = guarded(unless_lost)
    if code in (EXIT_USER_ERROR, EXIT_INTERRUPTED) or (code == 0 and ended.exists()):
        ended.write_text(str(code))
        return 0
    return code


def meeting_place(endpoint: str) -> tuple[str, bool | None]:
    """Return this machine's address, and whether this machine hosts the rendezvous (None: torchrun decides)."""
    host, _, port = endpoint.rpartition(":")
    end = time.monotonic() + RENDEZVOUS_SECONDS
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=5) as way:
                return way.getsockname()[0], False
        except OSError:
            with suppress(OSError), socket.create_server((host, int(port))):  # fails unless `host` is this machine.
                # At LOOPBACK, there may be several launchers; torchrun chooses which launcher hosts the rendezvous.
                return host, None if host == LOOPBACK else True
            if time.monotonic() > end:
                raise
        time.sleep(1)


@contextmanager
def killed_if_stopped(timeout: float) -> Iterator[None]:
    """In the `with` block, a second process kills this process if SIGSTOP stops this process for `timeout` seconds."""
    command = [sys.executable, "-IS", "-c", GUARD, str(os.getpid()), str(timeout)]
    guard = Popen(command, stdin=PIPE, start_new_session=True)  # noqa: S603 - runs this Python
    assert guard.stdin is not None, "stdin is a pipe"
    pipe, over = guard.stdin.fileno(), Event()

    def beat() -> None:
        while not over.wait(1):
            with suppress(OSError):  # `os.write` fails if the second process was killed.
                os.write(pipe, b".")

    thread = Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        guard.communicate()
