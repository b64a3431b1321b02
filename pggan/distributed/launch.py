"""Starting the ranks of a command with torchrun's own launcher, which restarts all of them when one is lost."""

import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

from pggan.core.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PEER_LOST, EXIT_USER_ERROR, UserError
from pggan.core.process import PARENT_VARIABLE, TASK_VARIABLE, environment, signal_handlers

LOOPBACK = "127.0.0.1"  # not localhost, which some containers have no address for
RENDEZVOUS_SECONDS = 300  # for all machines, and for all ranks, to be there
RANKS_VARIABLE = "PGGAN_RANKS"  # of a rank: the folder in which it and its parent leave each other notes
IGNORED = "SIGURG"  # the one signal that torchrun handles, which has no other use: signals are handled here
ENDED = "ended"  # the file with the exit code of the command, where ranks that are lost from now on need no restart


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
    """Run a command on `count` ranks here, and on those of the other machines; returns the exit code.

    Signals are passed on to the ranks, which save and end.
    Args: values: the configuration of the command; nnodes, rdzv_endpoint, max_restarts: torchrun's options; threads:
    per rank, for arithmetic on the CPU, unless OMP_NUM_THREADS says otherwise; then: says what the same
    command would do after an end like this.
    Raises UserError when the machines do not find each other, or not again.
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
        if nnodes == 1 and sys.platform == "linux":  # no need for a host name that can be resolved
            variables["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")

        def relay(number: int, frame: FrameType | None) -> None:
            ended.write_text(str(EXIT_INTERRUPTED))
            reached = False
            for file in Path(folder).glob("pid-*"):
                with suppress(ProcessLookupError, ValueError):  # it has ended; it is just being written
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
    """Let torchrun start ranks and restart them; returns whether they succeeded in the end.

    Raises UserError when the machines do not find each other, or not again.
    """
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
    except ChildFailedError:  # which torchrun has logged
        return False
    except (RendezvousError, OSError) as error:
        raise UserError(
            f"The machines did not meet at distributed.rdzv_endpoint={rdzv_endpoint}, or lost each other: {error}",
            f"Start the same command on all {nnodes} within five minutes, with the address of one, "
            "which all can reach, and a port that is free there.",
        ) from error
    return True


def report_rank(run: Callable[[str, dict[str, Any]], int], guarded: Callable[[Callable[[], int]], int]) -> int:
    """Be a rank that `launch` has started: the exit code for torchrun, which is 0 where a restart would not help.

    Args: run: takes the command and its values; guarded: turns what `run` raises into an exit code.
    """
    command, values = json.loads(os.environ.pop(TASK_VARIABLE))
    Thread(target=end_with_parent, name="parent", daemon=True).start()
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
            return EXIT_PEER_LOST  # torchrun ends the ranks that are left when it has lost one

    code = guarded(unless_lost)
    if code in (EXIT_USER_ERROR, EXIT_INTERRUPTED) or (code == 0 and ended.exists()):
        ended.write_text(str(code))
        return 0
    return code


def end_with_parent() -> None:
    """Make this process save and end when its parent is gone."""
    while os.getppid() == int(os.environ[PARENT_VARIABLE]):
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def meeting_place(endpoint: str) -> tuple[str, bool | None]:
    """The address of this machine on the way to the rendezvous, and whether the rendezvous is kept here.

    Waits for the machine that keeps it; raises OSError when that does not come.
    """
    host, _, port = endpoint.rpartition(":")
    end = time.monotonic() + RENDEZVOUS_SECONDS
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=5) as way:
                return way.getsockname()[0], False
        except OSError:
            with suppress(OSError), socket.create_server((host, int(port))):  # possible at an address of this machine
                # Of two agents of one machine, as in tests, torchrun finds out which was first.
                return host, None if host == LOOPBACK else True
            if time.monotonic() > end:
                raise
        time.sleep(1)
