"""The time of steps, from what was timed."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pggan.core.errors import UserError
from pggan.distributed.process_group import ProcessGroup
from pggan.performance.bench.steps import phase_of
from pggan.performance.plan import calibration
from pggan.performance.plan.calibration import (
    EXTRAPOLATED,
    MEASURED,
    Calibration,
    PhaseTimers,
    RepeatedTimer,
    write_noise,
)
from pggan.training import timing

CPU = torch.device("cpu")


def timer(batch, *rounds):
    return RepeatedTimer(SimpleNamespace(warmup=2), phase_of(8, batch), list(rounds))


def test_the_time_of_an_update_is_the_median_of_the_rounds():
    assert timer(16, 1.0, 9.0, 2.0).seconds == 2.0


def test_what_does_not_depend_on_the_batch_lies_on_the_line_through_two_batch_sizes():
    run = timer(16, 1.0)
    assert PhaseTimers(run, run, timer(4, 0.4)).fixed_seconds() == pytest.approx(0.2)  # and 0.05 per image
    assert PhaseTimers(run, run, timer(4, 0.1)).fixed_seconds() == 0  # never negative
    assert PhaseTimers(run, run, None).fixed_seconds() == 0


def test_a_single_device_takes_the_whole_batch_at_the_pace_of_its_part():
    timing = PhaseTimers(timer(16, 0.9), timer(8, 0.6), None).timing(fixed_seconds=0.2)
    assert (timing.seconds, timing.source) == (0.9, MEASURED)
    assert timing.single_device_seconds == pytest.approx(0.2 + 0.05 * 16)
    assert timing.fixed_seconds == 0.2
    assert PhaseTimers(timer(16, 0.9), timer(8, 0.1), None).timing(fixed_seconds=0.2).fixed_seconds == 0.1


@pytest.fixture(scope="module")
def small(make_config, costs, tmp_path_factory):
    """A calibration of the small run."""
    config, group = make_config("steps=1"), ProcessGroup.single_process(CPU)
    architecture, data = config.model.architecture(8, 3, 0), tmp_path_factory.mktemp("data") / "noise"
    write_noise(data, architecture, 16)
    return Calibration(config, architecture, costs, group, data)


@pytest.mark.slow
def test_every_update_is_waited_for_and_lazy_penalties_count_as_often_as_they_come(small, monkeypatch):
    """The clock is advanced by waiting for the device only: 5 s where penalties are due, else 1 s."""
    now, due = [0.0], []
    interval = small.run.trainer.loss.reg_interval
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def wait(device):
        assert device == CPU
        now[0] += 5.0 if due.pop() else 1.0

    step = small.run.trainer.step

    def noticed(phase, reals, rng, ema_decay):
        due.append(rng.images // phase.batch % interval == 0)
        return step(phase, reals, rng, ema_decay)

    monkeypatch.setattr(timing, "synchronize", wait)
    monkeypatch.setattr(small.run.trainer, "step", noticed)
    assert small.run.seconds(small.costs[0].phase, 1, 0.0) == pytest.approx((5 + (interval - 1)) / interval)
    assert not due


@pytest.mark.slow
def test_a_first_phase_that_does_not_fit_into_the_memory_is_refused(small, monkeypatch):
    monkeypatch.setattr(calibration, "free_memory", lambda *_: 1000)
    with pytest.raises(UserError, match="does not fit into free memory"):
        small.timings(lambda text: None)


@pytest.mark.slow
def test_a_later_phase_that_does_not_fit_is_extrapolated(small, monkeypatch):
    small_costs = [replace(small.costs[0], peak_bytes=10), *small.costs[1:]]
    monkeypatch.setattr(small, "costs", small_costs)
    monkeypatch.setattr(calibration, "free_memory", lambda *_: 1000)
    monkeypatch.setattr(timing.StepTimer, "seconds", lambda *_: 0.5)
    told = []
    timings = small.timings(told.append)
    assert [timing.source for timing in timings] == [MEASURED, EXTRAPOLATED, EXTRAPOLATED]
    assert timings[1].seconds == pytest.approx(0.5 * small_costs[1].flops / small_costs[0].flops)
    assert [text[:29] for text in told] == ["Measuring steps at 4x4 stable"] * 3


def test_noise_has_images_of_all_classes(tmp_path, make_config):
    from pggan.data.pyramid import ImagePyramid

    write_noise(tmp_path / "noise", make_config().model.architecture(8, 1, 3), 7)
    pyramid = ImagePyramid(tmp_path / "noise")
    assert (pyramid.images, pyramid.channels, pyramid.resolution) == (7, 1, 8)
    assert pyramid.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
