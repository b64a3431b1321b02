"""Memory that runs out is answered once, with smaller micro-batches that give the same updates."""

import pytest
import torch

import pggan.training.step
from pggan.core.errors import UserError
from pggan.losses.logistic import Logistic
from pggan.networks.numerics import ComputeOptions
from pggan.optim.reducer import GradientReducer
from pggan.training.inputs import StepInputs, StepSpec
from pggan.training.oom_probe import OomProbe
from tests.training.short_run import assert_alike, digest, short_run

IN_THE_FADE = {"first": 104, "images": 152}  # three steps of the fade and three of 8x8


def inputs_of(count, micro_batch_size=None, resolution=8):
    spec = StepSpec(
        Logistic(gamma=1.0, reg_interval=1),
        (),
        ComputeOptions(micro_batch_size=micro_batch_size),
        resolution=resolution,
        missing_levels=0,
        fading=False,
        batch=count,
    )
    return StepInputs(spec, None, torch.zeros(count, 2), None, None, 1.0, 0.1, 0.1, 0.9)


class Memory:
    """Suffices for passes of so many images; notes what was tried."""

    def __init__(self, images):
        self.images, self.tried = images, []

    def try_step(self, inputs):
        size = inputs.spec.options.micro_batch_size or len(inputs.latents_d)
        self.tried.append(size)
        return size <= self.images


def probe_of(memory, any_rank=bool):
    lines = []
    return OomProbe(memory.try_step, any_rank, lines.append), lines


@pytest.mark.fault(28)
@pytest.mark.parametrize(
    ("count", "configured", "group", "half"),
    [(16, None, 4, 8), (12, None, 4, 4), (8, 8, 4, 4), (16, 8, 4, 4), (6, None, 1, 3), (20, 12, 4, 4), (40, 24, 4, 12)],
)
def test_micro_batches_are_halved_in_whole_groups_of_minibatch_stddev(count, configured, group, half):
    memory = Memory(half)
    probe, lines = probe_of(memory)
    assert probe.fitting(inputs_of(count, configured), group).spec.options.micro_batch_size == half
    assert memory.tried == [configured or count, half]
    assert len(lines) == 1


@pytest.mark.fault(28)
@pytest.mark.parametrize(("count", "group"), [(6, 6), (2, 4)])
def test_less_than_one_group_is_not_tried(count, group):
    with pytest.raises(UserError, match=f"with at most {count} images per pass"):
        probe_of(Memory(0))[0].fitting(inputs_of(count), group)


def test_each_kind_of_step_is_tried_once_until_a_phase_begins():
    memory = Memory(100)
    probe, lines = probe_of(memory)
    one, other = inputs_of(8), inputs_of(8, resolution=16)
    assert [probe.fitting(inputs, 4) is inputs for inputs in (one, one, other, one)] == [True] * 4
    assert len(memory.tried) == 2
    probe.known.clear()
    probe.fitting(one, 4)
    assert len(memory.tried) == 3
    assert lines == []


def test_all_ranks_take_smaller_micro_batches_when_one_runs_out_of_memory():
    """This rank has enough; another one has not, for the whole batch."""
    memory, answers = Memory(100), iter([True, False])
    probe, _ = probe_of(memory, any_rank=lambda here: here or next(answers))
    assert probe.fitting(inputs_of(8), 4).spec.options.micro_batch_size == 4
    assert memory.tried == [8, 4]


@pytest.mark.slow
@pytest.mark.fault(28)
def test_out_of_memory_is_answered_once_by_smaller_micro_batches_with_the_same_result(monkeypatch):
    plain, _ = short_run(**IN_THE_FADE)
    train_step, taken = pggan.training.step.train_step, []

    def scarce(state, inputs, passes, reducer):
        taken.append((inputs.spec.fading, inputs.spec.options.micro_batch_size))
        metrics = train_step(state, inputs, passes, reducer)  # both networks have moved when memory runs out
        if inputs.spec.fading and inputs.spec.options.micro_batch_size is None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return metrics

    monkeypatch.setattr(pggan.training.step, "train_step", scarce)
    state, lines = short_run(**IN_THE_FADE, probe_memory=True)
    assert lines == [
        "Out of memory at 8x8 with 8 images per pass: training continues with micro-batches of 4, which give the same "
        "updates."
    ]
    # A fading and a stable phase of a resolution have one size: of the first, the memory is about that of the second.
    assert taken == [(True, None), *[(True, 4)] * 4, *[(False, 4)] * 4]
    assert_alike(state, plain, 1e-3, share=0.02)  # Adam turns rounding into signs


def test_a_probe_changes_nothing():
    plain, _ = short_run(**IN_THE_FADE)
    probed, lines = short_run(**IN_THE_FADE, probe_memory=True)
    assert digest(probed) == digest(plain)
    assert lines == []


class Recorded(GradientReducer):
    """Counts the gradients that it gets."""

    accumulated = 0

    def accumulate(self, trainable, loss, batch):
        self.accumulated += 1
        super().accumulate(trainable, loss, batch)


def test_gradients_of_a_probe_are_sent_to_no_other_rank():
    reducer = Recorded()
    short_run(images=24, probe_memory=True, reducer=reducer)
    assert reducer.accumulated == 3 * 2  # those of D and G in three steps


@pytest.mark.fault(28)
@pytest.mark.parametrize(("probe", "most"), [(True, 4), (False, 8)])
def test_out_of_memory_ends_the_run_when_smaller_micro_batches_do_not_help(monkeypatch, probe, most):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(pggan.training.step, "train_step", full)
    with pytest.raises(UserError, match=f"Out of memory at 4x4 with at most {most} images per pass") as caught:
        short_run(probe_memory=probe)
    assert "compute.micro_batch_size" in caught.value.remedy
