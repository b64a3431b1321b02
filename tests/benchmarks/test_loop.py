"""The share of a run that is not steps."""

import pytest

from benchmarks.loop import Measurement


@pytest.mark.slow
def test_the_share_of_a_run_that_is_not_steps(tmp_path, monkeypatch):
    small = ["model.fmap_max=4", "monitor.grid=2x1", "checkpoint.every_minutes=1"]
    measurement = Measurement(tmp_path, 8, 4, 2, small, devices="cpu")
    assert len(measurement.bare_seconds(3)) == 3
    assert measurement.taken == 6
    for saving in (False, True):
        seconds = measurement.run_seconds(3, saving=saving)
        assert len(seconds) == 3
        assert min(seconds) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    monkeypatch.setattr(measurement, "bare_seconds", lambda ticks: [2.0] * ticks)
    monkeypatch.setattr(measurement, "run_seconds", lambda ticks, saving: [3.1 if saving else 2.1] * ticks)
    row = measurement.compare(rounds=2, ticks=3)
    assert row["seconds_per_grid_and_checkpoint"] == pytest.approx(2.0)
    assert row["images_between_them"] == 90  # of 4 in 2 seconds: checkpoints are begun at three quarters of a minute
    assert row["overhead_percent"] == pytest.approx(100 * (2.1 + 2.0 * 4 / 90 - 2.0) / 2.0)
