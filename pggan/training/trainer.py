"""Takes training steps, eagerly or by replaying CUDA graphs."""

from collections import Counter
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor

from pggan.core.errors import StepFailed
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses import ada
from pggan.losses.base import Loss, Reals
from pggan.networks.layers import ComputeOptions
from pggan.optim.reducer import GradientReducer
from pggan.optim.state import State
from pggan.training.cuda_graphs import CapturedStep, is_out_of_memory
from pggan.training.inputs import StepInputs, StepSpec, scalars_to_tensors, split_into_micro_batches
from pggan.training.step import train_step

# The first steps of a phase are eager: they create Adam's moments and load CUDA kernels, which a capture can't do.
WARMUP_STEPS = 3


@dataclass(eq=False)
class Trainer:
    """Takes training steps, which update `state`."""

    state: State
    loss: Loss
    options: ComputeOptions
    _: KW_ONLY
    reducer: GradientReducer = field(default_factory=GradientReducer)
    indices: Callable[[int], Tensor | None] = lambda batch: None  # returns indices of this rank's images; None: all
    micro_batch_size: Callable[[int], int | None] = lambda batch: None
    scalars_as_tensors: bool = False  # whether eager steps get scalars as tensors, to round like CUDA graphs
    capture: bool = False  # whether steps run as CUDA graphs

    def __post_init__(self) -> None:
        self.taken: Counter[StepSpec] = Counter()  # {StepSpec: number of such steps in this phase}
        self.captured: dict[StepSpec, CapturedStep] = {}
        self.pool: Any = None  # All CUDA graphs share this memory pool, because only one graph runs at a time.

    def step(self, phase: Phase, reals: Reals, rng: StepRng, ema_decay: float) -> dict[str, Tensor]:
        """Take a training step; returns metrics, which the next step overwrites.

        After StepFailed, build a new trainer, because only some weights may have been updated.  With several ranks,
        start new processes, because a failed capture can break NCCL.
        """
        if phase.index != self.state.phase_index:
            self.state.reset_optimizers()  # The official code also resets Adam at the start of a phase.
            self.release_graphs()  # CUDA graphs captured before still use Adam's old moments.
        self.reducer.begin_step(phase, self.state.images)
        inputs = self.draw_inputs(phase, reals, rng, ema_decay)
        metrics = self._take(inputs)
        self.taken[inputs.spec] += 1
        self.state.images += phase.batch
        self.state.phase_index = phase.index
        return metrics

    def draw_inputs(self, phase: Phase, reals: Reals, rng: StepRng, ema_decay: float) -> StepInputs:
        """Draw the same random numbers for the whole batch on all ranks; keep only those for this rank's images."""
        count, latent_size = phase.batch, self.state.g_ema.architecture.latent_size
        due = self.loss.penalties() if rng.images // count % self.loss.reg_interval == 0 else ()
        spec = StepSpec(self.loss, due, self.options, phase.resolution, phase.missing_levels, phase.fading, phase.batch)
        interpolates = any(penalty.at == "interpolated" for penalty in due)
        inputs = StepInputs(
            spec,
            reals,
            latents_d=rng.normal("d_latents", count, latent_size),
            latents_g=rng.normal("g_latents", count, latent_size),
            mix=rng.uniform("mix", count, 1, 1, 1) if interpolates else None,
            alpha=phase.alpha,
            learning_rate_d=phase.learning_rate_d,
            learning_rate_g=phase.learning_rate_g,
            ema_decay=ema_decay,
            augment=None if self.state.d.adaptive_p is None else ada.draw(rng, count),
        )
        indices = self.indices(count)
        return inputs if indices is None else inputs.select(indices)

    def release_graphs(self) -> None:
        """Release all CUDA graphs.  Call this method before you replace tensors that the graphs use."""
        self.taken.clear()
        self.captured.clear()

    def eager_step(self, inputs: StepInputs) -> dict[str, Tensor]:
        inputs = scalars_to_tensors(inputs) if self.scalars_as_tensors else inputs
        size, group = self.micro_batch_size(inputs.spec.batch), self.state.g_ema.architecture.stddev_group
        return train_step(self.state, split_into_micro_batches(inputs, size, group), self.reducer)

    def _take(self, inputs: StepInputs) -> dict[str, Tensor]:
        spec, count = inputs.spec, len(inputs.latents_d)
        try:
            if not self.capture or self.taken[spec] == 0 or self.taken.total() < WARMUP_STEPS:
                self.captured.clear()  # Eager steps need the memory that CUDA graphs occupy.
                return self.eager_step(inputs)
            if spec not in self.captured:  # PyTorch drops an unused pool, so the first graph gets a new pool.
                self.pool = self.pool if self.captured else torch.cuda.graph_pool_handle()
                self.captured[spec] = CapturedStep(self.eager_step, inputs, self.pool)
            return self.captured[spec].replay(inputs)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # StepFailed is not raised within `except`, where the traceback would keep the step's tensors in memory.
        group = min(self.state.g_ema.architecture.stddev_group, count)
        size = min(self.micro_batch_size(spec.batch) or count, count)
        part = 2 if count == spec.batch else 4  # 4 with several ranks: each attempt costs one of few restarts
        smaller = max(size // part // group, 1) * group  # minibatch stddev needs whole groups
        eager = {"cuda_graphs": "off"} if self.capture else None  # captured steps need more memory than eager steps
        raise StepFailed(
            f"Out of memory at {spec.resolution}x{spec.resolution} with micro-batches of {size} images.",
            "Use smaller networks, or a device with more memory.  With run_dir=, training resumes.",
            {"micro_batch_size": smaller} if smaller < size else eager,
        )
