"""The times of phases: measured where there is time for that, and in proportion elsewhere."""

import pytest
import torch

from pggan.checkpoints.read import newest_checkpoint
from pggan.run import train
from pggan.training import timing
from pggan.training.timing import StepTimes, nearest


def test_resolutions_that_were_not_measured_are_scaled_as_the_nearest_that_was():
    assert [nearest({4: 7.0, 16: 3.0}, side) for side in (4, 8, 16, 128)] == [7.0, 7.0, 3.0, 3.0]
    assert nearest({}, 8) == 1.0


def phase_times_of(config, **options):
    times = StepTimes(config.trainer_settings(), config.model.architecture(16, 3, 0), torch.device("cpu"))
    return times.of_phases(config.schedule.build(), **options)


def test_all_resolutions_to_come_are_measured_where_there_is_time(tiny_config):
    found = phase_times_of(tiny_config(), seconds=100.0)
    assert found.measured == {4, 8, 16}
    each = found.seconds_per_image
    assert each[1:] == (each[1], each[1], each[3], each[3])  # of fades as of stable phases
    assert found.seconds(tiny_config().schedule.build(), 16, 40) == pytest.approx(16 * each[0] + 8 * each[1])
    assert phase_times_of(tiny_config(), seconds=100.0, images=90).measured == {8, 16}
    assert not phase_times_of(tiny_config()).measured  # a short run begins at once


@pytest.mark.slow
def test_measuring_changes_no_bit_of_a_run(finished_run, tiny_config, tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "MAX_SHARE", 1e6)  # of a run of a second
    assert train.run(tiny_config(f"run_dir={tmp_path / 'run'}")) == 0
    states = [newest_checkpoint(path)[0].header["state_sha256"] for path in (finished_run, tmp_path / "run")]
    assert states[0] == states[1]
