"""A dry run of the first step of every kind, which is then undone: where it fails, a way that works is found."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from pggan.core.errors import UserError
from pggan.core.formatting import Log
from pggan.networks import fused
from pggan.networks.numerics import ComputeOptions
from pggan.training.failure import Failure
from pggan.training.inputs import StepInputs, StepSpec, half_micro_batch

# Share of the memory that this process may have which a dry run does without, as `USABLE` of memory_fit.py: it begins
# with unbroken memory, and later steps find fragments.  On a card of 3 GiB they took 14 % of it four steps later.
MARGIN = 0.1


@dataclass(eq=False)
class DryRun:
    """Takes smaller micro-batches where the memory does not suffice, and eager steps where torch.compile fails.

    Ranks have fused kernels all, or none: so all take as long.
    """

    try_steps: Callable[[StepInputs], Failure | None]  # takes steps and undoes them
    any_rank: Callable[[bool], bool]  # as of `Trainer`
    log: Log
    stddev_group: int
    allow_smaller_micro_batches: bool = True  # micro-batches may be made smaller

    def working_options(self, draw: Callable[..., StepInputs], options: ComputeOptions) -> ComputeOptions:
        """`options`, or others with which all ranks can take steps with the inputs of `draw`.

        Raises UserError when the memory does not suffice for the smallest micro-batches.
        """
        while True:
            inputs = draw(options=options)
            failure = self.try_steps(inputs)
            if self.any_rank(failure is not None and not failure.out_of_memory):
                reason = failure.reason if failure else "another rank could not compile its step"
                self.log(f"Training continues without torch.compile: {reason}")
                options = replace(options, compiled=False)
            elif self.any_rank(failure is not None):
                options = replace(options, micro_batch_size=self._smaller_size(inputs))
            elif self.any_rank(not fused.KERNELS.working) and self.any_rank(fused.KERNELS.working):
                if fused.KERNELS.working:
                    fused.KERNELS.stop("they do not work on another rank")
            else:
                return options

    def _smaller_size(self, inputs: StepInputs) -> int:
        """Half of the micro-batch size, in whole groups of minibatch stddev; UserError where that is not less."""
        spec, count = inputs.spec, len(inputs.latents_d)
        group, size = min(self.stddev_group, count), min(spec.options.micro_batch_size or count, count)
        if size <= group or not self.allow_smaller_micro_batches:
            raise out_of_memory(spec)  # on all ranks
        half = half_micro_batch(size, group)
        self.log(
            f"Out of memory at {spec.resolution}x{spec.resolution} with micro-batches of {size} images: training "
            f"continues with {half}, which give the same updates."
        )
        return half


@contextmanager
def reserve_memory(device: torch.device) -> Iterator[None]:
    """Inside, MARGIN of the memory that this process may have of the current CUDA device is not to be had."""
    if device.type != "cuda":
        yield
        return
    free, total = torch.cuda.mem_get_info()
    before = torch.cuda.get_per_process_memory_fraction()
    ours = (free + torch.cuda.memory_reserved()) / total
    torch.cuda.set_per_process_memory_fraction(min(before, ours) * (1 - MARGIN))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before)


def out_of_memory(spec: StepSpec) -> UserError:
    """The error that ends a run whose memory does not suffice for a step."""
    size = spec.options.micro_batch_size or spec.batch
    return UserError(
        f"Out of memory at {spec.resolution}x{spec.resolution} with micro-batches of at most {size} images.",
        "Give the command again with a smaller compute.micro_batch_size, compute.activation_checkpointing=true, or "
        "more memory: it resumes from the last checkpoint.",
    )
