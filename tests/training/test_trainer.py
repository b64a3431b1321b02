"""What a trainer does around the step: phases, the reducer, memory, and CUDA graphs as far as a CPU shows them."""

import dataclasses

import pytest
import torch

from pggan.config import TrainConfig
from pggan.config.validation import validated
from pggan.core.architecture import Precision
from pggan.core.errors import StepOutOfMemory, UserError
from pggan.core.rng import StepRng
from pggan.distributed.process_group import ProcessGroup, RankInfo
from pggan.losses.base import Reals
from pggan.losses.logistic import Logistic
from pggan.networks.layers import ComputeOptions
from pggan.optim.reducer import AllReduce, GradientReducer
from pggan.optim.state import new_state
from pggan.training import cuda_graphs
from pggan.training.build import agreed_precision, build_trainer
from pggan.training.trainer import WARMUP_STEPS, Trainer
from tests.composed import composed
from tests.definitions import ADAM, WGAN_GP
from tests.training.short_run import ARCHITECTURE, CPU, SCHEDULE, assert_alike, digest, short_run

LOGISTIC = Logistic(gamma=1.0, reg_interval=2)


def adam_steps(state):
    return max(int(moments["step"]) for moments in state.d.optimizer.state.values())


def take(trainer, phase, count=1):
    """The metrics of the last of these steps."""
    for _ in range(count):
        side = phase.resolution
        reals = Reals(torch.rand(phase.batch, 3, side, side, generator=torch.Generator().manual_seed(0)), None, None)
        metrics = trainer.step(phase, reals, StepRng(0, trainer.state.images, CPU), 0.9)
    return metrics


def trainer_of(options=ComputeOptions(), **settings):  # noqa: B008
    return Trainer(new_state(ARCHITECTURE, ADAM, 0, CPU), WGAN_GP, options, **settings)


def test_moments_are_forgotten_when_a_phase_begins_and_at_no_other_time():
    """A resumed phase keeps its moments: the phase of the last update is part of the state."""
    trainer, counts = trainer_of(), []
    for index in (0, 0, 1, 1, 1):
        take(trainer, SCHEDULE.phases[index])
        counts.append(adam_steps(trainer.state))
        trainer = Trainer(trainer.state, WGAN_GP, ComputeOptions())
    assert counts == [1, 2, 1, 2, 3]


class Recorded(GradientReducer):
    """Notes the calls."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def begin_step(self, phase, images):
        self.calls.append((phase.index, images))

    def accumulate(self, trainable, sums, batch):
        self.calls.append((trainable.name, batch))
        super().accumulate(trainable, sums, batch)


def test_the_reducer_is_told_of_each_step_and_gets_a_gradient_for_each_micro_batch():
    reducer = Recorded()
    trainer = trainer_of(ComputeOptions(micro_batch_size=1), reducer=reducer, chunk_size=lambda batch: batch // 2)
    take(trainer, SCHEDULE.phases[0], 2)  # the chunks of elastic training come first
    each = [("D", 8), ("D", 8), ("G", 8), ("G", 8)]
    assert reducer.calls == [(0, 0), *each, (0, 8), *each]


# ---- memory -----------------------------------------------------------------------------------------------


def fail_beyond(trainer, count, message="CUDA out of memory. Tried to allocate 2 GiB"):
    """Let an operation of D's fail for more than `count` images at a time."""

    def check(module, arguments):
        if len(arguments[0]) > count:
            raise RuntimeError(message)

    trainer.state.d.network.head.dense.register_forward_pre_hook(check)


@pytest.mark.fault(28)
@pytest.mark.parametrize(("size", "smaller"), [(None, 8), (12, 4), (8, 4), (4, None)])
def test_a_step_for_which_the_memory_does_not_suffice_names_the_next_smaller_size(size, smaller):
    """In whole groups of four images; D sees twice as many at once."""
    phase = dataclasses.replace(SCHEDULE.phases[0], batch=16)
    trainer = trainer_of(ComputeOptions(micro_batch_size=size))
    fail_beyond(trainer, 0)
    with pytest.raises(StepOutOfMemory, match=r"at 4x4 with micro-batches of \d+ images") as caught:
        take(trainer, phase)
    assert caught.value.smaller == smaller
    assert all(weight.grad is None for weight in trainer.state.d.network.weights)
    assert trainer.state.images == 0


def test_other_errors_of_a_step_are_raised_as_they_are():
    trainer = trainer_of()
    fail_beyond(trainer, 0, "mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        take(trainer, SCHEDULE.phases[0])


def test_a_step_that_ran_out_of_memory_half_way_counts_for_nothing():
    """The second micro-batch fails; the next step, in smaller ones, is the step."""
    phase, expected = SCHEDULE.phases[0], trainer_of(ComputeOptions(micro_batch_size=4))
    trainer, calls = trainer_of(ComputeOptions(micro_batch_size=4)), []

    def check(module, arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("can't allocate memory")

    trainer.state.g.network.stem.register_forward_pre_hook(check)
    with pytest.raises(StepOutOfMemory):
        take(trainer, phase)
    assert take(trainer, phase)["D/loss"] == take(expected, phase)["D/loss"]
    assert digest(trainer.state) == digest(expected.state)


# ---- CUDA graphs --------------------------------------------------------------------------------------------


@pytest.fixture
def captures(monkeypatch):
    """In place of `capture`: on replay it does what the function did, on the same tensors; `captures.error` fails."""

    class Captures:
        made, error = 0, None

        def __call__(self, function, memory=None):
            self.made += 1
            if self.error is not None and self.made == 2:
                raise self.error
            metrics = {}

            def replay():
                metrics.update(function())

            return replay, metrics

    found = Captures()
    monkeypatch.setattr(cuda_graphs, "capture", found)
    return found


@pytest.fixture(scope="module")
def eager():
    """The bits of eager steps whose settings are tensors, as they are in graphs."""
    return digest(short_run(scalars_as_tensors=True)[0])


@pytest.mark.slow
@pytest.mark.parametrize("loss", [WGAN_GP, LOGISTIC])
def test_replayed_steps_are_the_steps(captures, loss):
    """The settings of each replay are its own; each kind of step is captured once per phase."""
    plain, replayed = (short_run(loss, capture=capture)[0] for capture in (False, True))
    # Products with settings that are tensors may round differently: by an ulp of a step.  Adam may make a whole step
    # of that where a gradient is rounding only, hence a few exceptions.
    assert_alike(replayed, plain, 1e-4, share=0.02)
    assert captures.made == 3 * loss.reg_interval
    assert replayed.images == plain.images


def test_nothing_is_captured_before_the_step_has_run_a_few_times(captures):
    for count, made in ((WARMUP_STEPS, 0), (WARMUP_STEPS + 3, 1)):
        short_run(capture=True, images=8 * count)
        assert captures.made == made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "line", "made"),
    [
        (None, None, 3),
        (
            RuntimeError("not permitted when stream is capturing\nmore"),
            "Training continues without CUDA graphs: not",
            2,
        ),
        (torch.OutOfMemoryError("CUDA out of memory"), "CUDA graphs do not fit into the memory at 8x8: this phase", 3),
    ],
)
def test_whatever_breaks_a_capture_training_goes_on_with_the_same_bits_and_says_so_once(
    captures, error, line, made, eager
):
    captures.error = error
    state, lines = short_run(scalars_as_tensors=True, capture=True)
    assert digest(state) == eager
    assert captures.made == made
    assert [one[: len(line)] for one in lines] == [line] if line else not lines


def test_all_ranks_do_without_captures_when_one_can_not_capture(captures):
    _, lines = short_run(capture=True, any_rank=lambda _: True)
    assert lines == ["Training continues without CUDA graphs: another rank could not capture its step"]


# ---- a trainer by its configuration -------------------------------------------------------------------------


def built(*overrides, rank=0, world_size=1):
    """A trainer whose group, if it is one of several, reaches nobody: nothing is sent before the first step."""
    config = validated(TrainConfig, composed("train", [*overrides]))
    alone = ProcessGroup.single_process(CPU)
    group = alone if world_size == 1 else ProcessGroup(RankInfo(rank, world_size, rank, world_size), CPU, None)
    return build_trainer(config, ARCHITECTURE, SCHEDULE.phases, group)


def test_a_trainer_is_the_configured_one():
    compute = ["compute.kernels=reference", "compute.micro_batch_size=4", "precision=bf16"]
    trainer = built(*compute)
    assert trainer.options == ComputeOptions(dtype=torch.bfloat16, reference=True, micro_batch_size=4)
    assert (trainer.state.images, trainer.graphs, trainer.state.g.scale, trainer.indices(8)) == (0, None, None, None)
    assert built("precision=fp16").state.g.scale is not None
    assert built("elastic=true").chunk_size(8) == 4  # of two groups of four


def test_ranks_have_their_parts_of_the_batch_and_one_precision():
    trainer = built("gradients=bf16", rank=1, world_size=2)
    assert trainer.indices(8).tolist() == [1, 3, 5, 7]  # the second of two groups of minibatch stddev
    assert isinstance(trainer.reducer, AllReduce)
    group = ProcessGroup.single_process(CPU)
    for found, expected in ((["bf16", "fp16"], "fp16"), (["bf16", "bf16"], "bf16"), (["fp32"], "fp32")):
        group.all_gather_object = lambda value, found=found: found
        assert agreed_precision(Precision.auto, group) is Precision(expected)


@pytest.mark.parametrize(
    ("override", "ranks", "match"),
    [
        ("precision=tf32", 1, "does not exist on cpu"),
        ("compute.cuda_graphs=on", 1, r"compute\.cuda_graphs=on"),
        ("seed=1", 3, "2 groups of 4 images"),
    ],
)
def test_what_the_device_can_not_do_and_batches_that_can_not_be_shared_are_refused(override, ranks, match):
    with pytest.raises(UserError, match=match):
        built(override, world_size=ranks)
