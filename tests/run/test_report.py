"""Speed, time left and alarms, from numbers that can be checked by hand."""

import json
import math
import time
from types import SimpleNamespace

import pytest
import torch

from pggan.run.report import GradientSpikeDetector, Reporter, clock, remaining_seconds
from tests.definitions import variant


def tick_of(detector: GradientSpikeDetector, peak: float) -> list[str]:
    return detector.detect({"D/gradient_norm_max": peak, "D/loss": 1e9})


def test_a_gradient_is_compared_with_what_came_before_it_and_not_with_itself():
    """After a single tick already: a median that took in the spike would be half of it."""
    detector = GradientSpikeDetector()
    assert tick_of(detector, 2.0) == []
    (alarm,) = tick_of(detector, 2000.0)
    assert alarm == "D/gradient_norm_max is 2e+03, 1,000 times what it was lately"


def test_a_hundred_times_the_median_is_no_alarm_and_more_is():
    detector = GradientSpikeDetector()
    for peak in (1.0, 1.0, 9.0):
        assert tick_of(detector, peak) == []
    assert tick_of(detector, 100.0) == []
    assert len(tick_of(detector, 550.0)) == 1  # the median of 1, 1, 9, 100 is 5


def test_gradients_that_are_not_finite_alarm_and_are_not_taken_as_usual():
    detector = GradientSpikeDetector()
    assert tick_of(detector, 1.0) == []
    assert len(tick_of(detector, math.inf)) == 1
    assert len(tick_of(detector, 101.0)) == 1


def test_the_first_tick_and_steady_gradients_are_silent():
    detector = GradientSpikeDetector()
    assert tick_of(detector, 1e12) == []
    assert [tick_of(detector, 1e12) for _ in range(20)] == [[]] * 20


def test_the_time_left_grows_with_the_cost_of_the_resolutions_ahead(tiny_config):
    """160 images in phases of 32: an image costs as much more as its resolution has multiply-adds."""
    schedule, architecture = tiny_config().schedule.build(), variant(resolution=16, fmap_max=8)
    cost = {side: architecture.multiply_adds(side) for side in (4, 8, 16)}
    assert cost[4] < cost[8] < cost[16]
    ahead = 16 * cost[4] + 64 * cost[8] + 64 * cost[16]
    assert remaining_seconds(schedule, architecture, 16, 2.0) == pytest.approx(2.0 * ahead / cost[4], rel=1e-12)
    assert remaining_seconds(schedule, architecture, 128, 0.5) == pytest.approx(0.5 * 32, rel=1e-12)
    assert remaining_seconds(schedule, architecture, 160, 0.5) == 0


def test_the_first_tick_after_a_resume_counts_the_images_and_seconds_since_then(tiny_config, tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("pggan.run.report.time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    schedule, architecture = tiny_config().schedule.build(), variant(resolution=16, fmap_max=8)
    reporter = Reporter(tmp_path, schedule, architecture, torch.device("cpu"), images=160)
    with reporter:
        now[0] = 500.0  # the run was rolled back, say
        reporter.restart(96)
        for images in (112, 128):
            now[0] += 4.0
            reporter.tick(images, schedule.at(images - 1), {"G/loss": 1.0, "D/loss": math.nan})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["images_per_second"] for line in lines] == [4.0, 4.0]
    assert lines[1]["eta_seconds"] == pytest.approx(32 / 4.0)
    assert lines[0]["D/loss"] is None
    assert "4.0 img/s" in (tmp_path / "train.log").read_text()


def test_what_an_interrupted_run_wrote_beyond_its_checkpoint_is_dropped(tiny_config, tmp_path):
    lines = [json.dumps({"images": images}) for images in (8, 16, 24)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"images": 3']))
    architecture = variant(resolution=16, fmap_max=8)
    with Reporter(tmp_path, tiny_config().schedule.build(), architecture, torch.device("cpu"), images=16):
        pass
    assert (tmp_path / "metrics.jsonl").read_text().splitlines() == lines[:2]


def test_times_are_written_as_on_a_clock():
    assert [clock(seconds) for seconds in (0, 59.4, 59.6, 3600, 360_061)] == [
        "0:00:00",
        "0:00:59",
        "0:01:00",
        "1:00:00",
        "100:01:01",
    ]
