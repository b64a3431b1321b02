"""The parts of the kit, in their order: what later parts rely on comes first."""

from benchmarks.first_gpu import (
    captures,
    collectives,
    convolutions,
    kernels,
    memory,
    metrics,
    parity,
    rates,
    resume,
    stages,
    streaming,
)
from benchmarks.first_gpu.context import Part

PARTS = (
    Part("rates", rates.items, rates.judge),
    Part("gradients", parity.items, parity.judge),
    Part("capture", captures.items, captures.judge, cuda_only=True),
    Part("resume", resume.items, resume.judge),
    Part("memory", memory.items, memory.judge, cuda_only=True),
    Part("failure", captures.failing_items, captures.judge_failure, cuda_only=True),
    Part("convolutions", convolutions.items, convolutions.judge),
    Part("stages", stages.items, stages.judge),
    Part("kernels", kernels.items, kernels.judge),
    Part("streaming", streaming.items, streaming.judge),
    Part("collectives", collectives.items, collectives.judge, cuda_only=True),
    Part("compiled", stages.compiled_items, stages.judge_compiled, cuda_only=True),
    Part("metrics", metrics.items, metrics.judge),
)
