"""Training steps as CUDA graphs: captured once per StepSpec, replayed by a single launch."""

import gc
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from pggan.training.inputs import StepInputs, scalars_to_tensors

# As PyTorch's allocators, CUDA, cuBLAS and cuDNN say it.
NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory|ALLOC_FAILED")

Metrics = dict[str, Tensor]  # named values of one step, not reduced
Step = Callable[[StepInputs], Metrics]


class GraphPool:
    """Device memory that captured steps share: they are replayed one after another, and leave only metrics behind."""

    @cached_property
    def pool(self) -> Any:
        """The allocator's handle."""
        return torch.cuda.graph_pool_handle()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was what an error tells of, or the first one that it hides: on leaving a context, say."""
    first = error.__cause__ or error.__context__ or error
    return any(NO_MEMORY.search(str(one)) is not None for one in (error, first))


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
    torch._C._cuda_clearCublasWorkspaces()  # the workspace of the capture's stream has up to 32 MiB
    try:
        torch._C._cuda_endAllocateToPool(stream.device_index, pool)
    except RuntimeError:  # the capture came to its end, or reset() has done so: not in PyTorch 2.11
        return
    torch._C._cuda_releasePool(stream.device_index, pool)
