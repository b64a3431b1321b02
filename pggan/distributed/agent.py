"""Several processes on this machine under torchrun's elastic agent: started, watched, started again."""

import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from pggan.config import WorkersConfig
from pggan.distributed.meeting import MEETING_ERRORS, meeting_point, not_met
from pggan.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USER_ERROR
from pggan.interruption import handling

FINAL = (EXIT_USER_ERROR, EXIT_INTERRUPTED)  # exit codes of workers that nothing is to be started again after
ENDING_SECONDS = 30.0  # between the first machine that has ended and the last


class Agent(LocalElasticAgent):
    """torchrun's agent, which knows when it is no use to start again, and says what happened in words."""

    def __init__(self, spec: WorkerSpec, logs: DefaultLogsSpecs, say: Callable[[str], None]) -> None:
        """Args: say: tells people."""
        super().__init__(spec, logs, exit_barrier_timeout=ENDING_SECONDS)
        self.say = say

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state is WorkerState.FAILED:
            codes = [failure.exitcode for failure in result.failures.values()]
            if any(code in FINAL for code in codes):
                self._remaining_restarts = 0
                # The machine where all meet stays until the others know.
                self._exit_barrier()  # type: ignore[no-untyped-call]
            else:
                self._tell(result)
        return result

    def _tell(self, result: RunResult) -> None:
        first = min(result.failures.items(), key=lambda item: item[1].timestamp)
        ended = [
            f"process {rank} (pid {failure.pid}) {_how(failure.exitcode)}"
            for rank, failure in sorted(result.failures.items(), key=lambda item: item[0] != first[0])
            if failure.exitcode != -signal.SIGTERM  # by the agent, because of another one
        ]
        left = self._remaining_restarts
        then = f"all start again from the last checkpoint ({left} more times)" if left else "no restarts are left"
        self.say(f"Lost: {'; '.join(ended)}. {then.capitalize()}.")


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
    with tempfile.TemporaryDirectory(prefix="pggan-") as logs:
        spec = WorkerSpec(
            role="train",
            local_world_size=count,
            entrypoint=command[0],
            args=tuple(command[1:]),
            rdzv_handler=meeting_point(workers),
            max_restarts=workers.restarts,
            monitor_interval=0.1,
            local_addr=workers.address,
        )
        agent = Agent(spec, DefaultLogsSpecs(log_dir=logs), say)
        try:
            with passing_on(agent):
                result = agent.run()
        except MEETING_ERRORS as error:
            if agent.get_worker_group().group_world_size is None:
                raise not_met(workers, error) from error
            say(
                f"Lost: the machine at {workers.rendezvous}, or too many others. The same command on all machines goes "
                "on from the last checkpoint."
            )
            return EXIT_FAILED
    codes = [failure.exitcode for failure in result.failures.values()]
    return next((code for code in FINAL if code in codes), EXIT_FAILED if codes else 0)


@contextmanager
def passing_on(agent: Agent) -> Iterator[None]:
    """Signals to this process go to the workers; before there are any, they end it."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        pids = [worker.id for worker in agent.get_worker_group().workers if isinstance(worker.id, int)]
        if not pids:
            raise KeyboardInterrupt
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    with handling(pass_on):
        yield
