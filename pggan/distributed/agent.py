"""The ranks of one machine under torchrun's elastic agent: started, watched, restarted."""

import logging
import math
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from types import FrameType
from typing import Any

from omegaconf import OmegaConf
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from pggan.config import DistributedConfig
from pggan.core.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_LEFT, EXIT_USER_ERROR
from pggan.core.signals import handling
from pggan.distributed.rendezvous import RENDEZVOUS_ERRORS, open_rendezvous, rendezvous_failed

TASK_VARIABLE = "PGGAN_TASK"  # what a rank is to do, as YAML
PARENT_VARIABLE = "PGGAN_PARENT"  # the process that started it
FINAL = (EXIT_USER_ERROR, EXIT_INTERRUPTED)  # exit codes of ranks after which nothing is restarted
ENDING_SECONDS = 30.0  # between the first machine that has ended and the last
REPORT_SECONDS = 5.0  # for the ranks to report the one that hangs, before their parent gives up
LOOK_SECONDS = 1.0
RESUMES = "The same command resumes from the last checkpoint."


class Agent(LocalElasticAgent):
    """torchrun's agent, which knows when a restart is of no use, and reports what happened in words."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs: DefaultLogsSpecs,
        config: DistributedConfig,
        log: Callable[[str], None],
    ) -> None:
        super().__init__(spec, logs, exit_barrier_timeout=ENDING_SECONDS)
        self.rendezvous_timeout = config.rdzv_timeout_seconds
        # One machine alone asks nobody else.
        self.timeout = config.heartbeat_timeout_seconds + REPORT_SECONDS if config.nnodes > 1 else math.inf
        self.log = log
        self.signal: int | None = None  # that this process got, and passes on
        self.turns = 0  # looks at its ranks, many in a second; each asks the rendezvous host
        self.allowed = 0.0  # seconds that a turn may take

    def send_signal(self, number: int) -> None:
        """Have the ranks save and end; raises KeyboardInterrupt while there are none."""
        self.signal = number
        if not self._kill(number):
            raise KeyboardInterrupt

    def end(self) -> None:
        """End the ranks at once, whatever the main thread is doing."""
        self._kill(signal.SIGKILL)

    def _kill(self, number: int) -> int:
        """Send a signal to all ranks; returns how many it reached."""
        reached = 0
        for worker in self._worker_group.workers:
            if isinstance(worker.id, int):
                with suppress(ProcessLookupError):
                    os.kill(worker.id, number)
                    reached += 1
        return reached

    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        self.allowed = self.rendezvous_timeout + self.timeout
        super()._initialize_workers(worker_group)
        self.allowed = self.timeout

    def _exit_barrier(self) -> None:
        self.allowed = ENDING_SECONDS + self.timeout
        super()._exit_barrier()  # type: ignore[no-untyped-call]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        started: dict[int, Any] = super()._start_workers(worker_group)
        if self.signal is not None:  # it came after the loss of the ones before
            for pid in started.values():
                os.kill(pid, self.signal)
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self.turns += 1
        assert isinstance(self._pcontext, SubprocessContext), "the command is a program"
        codes = {rank: handler.proc.poll() for rank, handler in self._pcontext.subprocess_handlers.items()}
        failed = {worker_group.workers[rank]: code for rank, code in codes.items() if code}
        if not failed and None in codes.values():
            return RunResult(state=WorkerState.HEALTHY)
        if any(code not in (*FINAL, EXIT_LEFT) for code in failed.values()) or set(failed.values()) == {EXIT_LEFT}:
            if self.signal is not None:
                self._remaining_restarts = 0
            self._report(failed)
            # At once, even where a rank does not react any more: the checkpoint holds all that counts.
            self._pcontext.close(signal.SIGKILL)
        elif failed:
            self._remaining_restarts = 0  # the others come to the same end
        result: RunResult = super()._monitor_workers(worker_group)
        if any(code in FINAL for code in failed.values()):
            self._exit_barrier()  # the rendezvous host stays until the others know
        return result

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown(signal.SIGKILL)

    def _report(self, failed: dict[Worker, int]) -> None:
        lost = [
            f"rank {worker.global_rank} (pid {worker.id}) {_how(code)}"
            for worker, code in failed.items()
            if code != EXIT_LEFT and (self.signal is None or code != -self.signal)
        ]
        if lost:
            self.log(f"Lost: {'; '.join(lost)}.")
        if self._remaining_restarts:
            left = self._remaining_restarts
            self.log(f"All ranks restart from the last checkpoint ({left} restart{'s' * (left > 1)} left).")
        elif self.signal is not None:
            self.log(f"Stopped at once. {RESUMES}")
        else:
            self.log(f"Training ends: no restarts are left (distributed.max_restarts). {RESUMES}")


def _how(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def launch(
    command: str,
    values: dict[str, Any],
    count: int,
    config: DistributedConfig,
    *,
    threads: int,
    log: Callable[[str], None],
) -> int:
    """Run a command on `count` ranks here, and wait for the other machines if there are any; returns the exit code.

    `values` are those of its configuration; `threads`, of a rank for arithmetic on the CPU, unless OMP_NUM_THREADS says
    otherwise.  Signals are passed on to the ranks, which save and end.
    Raises UserError when the rendezvous fails.
    """
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # the words are ours
    variables = {
        TASK_VARIABLE: OmegaConf.to_yaml(OmegaConf.create({"command": command, "values": values})),
        PARENT_VARIABLE: str(os.getpid()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        # With the store shared by all attempts, new ranks find the addresses of dead ones there.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGURG",  # one that has no other use: signals are handled below
    }
    relay = Relay()
    if config.nnodes == 1 and sys.platform == "linux":  # no need for a host name that can be resolved
        variables["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory(prefix="pggan-") as logs, environment(variables), handling(relay):
        try:
            rendezvous = open_rendezvous(config)
        except KeyboardInterrupt:
            return _stopped_early(log)
        spec = WorkerSpec(
            role="train",
            local_world_size=count,
            entrypoint=sys.executable,
            args=("-m", "pggan.cli.worker"),
            rdzv_handler=rendezvous,
            max_restarts=config.max_restarts,
            monitor_interval=0.1,
            local_addr=config.local_addr,
        )
        agent = relay.agent = Agent(spec, DefaultLogsSpecs(log_dir=logs), config, log)
        lost = (
            f"Lost: the rendezvous host at {config.rdzv_endpoint}, or too many other machines. The same command on all "
            "machines resumes from the last checkpoint."
        )

        def give_up() -> None:
            agent.end()
            log(lost)
            shutil.rmtree(logs, ignore_errors=True)
            os._exit(EXIT_FAILED)  # the main thread waits for an answer, and can't be told

        try:
            with timed_out(lambda: agent.turns, lambda: agent.allowed, give_up):
                result = agent.run()
        except KeyboardInterrupt:
            if agent.get_worker_group().group_world_size is None:
                return _stopped_early(log)
            raise
        except RENDEZVOUS_ERRORS as error:
            if agent.get_worker_group().group_world_size is None:
                raise rendezvous_failed(config, error) from error
            log(lost)
            return EXIT_FAILED
    codes = [failure.exitcode for failure in result.failures.values()]
    if not codes:
        return 0
    own = (EXIT_USER_ERROR, EXIT_FAILED, EXIT_INTERRUPTED)
    return next((code for code in own if code in codes), EXIT_FAILED if agent.signal is None else EXIT_INTERRUPTED)


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Environment variables for the processes that are started inside."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def timed_out(turns: Callable[[], int], allowed: Callable[[], float], end: Callable[[], None]) -> Iterator[None]:
    """While active, call `end` when `turns` has stayed the same for as many seconds as are `allowed` at the time.

    `turns` counts what the main thread does over and over; it stops when a machine that is asked was cut off without a
    word.  Seconds are counted by looking: while this whole process is stopped, none go by.
    """
    over = Event()

    def watch() -> None:
        seen, silent = turns(), 0.0
        while not over.wait(LOOK_SECONDS):
            now = turns()
            silent = silent + LOOK_SECONDS if now == seen else 0.0
            seen = now
            if silent > allowed():
                end()
                return

    Thread(target=watch, name="agent timeout", daemon=True).start()
    try:
        yield
    finally:
        over.set()


class Relay:
    """Takes signals to this process to the ranks of the `agent`; while there are none, they end it."""

    agent: Agent | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.agent is None:
            raise KeyboardInterrupt
        self.agent.send_signal(number)


def _stopped_early(log: Callable[[str], None]) -> int:
    log("Stopped while waiting for the other machines: no rank has been started. The same command begins again.")
    return EXIT_INTERRUPTED
