"""Numbers, speed, time left and pictures, from values that can be checked by hand."""

import json
import math
import time

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pggan.core.schedule import Course
from pggan.run.eta import Eta
from pggan.run.report import MetricsFile, Reporter
from pggan.training.timing import PhaseTimes

CPU = torch.device("cpu")


@pytest.fixture
def new_reporter(tiny_config, tmp_path):
    """A reporter of a run at an image count, where every image is expected to take as long as every other."""

    def new(images: int = 0) -> Reporter:
        course = Course(tiny_config().schedule.build())
        phase_times = PhaseTimes((1.0,) * len(course.schedule.phases), measured=frozenset())
        eta = Eta(course, phase_times, images, time.monotonic() - 4.0)
        return Reporter(tmp_path, course, eta, images, "plain")

    return new


def test_numbers_that_are_not_finite_are_null_and_left_out_of_histograms(new_reporter, tmp_path):
    earliest = time.monotonic()
    with new_reporter(96) as reporter:
        latest = time.monotonic()
        time.sleep(0.05)
        scores = {"scores/reals": np.array([1, 2, 2, np.inf, np.nan], np.float32)}
        least = time.monotonic() - latest
        reporter.tick(112, reporter.course.at(111), {"G/loss": 1.0, "D/loss": math.nan}, scores, CPU)
    taken = time.monotonic() - earliest
    (line,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert line["eta_seconds"] == pytest.approx(48 / (16 / 4.0), rel=0.1)  # since the resume
    assert 16 / taken < line["images_per_second"] < 16 / least  # likewise
    assert line["D/loss"] is None
    found = EventAccumulator(str(tmp_path)).Reload().Histograms("score_histogram/reals")[0].histogram_value
    assert (found.num, found.min, found.max, found.sum) == (3, 1, 2, 5)


def test_lines_beyond_a_checkpoint_are_dropped_and_hours_go_on_from_the_last_that_stays(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [{"images": 8, "hours": 1.0, "D/loss": None}, {"images": 16, "hours": 2.0}]
    path.write_text("\n".join([*map(json.dumps, lines), '{"images": 3']))
    resumed = MetricsFile(path, 8)
    assert resumed.hours == pytest.approx(1.0, abs=1e-3)
    assert json.loads(path.read_text()) == lines[0]
    resumed.append({"images": 9, "D/loss": float("nan")})
    assert json.loads(path.read_text().splitlines()[1]) == {"images": 9, "D/loss": None}
