"""Memory that runs out is answered with smaller micro-batches, torch.compile that fails with eager steps."""

from contextlib import contextmanager
from functools import partial

import pytest
import torch

import pggan.training.step
from pggan.core.errors import UserError
from pggan.losses.logistic import Logistic
from pggan.networks import fused
from pggan.networks.numerics import ComputeOptions
from pggan.optim.reducer import GradientReducer
from pggan.training.dry_run import DryRun
from pggan.training.failure import Failure
from pggan.training.inputs import StepInputs, StepSpec
from pggan.training.passes import Passes
from tests.training.short_run import assert_alike, digest, short_run

IN_THE_FADE = {"first": 104, "images": 152}  # three steps of the fade and three of 8x8


FULL = Failure("CUDA out of memory", out_of_memory=True)


class Memory:
    """Suffices for passes of so many images of a batch of `count`; notes what was tried."""

    def __init__(self, images, count=16):
        self.images, self.count, self.tried = images, count, []

    def draw(self, options):
        spec = StepSpec(Logistic(gamma=1.0, reg_interval=1), (), options, 8, 0, False, self.count)
        return StepInputs(spec, None, torch.zeros(self.count, 2), None, None, 1.0, 0.1, 0.1, 0.9)

    def try_steps(self, inputs):
        size = inputs.spec.options.micro_batch_size or self.count
        self.tried.append(size)
        return None if size <= self.images else FULL


def size_found(memory, configured=None, *, group=4, any_rank=bool, allow_smaller_micro_batches=True):
    """The micro-batch size that a dry run ends with, and what it has logged."""
    lines = []
    dry_run = DryRun(memory.try_steps, any_rank, lines.append, group, allow_smaller_micro_batches)
    return dry_run.working_options(memory.draw, ComputeOptions(micro_batch_size=configured)).micro_batch_size, lines


NO, YES = False, True


@pytest.mark.parametrize(
    ("working", "others", "tries", "lines"),
    [
        (True, [NO, NO, NO], 1, 0),
        (True, [NO, NO, YES, NO] * 2, 2, 1),  # now without, which may take more memory
        (False, [NO, NO, NO, YES, NO, NO, YES, NO], 2, 0),  # the kernel that failed here has said so
        (False, [NO, NO, YES, NO], 1, 0),
    ],
)
def test_fused_kernels_are_those_of_all_ranks_or_of_none(monkeypatch, working, others, tries, lines):
    """Others: what another rank answers: not compiled? out of memory? kernels that do not work? or that work?"""
    kernels, said, memory, answers = fused.Kernels(), [], Memory(16), iter(others)
    kernels.working, kernels.log = working, said.append
    monkeypatch.setattr(fused, "KERNELS", kernels)
    dry_run = DryRun(memory.try_steps, lambda here: next(answers) or here, said.append, 4)
    dry_run.working_options(memory.draw, ComputeOptions())
    assert (len(memory.tried), len(said), list(answers)) == (tries, lines, [])
    assert kernels.working == (working and YES not in others)


@pytest.mark.fault(28)
@pytest.mark.parametrize(
    ("count", "configured", "group", "tried"),
    [
        (16, None, 4, [16, 8]),
        (16, None, 4, [16, 8, 4]),
        (12, None, 4, [12, 4]),
        (8, 8, 4, [8, 4]),
        (6, None, 1, [6, 3, 1]),
        (20, 12, 4, [12, 4]),
        (40, 24, 4, [24, 12, 4]),
    ],
)
def test_micro_batches_are_halved_in_whole_groups_of_minibatch_stddev_until_they_fit(count, configured, group, tried):
    memory = Memory(tried[-1], count)
    size, lines = size_found(memory, configured, group=group)
    assert (size, memory.tried) == (tried[-1], tried)
    assert len(lines) == len(tried) - 1


@pytest.mark.fault(28)
@pytest.mark.parametrize(
    ("count", "group", "allow_smaller_micro_batches", "most"), [(6, 6, True, 6), (2, 4, True, 2), (16, 4, False, 16)]
)
def test_less_than_one_group_is_not_tried_nor_anything_where_micro_batches_are_fixed(
    count, group, allow_smaller_micro_batches, most
):
    memory = Memory(0, count)
    with pytest.raises(UserError, match=f"with micro-batches of at most {most} images"):
        size_found(memory, group=group, allow_smaller_micro_batches=allow_smaller_micro_batches)
    assert memory.tried == [most]


def test_all_ranks_take_smaller_micro_batches_when_one_runs_out_of_memory():
    """This rank has enough; another one has not, for the whole batch."""
    memory, answers = Memory(100, 8), iter([False, True, False, False, False])
    size, _ = size_found(memory, any_rank=lambda here: here or next(answers))
    assert (size, memory.tried) == (4, [8, 4])


@pytest.mark.parametrize("options", [{}, {"compiled": True}])
def test_steps_that_are_compiled_or_need_memory_have_a_dry_run_once_in_each_phase(monkeypatch, options):
    train_step, taken = pggan.training.step.train_step, []

    def counted(state, inputs, passes, reducer):
        taken.append(inputs.spec.resolution)
        return train_step(state, inputs, passes, reducer)

    monkeypatch.setattr(pggan.training.step, "train_step", counted)
    monkeypatch.setattr("tests.training.short_run.compiled_passes", Passes)
    short_run(Logistic(gamma=1.0, reg_interval=2), ComputeOptions(**options), first=112, images=144, dry_run=True)
    assert len(taken) == 4 + 2 * 2 * 2  # four steps, and two more of each kind: two phases, with and without R1


@pytest.mark.slow
@pytest.mark.fault(28)
def test_out_of_memory_at_the_second_step_is_answered_by_smaller_micro_batches_with_the_same_result(monkeypatch):
    plain, _ = short_run(**IN_THE_FADE)
    train_step, taken = pggan.training.step.train_step, []

    def scarce(state, inputs, passes, reducer):
        taken.append((inputs.spec.fading, inputs.spec.options.micro_batch_size))
        metrics = train_step(state, inputs, passes, reducer)  # both networks have moved when memory runs out
        if inputs.spec.fading and inputs.spec.options.micro_batch_size is None and len(taken) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return metrics

    monkeypatch.setattr(pggan.training.step, "train_step", scarce)
    state, lines = short_run(**IN_THE_FADE, dry_run=True)
    assert lines == [
        "Out of memory at 8x8 with micro-batches of 8 images: training continues with 4, which give the same updates."
    ]
    # A fading and a stable phase of a resolution have one size: of the first, the memory is about that of the second.
    assert taken == [*[(True, None)] * 2, *[(True, 4)] * (2 + 3), *[(False, 4)] * (2 + 3)]
    assert_alike(state, plain, 1e-3, share=0.02)  # Adam turns rounding into signs


def test_a_dry_run_changes_nothing():
    plain, _ = short_run(**IN_THE_FADE)
    tried, lines = short_run(**IN_THE_FADE, dry_run=True)
    assert digest(tried) == digest(plain)
    assert lines == []


class Recorded(GradientReducer):
    """Counts the gradients that it gets."""

    accumulated = 0

    def accumulate(self, trainable, loss, batch):
        self.accumulated += 1
        super().accumulate(trainable, loss, batch)


def test_gradients_of_a_dry_run_are_sent_to_no_other_rank():
    reducer = Recorded()
    short_run(images=24, dry_run=True, reducer=reducer)
    assert reducer.accumulated == 3 * 2  # those of D and G in three steps


@pytest.mark.fault(28)
@pytest.mark.parametrize(("dry_run", "most"), [(True, 4), (False, 8)])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        torch.AcceleratorError("CUDA error: out of memory"),
    ],
)
def test_out_of_memory_ends_the_run_when_smaller_micro_batches_do_not_help(monkeypatch, error, dry_run, most):
    def full(*_):
        raise error

    monkeypatch.setattr(pggan.training.step, "train_step", full)
    with pytest.raises(UserError, match=f"Out of memory at 4x4 with micro-batches of at most {most} images") as caught:
        short_run(dry_run=dry_run)
    assert "compute.micro_batch_size" in caught.value.remedy


# ---- torch.compile that fails ----------------------------------------------------------------------------


def compiled_by(backend):
    """`torch.compile` with a backend of our own."""
    return partial(torch.compile, backend=backend)


def broken(*_):
    raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.\nmore")


@pytest.mark.slow
def test_without_a_compiler_training_goes_on_eagerly_and_says_so_once(monkeypatch):
    monkeypatch.setattr(torch, "compile", compiled_by(broken))
    options = ComputeOptions(jvp=True, compiled=True)
    state, lines = short_run(options=options, **IN_THE_FADE, dry_run=True)
    reason = "RuntimeError: Failed to find C compiler. Please specify via CC environment variable."
    assert lines == [f"Training continues without torch.compile: {reason}"]
    assert digest(state) == digest(short_run(options=ComputeOptions(jvp=True), **IN_THE_FADE)[0])
    torch._dynamo.reset()


def test_a_pass_that_fails_after_d_has_moved_is_taken_back(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("ptxas fatal: unknown target")

    monkeypatch.setattr("tests.training.short_run.compiled_passes", lambda: Passes(g=fails))
    state, lines = short_run(options=ComputeOptions(compiled=True), images=24, dry_run=True)
    assert lines == ["Training continues without torch.compile: ptxas fatal: unknown target"]
    assert digest(state) == digest(short_run(images=24)[0])


def test_memory_that_compiled_passes_run_out_of_is_answered_by_smaller_micro_batches(monkeypatch):
    def full(state, spec, *arguments, **options):
        if spec.options.micro_batch_size is None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Passes().d(state, spec, *arguments, **options)

    monkeypatch.setattr("tests.training.short_run.compiled_passes", lambda: Passes(d=full))
    _, lines = short_run(options=ComputeOptions(compiled=True), images=24, dry_run=True)
    assert len(lines) == 1
    assert "continues with 4" in lines[0]


def test_an_error_of_an_eager_step_is_not_hidden(monkeypatch):
    def wrong(*_):
        raise ValueError("a mistake in the step")

    monkeypatch.setattr(pggan.training.step, "train_step", wrong)
    with pytest.raises(ValueError, match="a mistake"):
        short_run(dry_run=True)


# ---- what is long ----------------------------------------------------------------------------------------


def test_the_first_step_of_every_kind_is_announced_as_slow(monkeypatch):
    """It compiles and tries kernels, wherever in a phase it comes; lazy penalties make a second kind."""
    announced, slow = [], []

    @contextmanager
    def slow_section():
        announced.append(True)
        yield
        announced.pop()

    train_step = pggan.training.step.train_step

    def noted(*arguments):
        slow.append(bool(announced))
        return train_step(*arguments)

    monkeypatch.setattr(pggan.training.step, "train_step", noted)
    short_run(Logistic(gamma=1.0, reg_interval=4), images=40, slow_section=slow_section)
    assert slow == [True, True, False, False, False]
    assert not announced
