"""The one way to take a training step: eagerly, or by replaying a CUDA graph."""

from collections import Counter
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from torch import Tensor

from pggan.core.errors import StepOutOfMemory
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses.base import Loss, Reals
from pggan.networks.layers import ComputeOptions
from pggan.optim.reducer import GradientReducer
from pggan.optim.state import State
from pggan.training.cuda_graphs import CudaGraphs, is_out_of_memory
from pggan.training.inputs import StepInputs, StepSpec, draw_inputs, scalars_to_tensors, split_into_micro_batches
from pggan.training.step import train_step

# Eager ones of a phase, which allocate what a capture must find there: moments, workspaces, kernels.  Of a kind that
# comes later, as the lazy penalties do, the first one suffices: each releases what has been captured.
WARMUP_STEPS = 3


@dataclass(eq=False)
class Trainer:
    """The networks of one run, and how their steps are calculated."""

    state: State
    loss: Loss
    options: ComputeOptions
    _: KW_ONLY
    reducer: GradientReducer = field(default_factory=GradientReducer)
    indices: Callable[[int], Tensor | None] = lambda batch: None  # places of this rank's images; None: all
    micro_batch_size: Callable[[int], int | None] = lambda batch: None  # images per pass of a batch; None: all
    scalars_as_tensors: bool = False  # settings are tensors in eager steps, too: the bits of replayed ones
    capture: bool = False  # replay CUDA graphs

    def __post_init__(self) -> None:
        self.taken: Counter[StepSpec] = Counter()  # steps of this phase by kind
        self.graphs = CudaGraphs(self.eager_step) if self.capture else None

    def step(self, phase: Phase, reals: Reals, rng: StepRng, ema_decay: float) -> dict[str, Tensor]:
        """Update D, then G, then the averaged G; the values returned are valid until the next step.

        Raises StepOutOfMemory when the memory does not suffice: then the state is no longer worth keeping.
        """
        if phase.index != self.state.phase_index:
            self.state.reset_optimizers()  # as in the official code
            self.release_graphs()  # they hold the moments of the phase before
        self.reducer.begin_step(phase, self.state.images)
        inputs = draw_inputs(
            phase,
            reals,
            self.loss,
            rng,
            ema_decay,
            latent_size=self.state.g_ema.architecture.latent_size,
            options=self.options,
            indices=self.indices(phase.batch),
            augments=self.state.d.adaptive_p is not None,
            micro_batch_size=self.micro_batch_size(phase.batch),
        )
        metrics = self._take(inputs)
        self.taken[inputs.spec] += 1
        self.state.images += phase.batch
        self.state.phase_index = phase.index
        return metrics

    def release_graphs(self) -> None:
        """Release captured steps and their memory, because what they refer to changes."""
        self.taken.clear()
        if self.graphs is not None:
            self.graphs.clear()

    def eager_step(self, inputs: StepInputs) -> dict[str, Tensor]:
        """Take the step operation by operation."""
        inputs = scalars_to_tensors(inputs) if self.scalars_as_tensors else inputs
        micro_batches = split_into_micro_batches(inputs, self.state.g_ema.architecture.stddev_group)
        return train_step(self.state, micro_batches, self.reducer)

    def _take(self, inputs: StepInputs) -> dict[str, Tensor]:
        warm_up = self.taken[inputs.spec] == 0 or self.taken.total() < WARMUP_STEPS
        try:
            return self.eager_step(inputs) if self.graphs is None else self.graphs.take(inputs, warm_up=warm_up)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        spec, count = inputs.spec, len(inputs.latents_d)
        group = min(self.state.g_ema.architecture.stddev_group, count)
        size = min(spec.micro_batch_size or count, count)
        smaller = max(size // 2 // group, 1) * group  # in whole groups of minibatch stddev
        raise StepOutOfMemory(
            f"Out of memory at {spec.resolution}x{spec.resolution} with micro-batches of {size} images.",
            f"Give the command again with compute.micro_batch_size={smaller}, or more memory: it resumes from the last "
            "checkpoint.",
            smaller if smaller < size else None,
        )
