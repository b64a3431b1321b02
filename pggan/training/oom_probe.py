"""Micro-batches that the memory suffices for, found by trying the first step of every kind."""

from collections.abc import Callable
from dataclasses import replace

from pggan.core.errors import UserError
from pggan.networks.numerics import ComputeOptions
from pggan.training.inputs import StepInputs, StepSpec


class OomProbe:
    """Tries the first step of every StepSpec, and halves its micro-batches once if the memory does not suffice."""

    def __init__(
        self,
        try_step: Callable[[StepInputs], bool],
        any_rank: Callable[[bool], bool],
        log: Callable[[str], None],
    ) -> None:
        """Args: try_step: whether the memory suffices for a step, which it takes back; any_rank: as of `Trainer`."""
        self._try_step, self._any_rank, self._log = try_step, any_rank, log
        self._known: set[StepSpec] = set()

    def knows(self, spec: StepSpec) -> bool:
        """Whether such a step has been tried."""
        return spec in self._known

    def clear(self) -> None:
        """Try all steps again."""
        self._known.clear()

    def fitting_options(self, inputs: StepInputs, stddev_group: int) -> ComputeOptions:
        """The options of `inputs`, with smaller micro-batches if a step runs out of memory on any rank.

        Raises UserError when it does even so.
        """
        spec, options = inputs.spec, inputs.spec.options
        if spec not in self._known and self._any_rank(not self._try_step(inputs)):
            count = len(inputs.latents_d)
            group, size = min(stddev_group, count), min(options.micro_batch_size or count, count)
            options = replace(options, micro_batch_size=max(size // 2 // group, 1) * group)
            self._log(
                f"Out of memory at {spec.resolution}x{spec.resolution} with {size} images per pass: training goes on "
                f"with micro-batches of {options.micro_batch_size}, which give the same updates."
            )
            spec = replace(spec, options=options)
            if self._any_rank(not self._try_step(inputs._replace(spec=spec))):
                raise out_of_memory(spec)
        self._known.add(spec)
        return options


def out_of_memory(spec: StepSpec) -> UserError:
    """What to tell people when the memory does not suffice for a step."""
    size = spec.options.micro_batch_size or spec.batch
    return UserError(
        f"Out of memory at {spec.resolution}x{spec.resolution} with at most {size} images per pass.",
        "Give the command again with a smaller compute.micro_batch_size, compute.activation_checkpointing=true, or on a "
        "machine with more memory: it resumes from the last checkpoint.",
    )
