"""The start, grids, ticks and checkpoints of a run."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pggan.config import TrainConfig
from pggan.core.errors import UserError
from pggan.core.validation import validated
from pggan.distributed.process_group import ProcessGroup, RankInfo
from pggan.performance.plan import run_time
from pggan.performance.plan.run_time import checkpoint_count, shortened, start_seconds


def group_of(local):
    return ProcessGroup(RankInfo(0, 2 * local, 0, local), torch.device("cpu"), None, None)


@pytest.mark.parametrize(("local", "devices"), [(1, "cpu"), (2, "cpu:2")])
def test_the_start_is_that_of_the_run_with_one_small_update(local, devices, make_config):
    config = make_config(
        *("elastic=true", "schedule.batch_factor=2", "distributed.nnodes=2", "distributed.rdzv_endpoint=node0:29500"),
        "evaluation.metrics=[swd]",
    )
    short = validated(TrainConfig, shortened(config, Path("images"), Path("run"), group_of(local)))
    schedule = short.schedule.build()
    assert (schedule.steps(), schedule.phases[0].batch) == ((1, 0, 0), 4 * local)  # groups of 4
    assert (short.devices, short.distributed.nnodes, short.distributed.rdzv_endpoint) == (devices, 1, None)
    assert (short.run_dir, short.data.path, short.resume) == ("run", "images", "never")
    assert (short.elastic, short.loss, short.monitor) == (True, config.loss, config.monitor)
    assert list(short.evaluation.metrics) == []


@pytest.mark.slow
def test_a_run_that_does_not_start_is_reported_with_its_message(make_config, make_pyramid, tmp_path):
    make_pyramid(tmp_path / "faces", images=3)
    with pytest.raises(UserError) as refused:
        start_seconds(make_config(), tmp_path / "faces", tmp_path / "run", group_of(1))
    assert "A run of one step, for calibrate=true, failed: " in str(refused.value)
    assert "has 3 images; 4 are needed" in str(refused.value)


@pytest.mark.parametrize("fails", [False, True])
def test_what_holds_on_to_connections_is_released_however_measuring_ends(make_config, monkeypatch, fails):
    """Connections that graphs hold on to cannot be closed: the last rank would wait for ever."""
    released = []

    class Measured:
        run = SimpleNamespace(trainer=SimpleNamespace(release_graphs=lambda: released.append(True)))

        def __init__(self, *_):
            pass

        def timings(self, log):
            if fails:
                raise UserError("It does not fit.", "Take less.")
            return []

    monkeypatch.setattr(run_time, "Calibration", Measured)
    monkeypatch.setattr(run_time, "start_seconds", lambda *_: 1.0)
    monkeypatch.setattr(run_time, "measured_overhead", lambda *_: {})
    config, group = make_config(), ProcessGroup.single_process(torch.device("cpu"))
    with pytest.raises(UserError) if fails else nullcontext():
        run_time.measured_time(config, config.model.architecture(8, 3, 0), [], group, data=None, log=str)
    assert released == [True]


def test_checkpoints_are_counted_by_images_or_by_minutes_whichever_are_more(make_config):
    config = make_config("checkpoint.every_images=20", "checkpoint.every_minutes=2", "checkpoint.milestones=[8]")
    schedule = config.schedule.build()  # 84 images
    assert checkpoint_count(config.checkpoint, schedule, seconds=60) == 8 + 1 + 1
    assert checkpoint_count(config.checkpoint, schedule, seconds=3600) == 40 + 1 + 1  # every 90 seconds
    config = make_config("checkpoint.every_images=200", "checkpoint.every_minutes=null", "checkpoint.milestones=phases")
    assert checkpoint_count(config.checkpoint, schedule, seconds=0) == 2 + 1  # the last of three phases is the end
