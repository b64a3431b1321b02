"""Training steps as CUDA graphs: captured once per StepSpec, replayed by a single launch."""

import gc
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from pggan.core.formatting import Log
from pggan.training.failure import Failure
from pggan.training.inputs import StepInputs, StepSpec, scalars_to_tensors

# Eager ones of a phase, which allocate what a capture must find there: moments, workspaces, kernels.  Of a kind that
# comes later, as the lazy penalties do, the first one suffices: each releases what has been captured.
WARMUP_STEPS = 3
Metrics = dict[str, Tensor]  # named values of one step, not reduced
Step = Callable[[StepInputs], Metrics]


class GraphPool:
    """Device memory that captured steps share: they are replayed one after another, and leave only metrics behind."""

    @cached_property
    def pool(self) -> Any:
        """The allocator's handle."""
        return torch.cuda.graph_pool_handle()


@dataclass(eq=False)
class CudaGraphs:
    """The captured steps of a trainer, kept as long as the phase lasts."""

    step: Step
    abort_step: Callable[[], None]  # clears away what a failed capture left
    any_rank: Callable[[bool], bool]  # as of `Trainer`
    slow_section: Callable[[], AbstractContextManager[None]]  # as of `Trainer`
    log: Log
    enabled: bool = True
    fit: bool = True  # into the memory, in this phase
    seen: Counter[StepSpec] = field(default_factory=Counter)  # steps, until they are captured and after
    captured: dict[StepSpec, "CapturedStep"] = field(default_factory=dict)
    memory: GraphPool = field(default_factory=GraphPool)

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
        failure = None
        with self.slow_section():
            try:
                self.captured[inputs.spec] = CapturedStep(self.step, inputs, self.memory)
            except Exception as error:  # a collective that can't be captured raises an error of its own
                failure = Failure.of(error)
            if not self.any_rank(failure is not None):
                return True
            self.enabled = not self.any_rank(failure is not None and not failure.out_of_memory)
        self.fit = False
        self.release_memory()
        self.abort_step()
        gc.collect()  # tensors of a capture that failed can be in cycles, and would be missing from the card
        torch.cuda.empty_cache()
        self.log(self._notice(inputs.spec, failure))
        return False

    def _notice(self, spec: StepSpec, failure: Failure | None) -> str:
        if self.enabled:
            return (
                f"CUDA graphs do not fit into the memory at {spec.resolution}x{spec.resolution}: this phase continues "
                "without them."
            )
        reason = failure.reason if failure else "another rank could not capture its step"
        return f"Training continues without CUDA graphs: {reason}"


class CapturedStep:
    """One step's work on the device; its inputs are set in place before every replay."""

    def __init__(self, step: Step, inputs: StepInputs, memory: GraphPool) -> None:
        self.inputs = scalars_to_tensors(tree_map_only(Tensor, torch.clone, inputs))
        self._replay, self._metrics = capture(lambda: step(self.inputs), memory)

    def replay(self, inputs: StepInputs) -> Metrics:
        """Take the step with these inputs."""
        for static, new in zip(tree_leaves(self.inputs), tree_leaves(inputs), strict=True):
            if isinstance(static, Tensor):
                static.copy_(new, non_blocking=True) if isinstance(new, Tensor) else static.fill_(new)
        self._replay()
        return self._metrics


def capture(function: Callable[[], Metrics], memory: GraphPool | None = None) -> tuple[Callable[[], None], Metrics]:
    """Capture what `function` does on the device, without doing it; returns the replay, and what `function` returned.

    Args: memory: of the captured step, by default its own.
    Raises what `function` or CUDA raises if that can't be done, and leaves CUDA as it was.
    """
    torch.cuda.synchronize()
    gc.collect()  # memory that is given back during a capture would end it
    graph, stream, pool = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), (memory or GraphPool()).pool
    try:
        # Other threads (reading images ahead, NCCL's watchdog) may use CUDA meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = function()
    except Exception:
        undo_capture(graph, stream, pool)
        raise
    return graph.replay, result


def undo_capture(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any) -> None:
    """Go back to `stream`, and let the allocator use and release memory again, after a capture that failed."""
    torch.cuda.set_stream(stream)
    graph.reset()
    torch._C._cuda_clearCublasWorkspaces()  # that of the capture's stream has up to 32 MiB
    try:
        torch._C._cuda_endAllocateToPool(stream.device_index, pool)
    except RuntimeError:  # the capture came to its end, or reset() has done so: not in PyTorch 2.11
        return
    torch._C._cuda_releasePool(stream.device_index, pool)
