"""How the training step is run: as it is, compiled, or as recordings of the device's work (CUDA graphs)."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from pggan.core.errors import UserError
from pggan.core.rng import Draws
from pggan.core.schedule import Phase
from pggan.losses.base import Loss, Reals
from pggan.networks.numerics import Compute
from pggan.training.gradients.reducer import Exchange
from pggan.training.state import State
from pggan.training.step import Dials, Inputs, Passes, Stage, learn, look_at_fakes, look_at_images, make_fakes, set_up

STEPS_BEFORE_RECORDING = 3  # they allocate what a recording must find there: moments, workspaces, kernels
Watched = dict[str, Tensor]
Replay = Callable[[], None]


class Stepper:
    """Takes the training steps of one run; what it compiled or recorded is kept as long as the resolution stays."""

    def __init__(
        self,
        state: State,
        loss: Loss,
        compute: Compute,
        *,
        record: bool,
        notice: Callable[[str], None],
        micro_batches: Mapping[tuple[int, int], int] | None = None,
        rehearse: bool = False,
        exchange: Exchange | None = None,
        rows: Callable[[int], Tensor] | None = None,
        anywhere: Callable[[bool], bool] = bool,
    ) -> None:
        """Args: record: replay CUDA graphs; notice: is told when something does not work here and what is done instead.

        micro_batches: images per pass by (resolution, batch), where the whole batch is too large.
        rehearse: a stage's first step is taken back and taken again, to find passes that the memory suffices for.
        exchange: adds up the gradients of all processes; rows: from a batch's size to the positions in it that this
        process has; anywhere: whether something is so in any of the processes.
        """
        self.state = state
        self.loss = loss
        self.compute = compute
        self.record = record
        self.notice = notice
        self.micro_batches = dict(micro_batches or {})
        self.rehearse = rehearse
        self.exchange = exchange or Exchange()
        self.rows = rows
        self.anywhere = anywhere
        self.passes = compiled_passes() if compute.compiled else None
        self._resolution = 0
        self._taken: dict[Stage, int] = {}
        self._recordings: dict[Stage, Recording] = {}

    def step(self, phase: Phase, reals: Reals, draws: Draws, decay: float) -> Watched:
        """One step; returns what is worth watching, not reduced, valid until the next step.

        Raises UserError when the memory does not suffice.
        """
        self.exchange.prepare(phase, self.state.images)
        rows = None if self.rows is None else self.rows(phase.batch)
        stage, inputs, dials = set_up(
            self.state, phase, reals, self.loss, draws, decay=decay, compute=self._compute(phase), rows=rows
        )
        if stage.resolution != self._resolution:
            self.forget()
            self._resolution = stage.resolution
        if self.rehearse and stage not in self._taken:
            stage = self._rehearsed(stage, inputs, dials)
        watched = self._replayed(stage, inputs, dials)
        if watched is None:
            if stage.fading and self.compute.compiled:  # else every alpha would be compiled anew
                dials = dials._replace(alpha=torch.full((), phase.alpha, device=inputs.latents_d.device))
            try:
                watched = learn(self.state, stage, inputs, dials, passes=self.passes, exchange=self.exchange)
            except torch.OutOfMemoryError as error:
                raise self._too_large(stage) from error
        self._taken[stage] = self._taken.get(stage, 0) + 1
        self.state.images += phase.batch
        self.state.phase_index = phase.index
        return watched

    def _compute(self, phase: Phase) -> Compute:
        size = self.micro_batches.get((phase.resolution, phase.batch))
        return self.compute if size is None else replace(self.compute, micro_batch=size)

    def _rehearsed(self, stage: Stage, inputs: Inputs, dials: Dials) -> Stage:
        """`stage`, in passes that fit into the memory: halved once, if that is needed anywhere."""
        self._recordings.clear()  # they hold memory, which eager steps can't use
        copy = {
            part: {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
            for part, tensors in self.state.tensors().items()
        }
        if not self.anywhere(self._runs_out(stage, inputs, dials, copy)):
            return stage
        count = len(inputs.latents_d)
        group = min(self.state.average.architecture.stddev_group, count)
        size = min(stage.compute.micro_batch or count, count)
        smaller = max(size // 2 // group, 1) * group
        self.micro_batches[stage.resolution, stage.batch] = smaller
        self.notice(
            f"Out of memory at {stage.resolution}x{stage.resolution} with {size} images per pass: goes on with "
            f"{smaller}, which gives the same updates."
        )
        stage = replace(stage, compute=replace(stage.compute, micro_batch=smaller))
        if self.anywhere(self._runs_out(stage, inputs, dials, copy)):
            raise self._too_large(stage)
        return stage

    def _runs_out(self, stage: Stage, inputs: Inputs, dials: Dials, copy: dict[str, Watched]) -> bool:
        """Whether a step, whose gradients go nowhere, needs more memory than there is; the state is `copy` again."""
        try:
            learn(self.state, stage, inputs, dials, passes=self.passes)
            return False
        except torch.OutOfMemoryError:
            return True
        finally:
            self._tidy()
            self.state.load_tensors(copy)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _tidy(self) -> None:
        """Clear away what a step that was broken off has left."""
        for player in (self.state.g, self.state.d):
            player.network.requires_grad_(True)
            player.forget_gradient()
        self.exchange.forget()

    def _too_large(self, stage: Stage) -> UserError:
        size = stage.compute.micro_batch or stage.batch
        return UserError(
            f"Out of memory at {stage.resolution}x{stage.resolution} with at most {size} images per pass.",
            "Give the command again with a smaller compute.micro_batch, compute.recompute=true, or on a machine with "
            "more memory: it goes on from the last checkpoint.",
        )

    def forget(self) -> None:
        """Release all recordings and their memory: the optimizer's moments or the networks' levels change."""
        self._recordings.clear()
        self._taken.clear()

    def _replayed(self, stage: Stage, inputs: Inputs, dials: Dials) -> Watched | None:
        """The step as a recording, or None where there is none (yet)."""
        if not self.record or self._taken.get(stage, 0) < STEPS_BEFORE_RECORDING:
            return None
        if stage not in self._recordings and not self._recorded(stage, inputs, dials):
            return None
        return self._recordings[stage].replay(inputs, dials)

    def _recorded(self, stage: Stage, inputs: Inputs, dials: Dials) -> bool:
        """Record the step; whether that worked, in all processes."""
        reason = ""
        try:
            self._recordings[stage] = Recording(
                lambda i, d: learn(self.state, stage, i, d, passes=self.passes, exchange=self.exchange),
                inputs,
                tensors_for(dials, stage, inputs.latents_d.device),
            )
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
        if not self.anywhere(bool(reason)):
            return True
        self.record = False
        self.forget()
        self._tidy()
        self.notice(f"Goes on without CUDA graphs: {reason or 'another process could not record its step'}")
        return False


class Recording:
    """One step's work on the device, repeated by a single launch; its inputs and dials are set in place."""

    def __init__(self, learn: Callable[[Inputs, Dials], Watched], inputs: Inputs, dials: Dials) -> None:
        self.inputs: Inputs = tree_map_only(Tensor, torch.clone, inputs)
        self.dials = dials
        self._replay: Replay
        self._watched: Watched
        self._replay, self._watched = capture_cuda(lambda: learn(self.inputs, self.dials))

    def replay(self, inputs: Inputs, dials: Dials) -> Watched:
        """Take the step with these numbers."""
        for here, new in zip(tree_leaves(self.inputs), tree_leaves(inputs), strict=True):
            if isinstance(here, Tensor):
                here.copy_(new, non_blocking=True)
        for here, new in zip(self.dials, dials, strict=True):
            if isinstance(here, Tensor):
                here.fill_(new)
        self._replay()
        return self._watched


def tensors_for(dials: Dials, stage: Stage, device: torch.device) -> Dials:
    """Dials that can be turned after recording; the weight of layers that don't fade is no dial."""
    made = Dials(*(torch.tensor(value, dtype=torch.float32, device=device) for value in dials))
    return made if stage.fading else made._replace(alpha=1.0)


def capture_cuda(function: Callable[[], Any]) -> tuple[Replay, Any]:
    """Record what `function` does on the device, without doing it.

    Raises RuntimeError if that can't be done, and UserError if CUDA is of no use after trying.
    """
    torch.cuda.synchronize()
    gc.collect()  # or memory that is given back meanwhile would break the recording off
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        # Other threads (reading images ahead, NCCL's watchdog) may use CUDA meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = function()
    except RuntimeError as error:
        if torch.cuda.current_stream() != stream:  # the end of the recording failed, too
            raise UserError(
                f"Recording a CUDA graph failed: {str(error).splitlines()[0]}",
                "Give the command again with compute.cuda_graphs=off: it goes on from the last checkpoint.",
            ) from error
        raise
    return graph.replay, result


def compiled_passes() -> Passes:
    """The forward passes of D and G, each one graph per stage, kept on disk by torch for later runs."""
    torch._dynamo.config.recompile_limit = 256  # levels, fading or not, penalised or not, precisions
    compiled = partial(torch.compile, fullgraph=True, dynamic=False)
    return Passes(compiled(make_fakes), compiled(look_at_images), compiled(look_at_fakes))
