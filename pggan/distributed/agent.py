"""Several processes on this machine under torchrun's elastic agent: started, watched, started again."""

import logging
import math
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from omegaconf import OmegaConf
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from pggan.config import WorkersConfig
from pggan.core.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_LEFT, EXIT_USER_ERROR
from pggan.core.signals import handling
from pggan.distributed.agent_timeout import watching
from pggan.distributed.rendezvous import MEETING_ERRORS, meeting_point, not_met

TASK_VARIABLE = "PGGAN_TASK"  # what a worker is to do, as YAML
PARENT_VARIABLE = "PGGAN_PARENT"  # the process that started it
FINAL = (EXIT_USER_ERROR, EXIT_INTERRUPTED)  # exit codes of workers that nothing is to be started again after
ENDING_SECONDS = 30.0  # between the first machine that has ended and the last
TELLING_SECONDS = 5.0  # for the processes to tell which one keeps them waiting, before their parent gives up


class Agent(LocalElasticAgent):
    """torchrun's agent, which knows when it is no use to start again, and says what happened in words."""

    def __init__(
        self, spec: WorkerSpec, logs: DefaultLogsSpecs, workers: WorkersConfig, say: Callable[[str], None]
    ) -> None:
        """Args: say: tells people."""
        super().__init__(spec, logs, exit_barrier_timeout=ENDING_SECONDS)
        self.join_seconds = workers.join_seconds
        # One machine alone asks nobody else.
        self.patience = workers.patience_seconds + TELLING_SECONDS if workers.nodes > 1 else math.inf
        self.say = say
        self.signal: int | None = None  # that this process got, and passes on
        self.turns = 0  # looks at its processes, many in a second; each asks the machine where all meet
        self.allowed = 0.0  # seconds that a turn may take

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

    def end(self) -> None:
        """End the processes at once, whatever the main thread is doing."""
        for worker in self._worker_group.workers:
            if isinstance(worker.id, int):
                with suppress(ProcessLookupError):
                    os.kill(worker.id, signal.SIGKILL)

    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        self.allowed = self.join_seconds + self.patience
        super()._initialize_workers(worker_group)
        self.allowed = self.patience

    def _exit_barrier(self) -> None:
        self.allowed = ENDING_SECONDS + self.patience
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
            self._tell(failed)
            # At once, even where a process does not react any more: the checkpoint holds all that counts.
            self._pcontext.close(signal.SIGKILL)
        elif failed:
            self._remaining_restarts = 0  # the others come to the same end
        result: RunResult = super()._monitor_workers(worker_group)
        if any(code in FINAL for code in failed.values()):
            # The machine where all meet stays until the others know.
            self._exit_barrier()
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


def run_workers(
    verb: str,
    values: dict[str, Any],
    count: int,
    workers: WorkersConfig,
    *,
    threads: int,
    say: Callable[[str], None],
) -> int:
    """Run a command in `count` processes here, and wait for the other machines if there are any; the exit code.

    `values` are those of its configuration; `threads`, of a process for arithmetic on the CPU, unless OMP_NUM_THREADS
    says otherwise.  Signals are passed on to the processes, which save and end; `say` tells people of lost ones.
    Raises UserError when the machines don't meet.
    """
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # the words are ours
    variables = {
        TASK_VARIABLE: OmegaConf.to_yaml(OmegaConf.create({"verb": verb, "values": values})),
        PARENT_VARIABLE: str(os.getpid()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        # With the store shared by all attempts, new processes find the addresses of dead ones there.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGURG",  # one that has no other use: signals are handled below
    }
    relay = Relay()
    if workers.nodes == 1 and sys.platform == "linux":  # no need for a host name that can be resolved
        variables["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory(prefix="pggan-") as logs, environment(variables), handling(relay):
        try:
            meeting = meeting_point(workers)
        except KeyboardInterrupt:
            return stopped_before_meeting(say)
        spec = WorkerSpec(
            role="train",
            local_world_size=count,
            entrypoint=sys.executable,
            args=("-m", "pggan.cli.worker"),
            rdzv_handler=meeting,
            max_restarts=workers.restarts,
            monitor_interval=0.1,
            local_addr=workers.address,
        )
        agent = relay.agent = Agent(spec, DefaultLogsSpecs(log_dir=logs), workers, say)
        lost = (
            f"Lost: the machine at {workers.rendezvous}, or too many others. The same command on all machines goes on "
            "from the last checkpoint."
        )

        def give_up() -> None:
            agent.end()
            say(lost)
            shutil.rmtree(logs, ignore_errors=True)
            os._exit(EXIT_FAILED)  # the main thread waits for an answer, and can't be told

        try:
            with watching(lambda: agent.turns, lambda: agent.allowed, give_up):
                result = agent.run()
        except KeyboardInterrupt:
            if agent.get_worker_group().group_world_size is None:
                return stopped_before_meeting(say)
            raise
        except MEETING_ERRORS as error:
            if agent.get_worker_group().group_world_size is None:
                raise not_met(workers, error) from error
            say(lost)
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


class Relay:
    """Takes signals to this process to the workers of the `agent`; while there are none, they end it."""

    agent: Agent | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.agent is None:
            raise KeyboardInterrupt
        self.agent.pass_on(number)


def stopped_before_meeting(say: Callable[[str], None]) -> int:
    """Tell people, and give the exit code."""
    say("Stopped while waiting for the other machines: no process has been started. The same command begins again.")
    return EXIT_INTERRUPTED
