"""The ways of taking a training step that `pggan bench` compares, each with a state of its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from pggan.bench.reference_step import Textbook
from pggan.config import BenchConfig, OptimizerConfig, Precision, Switch
from pggan.core.architecture import Architecture
from pggan.core.errors import UserError
from pggan.core.rng import Draws
from pggan.core.schedule import Phase
from pggan.distributed.devices import choose_compute
from pggan.losses.base import Loss, Reals
from pggan.networks.numerics import Compute
from pggan.training.state import new_state
from pggan.training.step_runner import STEPS_BEFORE_RECORDING, Stepper

ADAM = OptimizerConfig(beta1=0.0, beta2=0.99, epsilon=1e-8, reset_at_phase=True)
TEXTBOOK = "textbook"
DECAY = 0.999


class Memory:
    """What one of several ways holds of a CUDA device: all that was allocated inside `counted` and not released."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.held = self.peak = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Inside, what is allocated and released is this way's; `peak` is the most that it held so far."""
        if self.device.type != "cuda":
            yield
            return
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        yield
        self.peak = max(self.peak, self.held + torch.cuda.max_memory_allocated(self.device) - before)
        self.held += torch.cuda.memory_allocated(self.device) - before


class Way(ABC):
    """One way of taking steps; all of them get the same images and random numbers."""

    warmup = 0  # steps that it needs before it is as fast as it gets
    layout: torch.memory_format  # of the images it is given

    def __init__(self, precision: Precision, compute: Compute, device: torch.device) -> None:
        self.precision = precision
        self.compute = compute
        self.memory = Memory(device)
        self.notices: list[str] = []  # of the stage that is measured

    @abstractmethod
    def begin(self) -> None:
        """Forget what belongs to one stage: moments, recordings, notices."""

    @abstractmethod
    def step(self, phase: Phase, reals: Reals, draws: Draws) -> None:
        """Take one step."""


class TrainersWay(Way):
    """The trainer's own step; `notice` is told when it can't be taken as asked for."""

    layout = torch.channels_last

    def __init__(
        self,
        architecture: Architecture,
        loss: Loss,
        device: torch.device,
        *,
        precision: Precision,
        compute: Compute,
        record: bool,
        notice: Callable[[str], None],
    ) -> None:
        super().__init__(precision, compute, device)
        self.loss, self.notice, self.record = loss, notice, record
        self.warmup = STEPS_BEFORE_RECORDING + 1 if record else 0
        with self.memory.counted():
            self.state = new_state(architecture, ADAM, 0, device, half=precision is Precision.fp16)
        self.stepper = self._new_stepper()

    def _new_stepper(self) -> Stepper:
        def notice(text: str) -> None:
            self.notices.append(text)
            self.notice(text)

        return Stepper(self.state, self.loss, self.compute, record=self.record, notice=notice)

    def begin(self) -> None:
        self.state.reset_optimizers()
        self.stepper.forget()
        self.notices.clear()
        self.stepper = self._new_stepper()  # one that had to do without recordings would do so at other stages, too

    def step(self, phase: Phase, reals: Reals, draws: Draws) -> None:
        self.stepper.step(phase, reals, draws, DECAY)


class TextbookWay(Way):
    """The textbook's step, in plain float32."""

    layout = torch.contiguous_format

    def __init__(self, architecture: Architecture, loss: Loss, device: torch.device) -> None:
        super().__init__(Precision.fp32, Compute(), device)
        self.loss = loss
        with self.memory.counted():
            self.textbook = Textbook(architecture, ADAM, 0, device)

    def begin(self) -> None:
        for adam in (self.textbook.adam_g, self.textbook.adam_d):
            adam.state.clear()

    def step(self, phase: Phase, reals: Reals, draws: Draws) -> None:
        self.textbook.step(phase, reals, self.loss, draws, decay=DECAY)


def make_ways(
    config: BenchConfig, architecture: Architecture, loss: Loss, device: torch.device, notice: Callable[[str], None]
) -> dict[str, Way]:
    """The ways by name, the textbook's last; raises UserError, before anything is made, for what `device` can't do.

    Args: notice: is told when a way could not be gone as asked for.
    """
    chosen = {}
    for name, (precision, options) in config.ways().items():
        record = options.cuda_graphs is Switch.on
        if record and device.type != "cuda":
            raise UserError(
                f"modes={config.modes}: there are no CUDA graphs on {device.type}.", "Take modes=[eager] or [compiled]."
            )
        chosen[name] = (precision, choose_compute(precision, options, device), record)
    ways: dict[str, Way] = {}
    for name, (precision, compute, record) in chosen.items():

        def tell(text: str, name: str = name) -> None:
            notice(f"{name}: {text}")

        ways[name] = TrainersWay(
            architecture, loss, device, precision=precision, compute=compute, record=record, notice=tell
        )
    return ways | ({TEXTBOOK: TextbookWay(architecture, loss, device)} if config.against else {})
