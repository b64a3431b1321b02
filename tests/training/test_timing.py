"""The times of phases: measured where there is time for that, and in proportion elsewhere."""

from dataclasses import replace
from math import inf

import pytest
import torch

from pggan.checkpoints.read import newest_checkpoint
from pggan.run import train
from pggan.training import timing
from pggan.training.build import build_partition
from pggan.training.timing import Speed, StepTimes, measure_phase_times

CPU = torch.device("cpu")


@pytest.fixture
def times(tiny_config):
    """The times of steps of a small run, on a machine of 2 GFLOP/s."""
    config = tiny_config("loss=logistic", "loss.reg_interval=6")
    return StepTimes(config, config.model.architecture(16, 3, 0), CPU, Speed(0.01, 2e9, inf))


def test_the_cost_of_an_update_is_that_of_starts_and_operations(times):
    operations = 2 * (timing.UPDATE_PASSES + timing.PENALTY_PASSES / 6) * 8 * times.architecture.multiply_adds(16)
    assert times.expected(16, 8) == pytest.approx(3 * 0.01 + operations / 2e9)


def test_memory_limits_a_step_where_that_takes_longer_than_its_operations(times):
    slow = replace(times, speed=Speed(0.01, 1e15, 1e6))
    moved = timing.ACTIVATION_BYTES * 13 * 8 * times.architecture.activations_up_to(16)
    assert slow.expected(16, 8) == pytest.approx(3 * 0.01 + moved / 1e6)


def test_resolutions_that_were_not_measured_are_scaled_from_the_nearest_that_was(times):
    batches = {4: 8, 8: 8, 16: 8, 32: 4}
    expected = {side: times.expected(side, batch) for side, batch in batches.items()}
    found = times.all_seconds(batches, {4: 7 * expected[4], 16: 3 * expected[16]})
    assert found == pytest.approx({4: 7 * expected[4], 8: 7 * expected[8], 16: 3 * expected[16], 32: 3 * expected[32]})
    doubled = replace(times, ratio=2.0).all_seconds(batches, {})
    assert doubled == pytest.approx({side: 2 * each for side, each in expected.items()})


def phase_times_of(config, **options):
    architecture, schedule = config.model.architecture(16, 3, 0), config.schedule.build()
    return measure_phase_times(config, architecture, schedule, build_partition(config, (), 1), device=CPU, **options)


def test_all_resolutions_to_come_are_measured_where_there_is_time(tiny_config):
    found = phase_times_of(tiny_config(), seconds=100.0)
    assert found.measured == {4, 8, 16}
    each = found.seconds_per_image
    assert each[1:] == (each[1], each[1], each[3], each[3])  # of fades as of stable phases
    assert found.seconds(tiny_config().schedule.build(), 16, 40) == pytest.approx(16 * each[0] + 8 * each[1])
    assert phase_times_of(tiny_config(), seconds=100.0, images=90).measured == {8, 16}


def test_a_short_run_begins_at_once(tiny_config):
    assert not phase_times_of(tiny_config()).measured


@pytest.mark.slow
def test_measuring_changes_no_bit_of_a_run(finished_run, tiny_config, tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "MAX_SHARE", 1e6)  # of a run of a second
    assert train.run(tiny_config(f"run_dir={tmp_path / 'run'}")) == 0
    states = [newest_checkpoint(path)[0].header["state_sha256"] for path in (finished_run, tmp_path / "run")]
    assert states[0] == states[1]
