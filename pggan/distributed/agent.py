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

from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from pggan.config import DistributedConfig
from pggan.core.cpu import available_cores
from pggan.core.environment import child_variables
from pggan.core.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PEER_LOST, EXIT_USER_ERROR
from pggan.core.formatting import Log
from pggan.core.signals import signal_handlers
from pggan.distributed.rendezvous import RENDEZVOUS_ERRORS, open_rendezvous, rendezvous_failed

FINAL_EXIT_CODES = (EXIT_USER_ERROR, EXIT_INTERRUPTED)  # exit codes of ranks after which nothing is restarted
ENDING_SECONDS = 30.0  # between the end of the first machine and that of the last
REPORT_SECONDS = 5.0  # for the ranks to report the stalled one, before their agent gives up
POLL_SECONDS = 1.0
MAX_COMPILERS = 32  # processes of torch.compile; as many as it takes by itself


class Agent(LocalElasticAgent):
    """torchrun's agent, which restarts only where that helps, and reports which ranks were lost."""

    def __init__(
        self, spec: WorkerSpec, logs: str, config: DistributedConfig, *, log: Log, then: Callable[[], str]
    ) -> None:
        super().__init__(spec, DefaultLogsSpecs(log_dir=logs), exit_barrier_timeout=ENDING_SECONDS)
        self.logs, self.log, self.then = logs, log, then
        self.lost = (
            f"Lost: the rendezvous host at {config.rdzv_endpoint}, or too many other machines. The same command on all "
            "machines resumes from the last checkpoint, if there is one."
        )
        self.rendezvous_timeout = config.rdzv_timeout_seconds
        # A single machine asks no other one.
        self.timeout = config.heartbeat_timeout_seconds + REPORT_SECONDS if config.nnodes > 1 else math.inf
        self.signal: int | None = None  # the last one that was passed on
        self.polls = 0  # looks at its ranks, many in a second; each asks the rendezvous host
        self.allowed = 0.0  # seconds that a turn may take

    @property
    def rendezvous_done(self) -> bool:
        """Whether there was a rendezvous of all machines."""
        return self._worker_group.group_world_size is not None

    def send_signal(self, number: int) -> bool:
        """Pass a signal on to the ranks; returns whether there are any."""
        self.signal, reached = number, False
        for worker in self._worker_group.workers:
            if isinstance(worker.id, int):
                with suppress(ProcessLookupError):
                    os.kill(worker.id, number)
                    reached = True
        return reached

    @contextmanager
    def exit_when_stuck(self) -> Iterator[None]:
        """While active, end this process when a turn takes too long: a machine that is asked has vanished.

        Seconds are counted by looking: while this whole process is stopped, none go by.
        """
        over = Event()

        def watch() -> None:
            seen, silent = self.polls, 0.0
            while not over.wait(POLL_SECONDS):
                polls = self.polls
                seen, silent = polls, silent + POLL_SECONDS if polls == seen else 0.0
                if silent > self.allowed:
                    self.send_signal(signal.SIGKILL)
                    self.log(self.lost)
                    shutil.rmtree(self.logs, ignore_errors=True)
                    os._exit(EXIT_FAILED)  # the main thread waits for an answer, and can't be told

        Thread(target=watch, name="agent timeout", daemon=True).start()
        try:
            yield
        finally:
            over.set()

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
        self.polls += 1
        assert isinstance(self._pcontext, SubprocessContext), "the command is a program"
        codes = {rank: handler.proc.poll() for rank, handler in self._pcontext.subprocess_handlers.items()}
        failed = {worker_group.workers[rank]: code for rank, code in codes.items() if code}
        if not failed and None in codes.values():
            return RunResult(state=WorkerState.HEALTHY)
        if any(code not in (*FINAL_EXIT_CODES, EXIT_PEER_LOST) for code in failed.values()) or set(failed.values()) == {
            EXIT_PEER_LOST
        }:
            if self.signal is not None:
                self._remaining_restarts = 0
            self._report(failed)
            # At once, even where a rank does not react any more: the checkpoint holds all that counts.
            self._pcontext.close(signal.SIGKILL)
        elif failed:
            self._remaining_restarts = 0  # the others come to the same end
        result: RunResult = super()._monitor_workers(worker_group)
        if any(code in FINAL_EXIT_CODES for code in failed.values()):
            self._exit_barrier()  # the rendezvous host stays until the others know
        return result

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown(signal.SIGKILL)

    def _report(self, failed: dict[Worker, int]) -> None:
        lost = [
            f"rank {worker.global_rank} (pid {worker.id}) "
            + (f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}")
            for worker, code in failed.items()
            if code != EXIT_PEER_LOST and (self.signal is None or code != -self.signal)
        ]
        if lost:
            self.log(f"Lost: {'; '.join(lost)}.")
        if left := self._remaining_restarts:
            self.log(f"All ranks restart from the last checkpoint ({left} restart{'s' * (left > 1)} left).")
        elif self.signal is not None:
            self.log(f"Stopped at once. {self.then()}".rstrip())
        else:
            self.log(f"No restarts are left (distributed.max_restarts). {self.then()}".rstrip())

    def exit_code(self, result: RunResult) -> int:
        """The exit code of the command, from those of its ranks here: their own errors come first."""
        codes = {failure.exitcode for failure in result.failures.values()}
        other = EXIT_FAILED if self.signal is None else EXIT_INTERRUPTED
        own = (EXIT_USER_ERROR, EXIT_FAILED, EXIT_INTERRUPTED)
        return next((code for code in own if code in codes), other) if codes else 0


def launch(
    command: str,
    values: dict[str, Any],
    count: int,
    config: DistributedConfig,
    *,
    threads: int,
    log: Log,
    then: Callable[[], str] = str,
) -> int:
    """Run a command on `count` ranks here, and on those of the other machines; returns the exit code.

    Signals are passed on to the ranks, which save and end.
    Args: values: the configuration of the command; threads: per rank, for arithmetic on the CPU, unless OMP_NUM_THREADS
    says otherwise; then: says what the same command would do after an end like this.
    Raises UserError when the rendezvous fails.
    """
    silence("torch.distributed")  # the agent reports instead
    variables = rank_variables(count, config, threads) | child_variables(command, values)
    agent: Agent | None = None

    def relay(number: int, frame: FrameType | None) -> None:
        if agent is None or not agent.send_signal(number):
            raise KeyboardInterrupt

    with tempfile.TemporaryDirectory(prefix="pggan-") as logs, environment(variables), signal_handlers(relay):
        try:
            spec = WorkerSpec(
                role="train",
                local_world_size=count,
                entrypoint=sys.executable,
                args=("-m", "pggan"),
                rdzv_handler=open_rendezvous(config),
                max_restarts=config.max_restarts,
                monitor_interval=0.1,
                local_addr=config.local_addr,
            )
            agent = Agent(spec, logs, config, log=log, then=then)
            with agent.exit_when_stuck():
                result = agent.run()
        except KeyboardInterrupt:
            if agent is not None and agent.rendezvous_done:
                raise
            log("Stopped while waiting for the other machines: no rank was started. The same command begins again.")
            return EXIT_INTERRUPTED
        except RENDEZVOUS_ERRORS as error:
            if agent is None or not agent.rendezvous_done:
                raise rendezvous_failed(config, error) from error
            log(agent.lost)
            return EXIT_FAILED
    return agent.exit_code(result)


def rank_variables(count: int, config: DistributedConfig, threads: int) -> dict[str, str]:
    """The environment variables of `count` ranks on this machine; those that the user has set stay."""
    variables = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        # Each rank would start as many processes that compile as there are cores, up to 32.
        "TORCHINDUCTOR_COMPILE_THREADS": os.environ.get(
            "TORCHINDUCTOR_COMPILE_THREADS", str(min(max(available_cores() // count, 1), MAX_COMPILERS))
        ),
        # With the store shared by all attempts, new ranks find the addresses of dead ones there.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGURG",  # one that has no other use: signals are handled by `launch`
    }
    if config.nnodes == 1 and sys.platform == "linux":  # no need for a host name that can be resolved
        variables["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    return variables


def silence(package: str) -> None:
    """Let the loggers of a package report nothing but critical errors; torch gives some of them levels of their own."""
    for name in [package, *logging.root.manager.loggerDict]:
        if name == package or name.startswith(f"{package}."):
            logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that are started inside."""
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
