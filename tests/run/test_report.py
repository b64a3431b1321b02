"""Numbers, speed, time left and pictures, from values that can be checked by hand."""

import errno
import json
import math
from concurrent.futures import wait
from contextlib import suppress

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pggan.checkpoints import write as saving
from pggan.core.schedule import Course
from pggan.distributed.process_group import ProcessGroup
from pggan.run import report, train
from pggan.run.eta import Eta
from pggan.run.report import MetricAccumulator, Reporter, TimeBreakdown
from pggan.training.timing import PhaseTimes

CPU = torch.device("cpu")
ALONE = ProcessGroup.single_process(CPU)
PICTURE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


def test_values_are_averaged_over_numbers_skipped_updates_are_summed_and_norms_have_a_maximum_too():
    accumulator, value = MetricAccumulator(), torch.tensor(1.0)
    for loss, norm, skipped in (([1.0, 3.0], 5.0, 1.0), ([2.0, 6.0], 1.0, 1.0)):
        tensors = {"D/loss": torch.tensor(loss), "D/gradient_norm": torch.tensor(norm)}
        accumulator.add({**tensors, "D/skipped": torch.tensor(skipped)})
    accumulator.add({"sometimes": value})
    value.fill_(9.0)  # the next step writes into the same memory
    found = {"D/loss": 3.0, "D/gradient_norm": 3.0, "D/gradient_norm_max": 5.0, "D/skipped": 2.0, "sometimes": 1.0}
    assert accumulator.recent("D/l")["D/loss"].tolist() == [1.0, 3.0, 2.0, 6.0]
    assert accumulator.reduce(ALONE) == found
    assert accumulator.reduce(ALONE) == {}


def test_time_is_shared_out_to_the_part_that_ends(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(report.time, "perf_counter", lambda: now[0])
    clock = TimeBreakdown()
    for part, until, data in (("overhead", 1.0, 0.0), ("step", 9.0, 2.0), ("overhead", 10.0, 0.0)):
        now[0] = until
        clock.end(part, data=data)
    assert clock.shares() == {"speed/data_share": 0.2, "speed/step_share": 0.6, "speed/overhead_share": 0.2}
    assert clock.shares() == {}


@pytest.fixture
def new_reporter(tiny_config, tmp_path):
    """A reporter of a run at an image count, where every image is expected to take as long as every other."""

    def new(images: int = 0) -> Reporter:
        schedule = tiny_config().schedule.build()
        eta = Eta(schedule, PhaseTimes((1.0,) * len(schedule.phases), measured=frozenset()), images, 0.0)
        return Reporter(tmp_path, Course(schedule), eta, images, "plain")

    return new


def test_the_first_tick_after_a_resume_counts_the_images_and_seconds_since_then(new_reporter, tmp_path, monkeypatch):
    now = [500.0]
    monkeypatch.setattr(report.time, "monotonic", lambda: now[0])
    with new_reporter(96) as reporter:
        reporter.eta.restart(96, 500.0)
        for images in (112, 128):
            now[0] += 4.0
            scores = {"scores/reals": np.array([1, 2, 2, np.inf, np.nan], np.float32)}
            phase = reporter.course.at(images - 1)
            reporter.tick(images, phase, {"G/loss": 1.0, "D/loss": math.nan}, scores, CPU)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["images_per_second"] for line in lines] == [4.0, 4.0]
    assert lines[1]["eta_seconds"] == pytest.approx(32 / 4.0)
    assert lines[0]["D/loss"] is None
    assert "4.0 img/s" in (tmp_path / "train.log").read_text()
    found = EventAccumulator(str(tmp_path)).Reload().Histograms("score_histogram/reals")[0].histogram_value
    assert (found.num, found.min, found.max, found.sum) == (3, 1, 2, 5)


@pytest.mark.parametrize("after", ["tick", "flush", "picture", "end"])
def test_a_picture_that_the_disk_does_not_take_is_told(new_reporter, tmp_path, monkeypatch, after):
    def full(picture, path):
        raise OSError(errno.ENOSPC, "No space left on device")

    reporter = new_reporter()
    monkeypatch.setattr(report, "save_png", full)
    later = {
        "tick": lambda: reporter.tick(8, reporter.course.at(0), {}, {}, CPU),
        "flush": reporter.flush,
        "picture": lambda: reporter.picture("fakes", PICTURE, tmp_path / "1.png", 1),
        "end": lambda: reporter.__exit__(None),
    }
    with suppress(OSError), reporter:
        reporter.picture("fakes", PICTURE, tmp_path / "0.png", 0)
        wait([*reporter._pictures])
        with pytest.raises(OSError, match="No space"):
            later[after]()


def test_a_checkpoint_is_written_after_the_pictures_before_it(tiny_config, tmp_path, monkeypatch):
    """Or a run that is killed and resumed from it would never have them."""
    found, write = {}, saving.write_checkpoint

    def noting(run_dir, snapshot):
        found[snapshot.images] = {int(path.stem[6:]) for path in run_dir.glob("samples/fakes-*.png")}
        write(run_dir, snapshot)

    monkeypatch.setattr(saving, "write_checkpoint", noting)
    often = ["monitor.grid_images=16", "checkpoint.every_images=32", "schedule.total_images=48"]
    assert train.run(tiny_config(*often, f"run_dir={tmp_path}")) == 0
    assert sorted(found) == [16, 32, 48]
    assert all(taken >= set(range(0, images + 1, 16)) for images, taken in found.items())
