"""The time of kernels on a card, worked out by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pggan.config import Precision
from pggan.networks.numerics import ComputeOptions
from pggan.performance.plan.device_table import DeviceSpec
from pggan.performance.plan.phases import fitting_kernels
from pggan.performance.plan.prediction import ASSUMPTIONS, kernel_seconds, predicted_time, prediction_notes, step_time
from pggan.training.kernel_counter import Kernel, KernelKind
from pggan.training.step_cost import StepCostEstimator, StepKernels
from pggan.training.trainer_factory import TrainerFactory
from tests.definitions import ADAM, PAPER, WGAN_GP
from tests.training.test_step_cost import phase_at

META, BF16 = torch.device("meta"), Precision.bf16
# A large copy reaches 1 TB/s, a large product 100 TFLOP/s.
CARD = DeviceSpec("A round one", 1e12 / ASSUMPTIONS.copy_rate, 2**34, {BF16: 1e14 / ASSUMPTIONS.matmul_rate})


def seconds(kind, *sizes, **more):
    return kernel_seconds(Kernel(kind, *sizes, **more), CARD, BF16)


def test_memory_limits_all_kernels_but_products():
    found = [seconds(kind, 10**9) for kind in (KernelKind.elementwise, KernelKind.broadcast, KernelKind.reduction)]
    assert found == pytest.approx([1e-3 / 0.7, 1e-3 / 0.475, 1e-3 / 0.37])


def test_products_take_as_long_as_their_bytes_or_their_operations_need():
    assert seconds(KernelKind.matmul, 10**9, 10**9) == pytest.approx(1e-3 / 0.35)
    assert seconds(KernelKind.matmul, 10**6, 10**12) == pytest.approx(10e-3 / 0.95)


def test_a_graph_adds_the_starts_and_without_one_the_host_may_be_what_takes_longest():
    long, short = Kernel(KernelKind.matmul, 1, 95 * 10**10), Kernel(KernelKind.elementwise, 700_000, launches=2)
    time = step_time({long: 1, short: 1000}, CARD, BF16)
    assert (time.launches, time.matmul_bytes, time.other_bytes) == (2001, 1, 700_000_000)
    assert time.captured == pytest.approx(10e-3 + 1e-3 + 2001 * 1.6e-6)
    assert time.eager == pytest.approx(2001 * 13e-6)
    assert step_time({long: 9}, CARD, BF16).eager == step_time({long: 9}, CARD, BF16).captured


@pytest.fixture
def predicted(make_config, costs):
    """The prediction of the small run, whose steps with penalties launch one long kernel and others a short one."""
    kernels = [{Kernel(KernelKind.elementwise, size): 1} for size in (700_000_000, 70_000_000)]
    counted = [replace(cost, kernels=StepKernels(*kernels, 1), peak_bytes=2**30) for cost in costs]

    def predict(captured, **changes):
        return predicted_time(make_config(), [replace(c, **changes) for c in counted], CARD, BF16, captured=captured)

    return predict


def test_hours_are_those_of_all_updates_with_lazy_penalties_as_often_as_they_come(predicted):
    spent, prediction = predicted(captured=True)
    mean = (1e-3 + 7 * 1e-4) / 8  # logistic: in one step of 8
    assert [timing.seconds for timing in spent.timings] == pytest.approx([mean + 1.6e-6] * 3)
    assert prediction["hours"] == pytest.approx(
        {"captured": 11 * (mean + 1.6e-6) / 3600, "eager": 11 * (mean + 1.6e-6) / 3600}
    )
    row = prediction["phases"][0]
    assert row["captured_images_per_second"] == pytest.approx(8 / (mean + 1.6e-6))
    assert row["share_of_memory"] == 1 / 16


def test_phases_whose_captures_do_not_fit_take_the_time_of_eager_updates(predicted):
    """A card of 16 GiB: nine tenths are for eager steps, and 1.4 times less for those that are captured."""
    launches = {Kernel(KernelKind.elementwise, 1): 1000}
    for peak, each in ((10 * 2**30, 1.6e-3), (11 * 2**30, 13e-3)):
        spent, _ = predicted(captured=True, peak_bytes=peak, kernels=StepKernels(launches, launches, peak))
        assert [timing.seconds for timing in spent.timings] == pytest.approx([each] * 3, rel=1e-3)


def test_notes_name_the_phases_that_are_split_and_those_that_do_not_fit(predicted):
    notes = prediction_notes(predicted(captured=True)[1])
    assert len(notes) == 1
    assert "±25 %" in notes[0]
    large = prediction_notes(predicted(captured=True, micro_batch_size=4, peak_bytes=2**34)[1])
    assert large[1].startswith("Micro-batches, in images: 4x4 stable in 4, ")
    assert large[2].endswith("does not suffice for 4x4 stable, 8x8 fade, 8x8 stable.")


def test_passes_are_halved_until_they_fit():
    def kernels(phase, micro_batch_size):
        return StepKernels({}, {}, peak_bytes=100 * (micro_batch_size or phase.batch))

    fake = SimpleNamespace(kernels=kernels, state=SimpleNamespace(g_ema=SimpleNamespace(architecture=PAPER)))
    for usable, size in ((1600, None), (1599, 8), (450, 4), (1, 4)):
        chosen, found = fitting_kernels(fake, phase_at(8, 16), usable, None)
        assert (chosen, found.peak_bytes) == (size, 100 * (size or 16))
    assert fitting_kernels(fake, phase_at(8, 16), 100, 8)[0] == 8  # as configured, whether it fits or not


@pytest.mark.slow
def test_the_prediction_of_the_papers_step_is_above_the_floor_of_fused_kernels_and_of_its_order():
    """Between products at their full rate, with all else fused, and that floor at the lowest of the assumed shares."""
    phase, options = phase_at(64, 32), ComputeOptions(dtype=torch.bfloat16)
    fake = StepCostEstimator(PAPER, TrainerFactory(WGAN_GP, ADAM, options), META)
    time = step_time(fake.kernels(phase).with_penalties, CARD, BF16)
    count = fake.count(phase)
    flops, moved = count.flops.mean(1), count.moved_bytes[0]
    assert max(flops / 1e14, moved / 1e12) < time.captured < (flops / 1e14 + moved / 1e12) / 0.35
