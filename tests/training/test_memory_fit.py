"""Whether a schedule fits into the memory, and micro-batches that do."""

import dataclasses

import pytest

from pggan.core.errors import UserError
from pggan.core.schedule import Phase
from pggan.losses.logistic import Logistic
from pggan.networks.numerics import ComputeOptions
from pggan.optim.batch_partition import BatchPartition
from pggan.training.memory_fit import fit_memory
from pggan.training.step_cost import StepCostEstimator
from pggan.training.trainer_factory import TrainerFactory
from tests.definitions import ADAM, WGAN_GP
from tests.training.short_run import ARCHITECTURE, CPU, SCHEDULE

PHASES = dataclasses.replace(SCHEDULE, final_resolution=16, batch={4: 16}).phases
GIB = 2**30


def fitted(free, options=ComputeOptions(), loss=WGAN_GP, phases=PHASES, ranks=1, capture=False, **more):  # noqa: B008
    partition = BatchPartition(0, ranks, ARCHITECTURE.stddev_group, elastic=False, configured_micro_batch_size=None)
    factory = TrainerFactory(loss, ADAM, options, capture=capture)
    return fit_memory(ARCHITECTURE, phases, factory, device=CPU, free=free, partition=partition, **more)


@pytest.fixture
def per_image(monkeypatch):
    """Here everything needs 1 GiB per image of a pass, whatever the level; the passes that were looked at."""
    looked_at = []

    def peak_bytes(self, phase, size):
        looked_at.append((phase.name, size))
        return size * GIB

    monkeypatch.setattr("pggan.training.memory_fit.NEGLIGIBLE_BYTES", 0)
    monkeypatch.setattr(StepCostEstimator, "peak_bytes", peak_bytes)
    return looked_at


def test_a_schedule_that_fits_keeps_its_batches(per_image):
    assert fitted(2**36) == ("16.00 GiB at most, at 16x16 of 64.0 GiB free", {}, 2**34)
    assert fitted(None) == ("16.00 GiB at most, at 16x16", {}, 2**34)


def test_small_networks_cost_no_time_to_find_out(monkeypatch):
    monkeypatch.setattr(StepCostEstimator, "peak_bytes", None)
    assert fitted(2**34) == ("less than 512 MiB for a step", {}, 0)


def test_the_need_of_every_phase_is_reported_if_asked_for(monkeypatch):
    looked_at = []

    def peak_bytes(self, phase, size):
        looked_at.append(phase.name)
        return phase.resolution * GIB

    monkeypatch.setattr("pggan.training.memory_fit.NEGLIGIBLE_BYTES", 0)
    monkeypatch.setattr(StepCostEstimator, "peak_bytes", peak_bytes)
    summary, sizes, _ = fitted(2**36, every_phase=True)
    assert summary == "16.00 GiB at most, at 16x16 of 64.0 GiB free; 4x4 4.00, 8x8 8.00, 16x16 16.00"
    assert not sizes
    assert set(looked_at) == {"4x4 stable", "8x8 fade", "8x8 stable", "16x16 fade", "16x16 stable"}
    looked_at.clear()
    fitted(2**36)
    assert set(looked_at) == {"16x16 fade", "16x16 stable"}


@pytest.mark.slow
@pytest.mark.fault(28)
def test_a_batch_that_does_not_fit_is_calculated_in_micro_batches_that_do():
    """As the real step was counted, at 4x4, where that is soonest done."""
    phase = Phase(0, 4, False, 1.0, 0, 1, 1024, 0.001, 0.001, 2)
    loss = Logistic(gamma=1.0, reg_interval=1)
    need = StepCostEstimator(ARCHITECTURE, TrainerFactory(loss, ADAM), CPU).peak_bytes(phase)
    summary, sizes, _ = fitted(int(0.8 * need), loss=loss, phases=[phase])
    assert sizes == {(4, 1024): 512}
    assert "4x4 in micro-batches of 512" in summary


@pytest.mark.slow
@pytest.mark.fault(28)
@pytest.mark.parametrize("interval", [1, 4])
def test_captured_steps_need_more_than_eager_ones_whatever_the_penalties(per_image, interval):
    """16 images need 16 GiB, or 1.4 times as many, of nine tenths."""
    loss = Logistic(gamma=1.0, reg_interval=interval)
    assert not fitted(18 * GIB, loss=loss).micro_batch_sizes
    assert fitted(18 * GIB, loss=loss, capture=True).micro_batch_sizes[16, 16] == 8
    assert fitted(24 * GIB, loss=loss, capture=True).micro_batch_sizes[16, 16] == 8
    assert not fitted(25 * GIB, loss=loss, capture=True).micro_batch_sizes


@pytest.mark.fault(28)
def test_what_fits_without_cuda_graphs_only_is_not_refused(per_image):
    """One group of 4 images needs 4 GiB, or 5.6; eight images 8 GiB, or 11.2."""
    assert fitted(5 * GIB, capture=True).micro_batch_sizes == {(4, 16): 4, (8, 16): 4, (16, 16): 4}
    assert not fitted(9 * GIB, ComputeOptions(micro_batch_size=8), capture=True).micro_batch_sizes
    with pytest.raises(UserError, match=r"needs 8\.0 GiB with micro-batches of 8 images"):
        fitted(8 * GIB, ComputeOptions(micro_batch_size=8), capture=True)


@pytest.mark.fault(28)
def test_smaller_levels_are_looked_at_too_when_the_largest_does_not_fit(per_image):
    """Nine tenths of the memory are usable: of 9 GiB, 8 images and not 9."""
    assert fitted(9 * GIB).micro_batch_sizes == {(4, 16): 8, (8, 16): 8, (16, 16): 8}


def test_a_resolution_gets_the_smallest_micro_batches_of_its_phases(monkeypatch):
    """Fading takes more memory here, and comes before the stable phase, with the same batch."""
    monkeypatch.setattr("pggan.training.memory_fit.NEGLIGIBLE_BYTES", 0)
    monkeypatch.setattr(StepCostEstimator, "peak_bytes", lambda self, phase, size: size * (1 + phase.fading) * GIB)
    assert fitted(9 * GIB).micro_batch_sizes == {(4, 16): 8, (8, 16): 4, (16, 16): 4}


def test_what_the_gradient_reducer_keeps_is_not_free(per_image):
    weights = StepCostEstimator(ARCHITECTURE, TrainerFactory(WGAN_GP, ADAM), CPU).weight_bytes
    free = int(16 * GIB / 0.9) + 3 * weights
    assert not fitted(free + 1, gradient_copies=3).micro_batch_sizes
    assert fitted(free - 10, gradient_copies=4).micro_batch_sizes


def test_each_rank_needs_memory_for_its_part_of_a_batch(per_image):
    assert not fitted(9 * GIB, ranks=2).micro_batch_sizes
    assert {size for _, size in per_image} == {8}


@pytest.mark.fault(28)
def test_what_can_not_fit_is_refused_with_the_figures(per_image):
    with pytest.raises(UserError, match=r"at 16x16 needs 4\.0 GiB with micro-batches of 4 images; 2\.0 GiB are free"):
        fitted(2 * GIB)
    # As configured, or not at all.
    with pytest.raises(UserError, match=r"needs 8\.0 GiB with micro-batches of 8 images"):
        fitted(5 * GIB, ComputeOptions(micro_batch_size=8))
