"""One training step, and the only entry that takes it: `Trainer.step`.  No I/O, no configuration, no rank.

N batch, C channels, R resolution of the phase.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace

import torch
from torch import Tensor

from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses.base import Loss, LossTerms
from pggan.networks.networks import use_options
from pggan.networks.numerics import ComputeOptions
from pggan.optim.ema import update_ema
from pggan.optim.reducer import GradientReducer
from pggan.optim.state import State, Trainable
from pggan.training.cuda_graphs import CudaGraphs
from pggan.training.inputs import StepInputs, draw_inputs, micro_batches
from pggan.training.oom_probe import OomProbe, out_of_memory
from pggan.training.passes import Passes


@dataclass(eq=False)
class Trainer:
    """The networks of one run, and how their steps are calculated: eagerly, compiled, or by replaying CUDA graphs."""

    state: State
    loss: Loss
    options: ComputeOptions
    _: KW_ONLY
    passes: Passes = Passes()  # noqa: RUF009 - a tuple
    reducer: GradientReducer = field(default_factory=GradientReducer)
    indices: Callable[[int], Tensor | None] = lambda batch: None  # of a batch, those of this rank; None for all
    # Images per pass by (resolution, batch), where the whole batch is too large.
    micro_batch_sizes: dict[tuple[int, int], int | None] = field(default_factory=dict)
    reset_at_phase: bool = True  # forget Adam's moments when a phase begins
    capture: bool = False  # replay CUDA graphs
    probe_memory: bool = False  # try the first step of every kind, to find micro-batches that the memory suffices for
    any_rank: Callable[[bool], bool] = bool  # whether something is so on any of the ranks
    log: Callable[[str], None] = print  # called with what does not work here

    def __post_init__(self) -> None:
        any_rank, log = self.any_rank, self._log
        self.graphs = CudaGraphs(self._train_step, self._abort_step, any_rank, log) if self.capture else None
        self.oom_probe = OomProbe(self._try_step, any_rank, log) if self.probe_memory else None

    def step(self, phase: Phase, reals: Reals, rng: StepRng, ema_decay: float) -> dict[str, Tensor]:
        """Update D, then G, then the averaged G; the values returned are valid until the next step.

        Raises UserError when the memory does not suffice.
        """
        if phase.index != self.state.phase_index:
            if self.reset_at_phase:
                self.state.reset_optimizers()
            self.release_graphs()  # they hold the moments of the phase before
        self.reducer.begin_step(phase, self.state.images)
        a, kind = self.state.g_ema.architecture, (phase.resolution, phase.batch)
        size = self.micro_batch_sizes.get(kind, self.options.micro_batch_size)
        options, indices = replace(self.options, micro_batch_size=size), self.indices(phase.batch)
        inputs = draw_inputs(
            phase, reals, self.loss, rng, ema_decay, latent_size=a.latent_size, options=options, indices=indices
        )
        if self.oom_probe is not None:
            inputs = self.oom_probe.fitting(inputs, a.stddev_group)
            self.micro_batch_sizes[kind] = inputs.spec.options.micro_batch_size
        metrics = None if self.graphs is None else self.graphs.replay(inputs)
        try:
            metrics = metrics or self._train_step(inputs)
        except torch.OutOfMemoryError as error:
            raise out_of_memory(inputs.spec) from error
        self.state.images += phase.batch
        self.state.phase_index = phase.index
        return metrics

    def release_graphs(self) -> None:
        """Release captured steps and their memory, because what they refer to changes."""
        if self.graphs is not None:
            self.graphs.clear()
        if self.oom_probe is not None:
            self.oom_probe.known.clear()

    def _train_step(self, inputs: StepInputs) -> dict[str, Tensor]:
        return train_step(self.state, inputs, self.passes, self.reducer)

    def _try_step(self, inputs: StepInputs) -> bool:
        """Whether the memory suffices for a step, whose gradients stay on this rank; the state is as before."""
        if self.graphs is not None:
            self.graphs.captured.clear()  # eager steps can't use their memory; captured again at their next turn
        saved = {
            part: {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
            for part, tensors in self.state.tensors().items()
        }
        try:
            train_step(self.state, inputs, self.passes, GradientReducer())
            return True
        except torch.OutOfMemoryError:
            return False
        finally:
            self._abort_step()
            self.state.load_tensors(saved)
            torch.cuda.empty_cache()

    def _abort_step(self) -> None:
        """Clear away what a step that did not come to its end has left."""
        for trainable in (self.state.g, self.state.d):
            trainable.zero_grad()
        self.reducer.abort_step()

    def _log(self, text: str) -> None:
        self.log(text)  # which may be set later


def train_step(state: State, inputs: StepInputs, passes: Passes, reducer: GradientReducer) -> dict[str, Tensor]:
    """Update D, then G, then the averaged G; never waits for the device."""
    d, g, spec, alpha = state.d, state.g, inputs.spec, inputs.alpha
    parts, terms = micro_batches(inputs, state.g_ema.architecture.stddev_group), []
    metrics: dict[str, Tensor] = {}

    for part in parts:  # D: score reals above fakes
        with torch.no_grad(), use_options(g.network, spec.options):
            fakes = passes.fakes(state, spec, part.latents_d, part.reals.labels, alpha)  # [N, C, R, R]
        with use_options(d.network, spec.options):
            d_terms = passes.d(state, spec, part.reals, fakes, alpha, mix=part.mix)  # {name: [N]}
            terms.append(backward(d, d_terms, spec.batch, reducer))
    wait_for_d = reducer.start_all_reduce(d, spec.batch)

    for number, part in enumerate(parts):  # G: raise the scores of fresh fakes, made while D's gradients travel
        with use_options(g.network, spec.options):
            fakes = passes.fakes(state, spec, part.latents_g, part.reals.fake_labels, alpha)  # [N, C, R, R]
            if number == 0:  # the fakes needed no D: now it moves
                metrics, terms = update(d, terms, wait_for_d(), inputs.learning_rate_d, "D"), []
            with use_options(d.network, spec.options, frozen=True):
                g_terms = passes.g(state, spec, part.reals, fakes, alpha)  # {name: [N]}
                terms.append(backward(g, g_terms, spec.batch, reducer))
    wait_for_g = reducer.start_all_reduce(g, spec.batch)
    metrics |= update(g, terms, wait_for_g(), inputs.learning_rate_g, "G")

    update_ema(state.g_ema, g.network, inputs.ema_decay)
    return metrics


def backward(trainable: Trainable, terms: LossTerms, batch: int, reducer: GradientReducer) -> LossTerms:
    """Add the gradient of the terms' sums over `batch`; returns the terms without their gradient."""
    share = len(next(iter(terms.loss.values()))) / batch
    total = torch.stack([term.mean() for term in terms.loss.values()]).sum() * share
    (total if trainable.scale is None else total * trainable.scale).backward()  # type: ignore[no-untyped-call]
    reducer.accumulate(trainable, total.detach(), batch)
    return LossTerms({tag: term.detach() for tag, term in terms.loss.items()}, terms.metrics)


def update(
    trainable: Trainable, terms: list[LossTerms], loss: Tensor, learning_rate: float | Tensor, name: str
) -> dict[str, Tensor]:
    """One optimizer step, unless gradient or `loss` (of the whole batch) are not finite; returns what to report."""
    norm = trainable.gradient_norm()
    finite = torch.isfinite(norm + loss)
    trainable.prepare_update(learning_rate, finite)
    trainable.optimizer.step()
    trainable.finish_update(finite)
    about = {"loss": loss, "gradient_norm": norm, "skipped": (trainable.skipped > 0).float()}
    if trainable.scale is not None:
        about["loss_scale"] = trainable.scale.clone()  # of the next step
    per_image = terms[0].loss | terms[0].metrics
    if len(terms) > 1:
        per_image = {tag: torch.cat([(part.loss | part.metrics)[tag] for part in terms]) for tag in per_image}
    return {**{f"{name}/{tag}": value for tag, value in about.items()}, **per_image}
