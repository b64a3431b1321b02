"""Micro-batches that the memory suffices for, found by trying the first step of every kind."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pggan.core.errors import UserError
from pggan.training.inputs import StepInputs, StepSpec


@dataclass(eq=False)
class OomProbe:
    """Tries the first step of every StepSpec, and halves its micro-batches once if the memory does not suffice."""

    try_step: Callable[[StepInputs], bool]  # whether the memory suffices for a step, which it takes back
    any_rank: Callable[[bool], bool]  # as of `Trainer`
    log: Callable[[str], None]
    known: set[StepSpec] = field(default_factory=set)  # not to be tried again

    def fitting(self, inputs: StepInputs, stddev_group: int) -> StepInputs:
        """The inputs, with smaller micro-batches if a step runs out of memory on any rank; UserError if that fails."""
        spec = inputs.spec
        if spec in self.known:
            return inputs
        if self.any_rank(not self.try_step(inputs)):
            count = len(inputs.latents_d)
            group, size = min(stddev_group, count), min(spec.options.micro_batch_size or count, count)
            half = max(size // 2 // group, 1) * group
            self.log(
                f"Out of memory at {spec.resolution}x{spec.resolution} with {size} images per pass: training continues "
                f"with micro-batches of {half}, which give the same updates."
            )
            spec = replace(spec, options=replace(spec.options, micro_batch_size=half))
            inputs = inputs._replace(spec=spec)
            if self.any_rank(not self.try_step(inputs)):
                raise out_of_memory(spec)
        self.known.add(spec)
        return inputs


def out_of_memory(spec: StepSpec) -> UserError:
    """The error that ends a run whose memory does not suffice for a step."""
    size = spec.options.micro_batch_size or spec.batch
    return UserError(
        f"Out of memory at {spec.resolution}x{spec.resolution} with at most {size} images per pass.",
        "Give the command again with a smaller compute.micro_batch_size, compute.activation_checkpointing=true, or "
        "more memory: it resumes from the last checkpoint.",
    )
