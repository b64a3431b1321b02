"""One training step, and the only entry that takes it: `Trainer.step`.  No I/O, no configuration, no rank.

N batch, C channels, R resolution of the phase.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from pggan.augmentation.base import Augmentation
from pggan.core.batch import Reals
from pggan.core.errors import StepOutOfMemory
from pggan.core.formatting import Log
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses.base import SIGN, Loss, LossTerms
from pggan.networks.networks import use_options
from pggan.networks.numerics import ComputeOptions
from pggan.optim.ema import update_ema
from pggan.optim.reducer import GradientReducer
from pggan.optim.state import State, Trainable
from pggan.training.cuda_graphs import CudaGraphs
from pggan.training.dry_run import DryRun, out_of_memory, reserve_memory
from pggan.training.failure import Failure, wait_for_autograd
from pggan.training.inputs import StepInputs, StepSpec, draw_inputs, scalars_to_tensors, split_into_micro_batches
from pggan.training.passes import Passes


@dataclass(eq=False)
class Trainer:
    """The networks of one run, and how their steps are calculated: eagerly, compiled, or by replaying CUDA graphs."""

    state: State
    loss: Loss
    options: ComputeOptions
    _: KW_ONLY
    augmentation: Augmentation | None = None
    passes: Passes = Passes()  # noqa: RUF009 - a tuple
    compiled_passes: Passes | None = None  # where the options say so
    reducer: GradientReducer = field(default_factory=GradientReducer)
    indices: Callable[[int], Tensor | None] = lambda batch: None  # of a batch, those of this rank; None for all
    # Images per pass by (resolution, batch), where the whole batch is too large.
    micro_batch_sizes: dict[tuple[int, int], int | None] = field(default_factory=dict)
    reset_at_phase: bool = True  # forget Adam's moments when a phase begins
    scalars_as_tensors: bool = False  # settings are tensors in eager steps, too: the bits of replayed ones
    capture: bool = False  # replay CUDA graphs
    dry_run: bool = False  # try the first step of every kind before it is taken: see `DryRun`
    allow_smaller_micro_batches: bool = True  # micro-batches may be made smaller where the memory does not suffice
    any_rank: Callable[[bool], bool] = bool  # whether something is so on any of the ranks
    slow_section: Callable[[], AbstractContextManager[None]] = nullcontext  # around what takes much longer than a step
    log: Log = print  # called with what does not work here

    def __post_init__(self) -> None:
        any_rank, log, group = self.any_rank, self._log, self.state.g_ema.architecture.stddev_group
        self.known: set[StepSpec] = set()  # kinds of steps that were taken in this phase
        self.graphs = self.dry_runs = None
        if self.capture:
            self.graphs = CudaGraphs(self._train_step, self._abort_step, any_rank, self._slow_section, log)
        if self.dry_run:
            self.dry_runs = DryRun(self._try_steps, any_rank, log, group, self.allow_smaller_micro_batches)

    def step(self, phase: Phase, reals: Reals, rng: StepRng, ema_decay: float) -> dict[str, Tensor]:
        """Update D, then G, then the averaged G; the values returned are valid until the next step.

        Raises UserError when the memory does not suffice.
        """
        if phase.index != self.state.phase_index:
            if self.reset_at_phase:
                self.state.reset_optimizers()
            self.release_graphs()  # they hold the moments of the phase before
        self.reducer.begin_step(phase, self.state.images)
        draw = partial(draw_inputs, phase, reals, self.loss, rng, ema_decay, indices=self.indices(phase.batch))
        draw = partial(draw, latent_size=self.state.g_ema.architecture.latent_size, augmentation=self.augmentation)
        kind = phase.resolution, phase.batch
        size = self.micro_batch_sizes.get(kind, self.options.micro_batch_size)
        inputs = draw(options=replace(self.options, micro_batch_size=size))
        first = inputs.spec not in self.known
        with self._slow_section() if first else nullcontext():  # it compiles, and tries kernels
            if first and self.dry_runs is not None:
                options = self.dry_runs.working_options(draw, inputs.spec.options)
                self.micro_batch_sizes[kind] = options.micro_batch_size
                self.options = replace(self.options, compiled=options.compiled)
                inputs = draw(options=options)
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

    def _take(self, inputs: StepInputs) -> dict[str, Tensor]:
        try:
            return (self.graphs and self.graphs.replay(inputs)) or self._train_step(inputs)
        except RuntimeError as error:
            if Failure.of(error).out_of_memory:
                raise StepOutOfMemory(*out_of_memory(inputs.spec).args) from error
            raise

    def _train_step(self, inputs: StepInputs, reducer: GradientReducer | None = None) -> dict[str, Tensor]:
        inputs = scalars_to_tensors(inputs) if self.scalars_as_tensors else inputs
        compiled = self.compiled_passes if inputs.spec.options.compiled else None
        return train_step(self.state, inputs, compiled or self.passes, reducer or self.reducer)

    def _try_steps(self, inputs: StepInputs) -> Failure | None:
        """Failure of two steps whose gradients stay on this rank, or None; the state is as before.

        The first one makes the moments, beside which the second one needs its memory.
        """
        if self.graphs is not None:
            self.graphs.release_memory()
        saved = {
            component: {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
            for component, tensors in self.state.state_dict().items()
        }
        failure = None
        try:
            with reserve_memory(inputs.latents_d.device):
                for _ in range(2):
                    self._train_step(inputs, GradientReducer())
        except Exception as error:
            failure = Failure.of(error)
            if not failure.out_of_memory and not inputs.spec.options.compiled:
                raise
        self._abort_step()
        self.state.load_state_dict(saved)
        torch.cuda.empty_cache()
        return failure

    def _abort_step(self) -> None:
        """Clear away what a step that did not come to its end has left."""
        for trainable in (self.state.g, self.state.d):
            trainable.zero_grad()
        self.reducer.abort_step()
        wait_for_autograd(self.state.d.network.weights[0].device)

    # What `slow_section` and `log` are is looked up at each call: open_run sets them after this trainer was made.

    def _slow_section(self) -> AbstractContextManager[None]:
        return self.slow_section()

    def _log(self, text: str) -> None:
        self.log(text)


def train_step(state: State, inputs: StepInputs, passes: Passes, reducer: GradientReducer) -> dict[str, Tensor]:
    """Update D, then G, then the averaged G; never waits for the device."""
    d, g, options, batch = state.d, state.g, inputs.spec.options, inputs.spec.batch
    micro_batches, terms = split_into_micro_batches(inputs, state.g_ema.architecture.stddev_group), []
    metrics: dict[str, Tensor] = {}

    for micro_batch in micro_batches:  # D: score reals above fakes
        with torch.no_grad(), use_options(g.network, options):
            fakes = passes.fakes_for_d(state, micro_batch)  # [N, C, R, R]
        with use_options(d.network, options):
            terms.append(backward(d, passes.d_terms(state, micro_batch, fakes), batch, reducer))  # {name: [N]}
    wait_for_d = reducer.start_all_reduce(d, batch)

    for micro_batch in micro_batches:  # G: raise the scores of fresh fakes, made while D's gradients travel
        with use_options(g.network, options):
            fakes = passes.fakes_for_g(state, micro_batch)  # [N, C, R, R]
            if micro_batch is micro_batches[0]:  # the fakes needed no D: now it moves
                metrics, terms = update(d, terms, wait_for_d(), inputs.learning_rate_d, batch), []
            with use_options(d.network, options, frozen=True):
                terms.append(backward(g, passes.g_terms(state, micro_batch, fakes), batch, reducer))  # {name: [N]}
    wait_for_g = reducer.start_all_reduce(g, batch)
    metrics |= update(g, terms, wait_for_g(), inputs.learning_rate_g, batch)

    update_ema(state.g_ema, g.network, inputs.ema_decay)
    return metrics


def backward(trainable: Trainable, terms: LossTerms, batch: int, reducer: GradientReducer) -> LossTerms:
    """Add the gradient of the terms' sums over `batch`; returns the terms without their gradient."""
    share = len(next(iter(terms.loss.values()))) / batch
    total = torch.stack([term.mean() for term in terms.loss.values()]).sum() * share
    (total if trainable.scale is None else total * trainable.scale).backward()  # type: ignore[no-untyped-call]
    sums = total.detach()[None]
    if SIGN in terms.metrics:
        sums = torch.cat([sums, terms.metrics[SIGN].mean(0, keepdim=True) * share])
    reducer.accumulate(trainable, sums, batch)
    return LossTerms({tag: term.detach() for tag, term in terms.loss.items()}, terms.metrics)


def update(
    trainable: Trainable, terms: list[LossTerms], sums: Tensor, learning_rate: float | Tensor, batch: int
) -> dict[str, Tensor]:
    """One optimizer step, unless gradient or loss are not finite; returns what to report, also per image of `terms`.

    Args: sums: of the whole `batch` [S]: the loss, and where p of the augmentation is adapted, the mean sign.
    """
    name, loss, norm = trainable.name, sums[0], trainable.gradient_norm()
    finite = torch.isfinite(norm + loss)
    trainable.prepare_update(learning_rate, finite)
    trainable.optimizer.step()
    trainable.finish_update(finite)
    about = {f"{name}/loss": loss, f"{name}/gradient_norm": norm, f"{name}/skipped": (trainable.skipped > 0).float()}
    if trainable.scale is not None:
        about[f"{name}/loss_scale"] = trainable.scale.clone()  # of the next step
    if trainable.adaptive_p is not None:
        about["augment/p"] = trainable.adaptive_p.follow(sums[1], batch)
    per_image = terms[0].loss | terms[0].metrics
    if len(terms) > 1:
        per_image = {tag: torch.cat([(one.loss | one.metrics)[tag] for one in terms]) for tag in per_image}
    return about | per_image
