"""Training steps as CUDA graphs: captured once per StepSpec, replayed by a single launch."""

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from pggan.core.errors import UserError
from pggan.training.inputs import StepInputs, StepSpec

WARMUP_STEPS = 3  # eager ones, which allocate what a capture must find there: moments, workspaces, kernels
Metrics = dict[str, Tensor]  # named values of one step, not reduced
Step = Callable[[StepInputs], Metrics]


@dataclass(eq=False)
class CudaGraphs:
    """The captured steps of a trainer, kept as long as the phase lasts."""

    step: Step
    abort_step: Callable[[], None]  # clears away what a failed capture left
    any_rank: Callable[[bool], bool]  # as of `Trainer`
    log: Callable[[str], None]
    enabled: bool = True
    seen: Counter[StepSpec] = field(default_factory=Counter)  # steps, until they are captured and after
    captured: dict[StepSpec, "CapturedStep"] = field(default_factory=dict)

    def replay(self, inputs: StepInputs) -> Metrics | None:
        """Take the step as one launch; None where it is to be taken eagerly: in the warm-up, or if capture fails."""
        spec = inputs.spec
        self.seen[spec] += 1
        if not self.enabled or self.seen[spec] <= WARMUP_STEPS:
            return None
        if spec not in self.captured and not self._capture(inputs):
            return None
        return self.captured[spec].replay(inputs)

    def clear(self) -> None:
        """Release all captured steps, and warm up again."""
        self.seen.clear()
        self.captured.clear()

    def _capture(self, inputs: StepInputs) -> bool:
        """Capture the step; whether that worked, on all ranks."""
        reason = ""
        try:
            self.captured[inputs.spec] = CapturedStep(self.step, inputs)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
        if not self.any_rank(bool(reason)):
            return True
        self.enabled = False
        self.clear()
        self.abort_step()
        self.log(f"Training continues without CUDA graphs: {reason or 'another rank could not capture its step'}")
        return False


class CapturedStep:
    """One step's work on the device; its inputs are set in place before every replay."""

    def __init__(self, step: Step, inputs: StepInputs) -> None:
        self.inputs = static_inputs(inputs)
        self._replay, self._metrics = capture(lambda: step(self.inputs))

    def replay(self, inputs: StepInputs) -> Metrics:
        """Take the step with these inputs."""
        for static, new in zip(tree_leaves(self.inputs), tree_leaves(inputs), strict=True):
            if isinstance(static, Tensor):
                static.copy_(new, non_blocking=True) if isinstance(new, Tensor) else static.fill_(new)
        self._replay()
        return self._metrics


def static_inputs(inputs: StepInputs) -> StepInputs:
    """`inputs` as tensors of their own, which stay where they are; alpha stays 1.0 unless layers are fading in."""
    static: StepInputs = tree_map_only(Tensor, torch.clone, inputs)
    device = inputs.latents_d.device
    settings = {
        name: torch.as_tensor(getattr(static, name), dtype=torch.float32, device=device)
        for name in ("alpha", "learning_rate_d", "learning_rate_g", "ema_decay")
        if name != "alpha" or inputs.spec.fading
    }
    return static._replace(**settings)  # type: ignore[arg-type]


def capture(function: Callable[[], Metrics]) -> tuple[Callable[[], None], Metrics]:
    """Capture what `function` does on the device, without doing it; returns the replay, and what `function` returned.

    Raises RuntimeError if that can't be done, and UserError if CUDA is unusable after the attempt.
    """
    torch.cuda.synchronize()
    gc.collect()  # memory that is given back during a capture would end it
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        # Other threads (reading images ahead, NCCL's watchdog) may use CUDA meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = function()
    except RuntimeError as error:
        if torch.cuda.current_stream() != stream:  # the end of the capture failed, too
            raise UserError(
                f"Capturing a CUDA graph failed: {str(error).splitlines()[0]}",
                "Give the command again with compute.cuda_graphs=off: it resumes from the last checkpoint.",
            ) from error
        raise
    return graph.replay, result
