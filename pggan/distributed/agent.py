"""Several processes on this machine under torchrun's elastic agent: started, watched, started again."""

import logging
import os
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from pggan.config import WorkersConfig
from pggan.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_LEFT, EXIT_USER_ERROR, UserError
from pggan.interruption import SIGNALS

FINAL = (EXIT_USER_ERROR, EXIT_INTERRUPTED)  # exit codes of workers that nothing is to be started again after


class Agent(LocalElasticAgent):
    """torchrun's agent, which knows when it is no use to start again, and says what happened in words."""

    def __init__(self, spec: WorkerSpec, logs: DefaultLogsSpecs, say: Callable[[str], None]) -> None:
        """Args: say: tells people."""
        super().__init__(spec, logs)
        self.say = say
        self.signal: int | None = None  # that this process got, and passes on

    def pass_on(self, number: int) -> None:
        """Have the processes save and end; raises KeyboardInterrupt while there are none."""
        self.signal = number
        reached = 0
        for worker in self._worker_group.workers:
            if isinstance(worker.id, int):
                with suppress(ProcessLookupError):
                    os.kill(worker.id, number)
                    reached += 1
        if not reached:
            raise KeyboardInterrupt

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        started: dict[int, Any] = super()._start_workers(worker_group)
        if self.signal is not None:  # it came after the loss of the ones before
            for pid in started.values():
                os.kill(pid, self.signal)
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert isinstance(self._pcontext, SubprocessContext), "the command is a program"
        codes = {rank: handler.proc.poll() for rank, handler in self._pcontext.subprocess_handlers.items()}
        failed = {worker_group.workers[rank]: code for rank, code in codes.items() if code}
        if not failed and None in codes.values():
            return RunResult(state=WorkerState.HEALTHY)
        if any(code not in (*FINAL, EXIT_LEFT) for code in failed.values()) or set(failed.values()) == {EXIT_LEFT}:
            if self.signal is not None:
                self._remaining_restarts = 0
            self._tell(failed)
            # At once, even where a process does not react any more: the checkpoint holds all that counts.
            self._pcontext.close(signal.SIGKILL)
        elif failed:
            self._remaining_restarts = 0  # the others come to the same end
        result: RunResult = super()._monitor_workers(worker_group)
        return result

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown(signal.SIGKILL)

    def _tell(self, failed: dict[Worker, int]) -> None:
        lost = [
            f"process {worker.global_rank} (pid {worker.id}) {_how(code)}"
            for worker, code in failed.items()
            if code != EXIT_LEFT and (self.signal is None or code != -self.signal)
        ]
        if lost:
            self.say(f"Lost: {'; '.join(lost)}.")
        goes_on = "The same command goes on from the last checkpoint."
        if self._remaining_restarts:
            self.say(f"All start again from the last checkpoint ({self._remaining_restarts} more times).")
        elif self.signal is not None:
            self.say(f"Stopped at once. {goes_on}")
        else:
            self.say(f"Ends here: no restarts are left (workers.restarts). {goes_on}")


def _how(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def run_workers(command: list[str], count: int, workers: WorkersConfig, say: Callable[[str], None]) -> int:
    """Run `command` in `count` processes here, and wait for the other machines if there are any; the exit code.

    Signals are passed on to the processes, which save and end.  Raises UserError when the machines don't meet.
    """
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # the words are ours
    # With the store shared by all attempts, new processes find the addresses of dead ones there.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGURG"  # one that has no other use: signals are handled below
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=workers.rendezvous or "localhost:0",
        run_id="pggan" if workers.nodes > 1 else uuid.uuid4().hex,
        min_nodes=workers.nodes,
        max_nodes=workers.nodes,
        local_addr=workers.address,
        join_timeout=workers.join_seconds,
        read_timeout=min(workers.join_seconds, 60),
        **keeps_store(workers),
    )
    with tempfile.TemporaryDirectory(prefix="pggan-") as logs:
        try:
            spec = WorkerSpec(
                role="train",
                local_world_size=count,
                entrypoint=command[0],
                args=tuple(command[1:]),
                rdzv_handler=get_rendezvous_handler(parameters),
                max_restarts=workers.restarts,
                monitor_interval=0.1,
                local_addr=workers.address,
            )
            agent = Agent(spec, DefaultLogsSpecs(log_dir=logs), say)
            with passing_on(agent):
                result = agent.run()
        except (RendezvousConnectionError, RendezvousTimeoutError, RendezvousClosedError) as error:
            raise UserError(
                f"The machines did not meet at workers.rendezvous={workers.rendezvous}: {str(error).splitlines()[0]}",
                f"Start the same command on all {workers.nodes} machines, with the address of one of them that all "
                "can reach, and a port that is free there.",
            ) from error
    codes = [failure.exitcode for failure in result.failures.values()]
    if not codes:
        return 0
    own = (EXIT_USER_ERROR, EXIT_FAILED, EXIT_INTERRUPTED)
    return next((code for code in own if code in codes), EXIT_FAILED if agent.signal is None else EXIT_INTERRUPTED)


def keeps_store(workers: WorkersConfig) -> dict[str, bool]:
    """Whether this machine is the one where all meet, if its address says so; else its host name decides."""
    if workers.address is None or workers.rendezvous is None:
        return {}
    return {"is_host": workers.address == workers.rendezvous.rpartition(":")[0]}


@contextmanager
def passing_on(agent: Agent) -> Iterator[None]:
    """Signals to this process go to the workers; while there are none, they end it."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        agent.pass_on(number)

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
