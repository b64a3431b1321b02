"""The one way to take a training step: eagerly, or by replaying a CUDA graph."""

import gc
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace

import torch
from torch import Tensor

from pggan.augmentation.ada import Ada
from pggan.core.errors import StepOutOfMemory
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.core.text import Log
from pggan.losses.base import Loss, Reals
from pggan.networks.layers import ComputeOptions
from pggan.optim.reducer import GradientReducer
from pggan.optim.state import State
from pggan.training.cuda_graphs import CapturedStep, GraphPool, Metrics, is_out_of_memory
from pggan.training.inputs import (
    StepInputs,
    StepSpec,
    draw_inputs,
    half_micro_batch,
    scalars_to_tensors,
    split_into_micro_batches,
)
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
    augmentation: Ada | None = None
    reducer: GradientReducer = field(default_factory=GradientReducer)
    indices: Callable[[int], Tensor | None] = lambda batch: None  # places of this rank's images; None: all
    chunk_size: Callable[[int], int | None] = lambda batch: None  # images per pass of a batch; None: as `options` say
    scalars_as_tensors: bool = False  # settings are tensors in eager steps, too: the bits of replayed ones
    capture: bool = False  # replay CUDA graphs
    any_rank: Callable[[bool], bool] = bool  # whether something is so on any of the ranks
    slow_section: Callable[[], AbstractContextManager[None]] = nullcontext  # around what takes much longer than a step
    log: Log = print  # called with what does not work here

    def __post_init__(self) -> None:
        self.known: set[StepSpec] = set()  # kinds of steps that were taken in this phase
        self.graphs = CudaGraphs(self) if self.capture else None

    def step(self, phase: Phase, reals: Reals, rng: StepRng, ema_decay: float) -> dict[str, Tensor]:
        """Update D, then G, then the averaged G; the values returned are valid until the next step.

        Raises StepOutOfMemory when the memory does not suffice: then the state is no longer worth keeping.
        """
        if phase.index != self.state.phase_index:
            self.state.reset_optimizers()  # as in the official code
            self.release_graphs()  # they hold the moments of the phase before
        self.reducer.begin_step(phase, self.state.images)
        size = self.chunk_size(phase.batch) or self.options.micro_batch_size
        inputs = draw_inputs(
            phase,
            reals,
            self.loss,
            rng,
            ema_decay,
            latent_size=self.state.g_ema.architecture.latent_size,
            options=replace(self.options, micro_batch_size=size),
            indices=self.indices(phase.batch),
            augmentation=self.augmentation,
        )
        with self.slow_section() if inputs.spec not in self.known else nullcontext():  # kernels are compiled and tried
            self.known.add(inputs.spec)
            metrics = self._take(inputs)
        self.state.images += phase.batch
        self.state.phase_index = phase.index
        return metrics

    def release_graphs(self) -> None:
        """Release captured steps and their memory, because what they refer to changes."""
        self.known.clear()
        if self.graphs is not None:
            self.graphs.clear()

    def eager_step(self, inputs: StepInputs) -> dict[str, Tensor]:
        """Take the step operation by operation."""
        inputs = scalars_to_tensors(inputs) if self.scalars_as_tensors else inputs
        micro_batches = split_into_micro_batches(inputs, self.state.g_ema.architecture.stddev_group)
        return train_step(self.state, micro_batches, self.reducer)

    def abort_step(self) -> None:
        """Clear away what a step that did not come to its end has left."""
        for trainable in (self.state.g, self.state.d):
            trainable.zero_grad()
        self.reducer.abort_step()

    def _take(self, inputs: StepInputs) -> dict[str, Tensor]:
        try:
            return (self.graphs and self.graphs.replay(inputs)) or self.eager_step(inputs)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        self.abort_step()
        torch.cuda.empty_cache()
        spec, count, group = inputs.spec, len(inputs.latents_d), self.state.g_ema.architecture.stddev_group
        size = min(spec.options.micro_batch_size or count, count)
        smaller = half_micro_batch(size, min(group, count))
        raise StepOutOfMemory(
            f"Out of memory at {spec.resolution}x{spec.resolution} with micro-batches of {size} images.",
            f"Give the command again with compute.micro_batch_size={smaller}, or more memory: it resumes from the last "
            "checkpoint.",
            smaller if smaller < size else None,
        )


class CudaGraphs:
    """The captured steps of a trainer, kept as long as the phase lasts."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.enabled, self.fit = True, True  # captures work here; they fit into the memory, in this phase
        self.seen: Counter[StepSpec] = Counter()  # steps, until they are captured and after
        self.captured: dict[StepSpec, CapturedStep] = {}
        self.memory = GraphPool()

    def replay(self, inputs: StepInputs) -> Metrics | None:
        """Take the step as one launch; None where it is to be taken eagerly: in the warm-up, or if capture fails."""
        spec = inputs.spec
        self.seen[spec] += 1
        if not self.enabled or not self.fit:
            return None
        if self.seen[spec] == 1 or self.seen.total() <= WARMUP_STEPS:
            self.release_memory()
            return None
        if spec not in self.captured and not self._capture(inputs):
            return None
        return self.captured[spec].replay(inputs)

    def release_memory(self) -> None:
        """Release captured steps, whose memory eager ones can't use; each is captured again at its next turn."""
        self.captured.clear()
        self.memory = GraphPool()  # the allocator forgets a pool that no graph uses

    def clear(self) -> None:
        """Release all captured steps, and warm up again."""
        self.seen.clear()
        self.release_memory()
        self.fit = True

    def _capture(self, inputs: StepInputs) -> bool:
        """Capture the step; whether that worked, on all ranks."""
        failure, no_memory, any_rank = None, False, self.trainer.any_rank
        with self.trainer.slow_section():
            try:
                self.captured[inputs.spec] = CapturedStep(self.trainer.eager_step, inputs, self.memory)
            except Exception as error:  # a collective that can't be captured raises an error of its own
                failure, no_memory = str(error).strip().partition("\n")[0], is_out_of_memory(error)
            if not any_rank(failure is not None):
                return True
            self.enabled = not any_rank(failure is not None and not no_memory)
        self.fit = False
        self.release_memory()
        self.trainer.abort_step()
        gc.collect()  # tensors of a capture that failed can be in cycles, and would be missing from the card
        torch.cuda.empty_cache()
        side, reason = inputs.spec.resolution, failure or "another rank could not capture its step"
        notice = f"CUDA graphs do not fit into the memory at {side}x{side}: this phase continues without them."
        self.trainer.log(notice if self.enabled else f"Training continues without CUDA graphs: {reason}")
        return False
