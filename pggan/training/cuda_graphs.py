"""Captures training steps as CUDA graphs, and replays them."""

import gc
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from pggan.core.errors import StepFailed
from pggan.training.inputs import StepInputs, scalars_to_tensors

# Every out-of-memory error of PyTorch, CUDA, cuBLAS and cuDNN contains one of these texts.
NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory|ALLOC_FAILED")

Metrics = dict[str, Tensor]  # A metric is a scalar, or has one value per image.
Step = Callable[[StepInputs], Metrics]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` or its cause says that memory ran out."""
    first = error.__cause__ or error.__context__ or error
    return any(NO_MEMORY.search(str(one)) is not None for one in (error, first))


class CapturedStep:
    """A training step captured as a CUDA graph."""

    def __init__(self, step: Step, inputs: StepInputs, pool: Any) -> None:
        self.inputs = scalars_to_tensors(tree_map_only(Tensor, torch.clone, inputs))
        self._replay, self._metrics = capture(lambda: step(self.inputs), pool)

    def replay(self, inputs: StepInputs) -> Metrics:
        """Take a training step with new inputs, and return its metrics, which the next replay overwrites."""
        for static, new in zip(tree_leaves(self.inputs), tree_leaves(inputs), strict=True):
            if isinstance(static, Tensor):
                static.copy_(new, non_blocking=True) if isinstance(new, Tensor) else static.fill_(new)
        self._replay()
        return self._metrics


def capture(function: Callable[[], Metrics], pool: Any = None) -> tuple[Callable[[], None], Metrics]:
    """Capture `function` as a CUDA graph; returns (a function that replays the graph, the result of `function`).

    Raises StepFailed if CUDA can't capture `function`, and RuntimeError if memory runs out.
    """
    torch.cuda.synchronize()
    gc.collect()  # A capture would fail if Python's garbage collection freed GPU memory during the capture.
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        # The mode "thread_local" lets other threads (such as NCCL's watchdog) use CUDA during the capture.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = function()
    except Exception as error:
        torch.cuda.set_stream(stream)
        graph.reset()
        # StepFailed is also raised if another rank was lost during the capture: training restarts without CUDA graphs.
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise
        problem, off = f"CUDA can't capture a step: {str(error).strip().partition(chr(10))[0]}.", {"cuda_graphs": "off"}
        raise StepFailed(problem, "Set compute.cuda_graphs=off.", off) from error
    return graph.replay, result
