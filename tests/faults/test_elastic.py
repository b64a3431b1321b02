"""Stopping and resuming with several ranks, the same number or another one."""

import os
import signal
from hashlib import sha256

import pytest

from pggan.checkpoints.read import checkpoints_of, open_checkpoint
from pggan.core.errors import EXIT_INTERRUPTED
from pggan.optim.batch_partition import BatchPartition
from pggan.run import train
from pggan.training.trainer import Trainer
from tests.faults.test_stop import LOSSES
from tests.processes import free_ports, in_processes, set_port, values_of

SMALL_GROUPS = "model.stddev_group=2"  # 4 in a batch of 8, so that up to 4 ranks can share it


def train_and_stop(config, stops, ports):
    """Give the same command once per port; at each of `stops`, the last rank is told to stop.

    The exit codes, and the images of this rank by step.
    """
    shown, waiting, step = {}, list(stops), Trainer.step
    is_last = int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1

    def watched_step(self, phase, reals, *arguments):
        shown[self.state.images] = [sha256(image.numpy().tobytes()).hexdigest() for image in reals.images]
        metrics = step(self, phase, reals, *arguments)
        if waiting and self.state.images == waiting[0]:
            waiting.pop(0)
            if is_last:
                os.kill(os.getpid(), signal.SIGTERM)
        return metrics

    Trainer.step = watched_step
    try:
        codes = []
        for port in ports:
            set_port(port)
            codes.append(train.run(config))
    finally:
        Trainer.step = step
    return codes, shown


def several(count, config, stops=(), runs=1):
    """Exit codes of `runs` times the same command, and all images by step in the order of the batch."""
    found = values_of(in_processes(count, train_and_stop, config, stops, free_ports(runs)))
    assert all(codes == found[0][0] for codes, _ in found)
    shown = {}
    for images in found[0][1]:
        batch = {}
        for rank, (_, mine) in enumerate(found):
            rows = BatchPartition(rank, count, config.model.stddev_group, config.elastic, None).indices(8)
            batch |= dict(zip(rows.tolist(), mine[images], strict=True))
        shown[images] = [batch[row] for row in range(8)]
    return found[0][0], shown


def alone(monkeypatch, config, stops=()):
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    codes, shown = train_and_stop(config, stops, [0])
    monkeypatch.delenv("MASTER_PORT", raising=False)
    return codes, shown


def digests(run_dir):
    return {int(path.name): open_checkpoint(path).header["state_sha256"] for path in checkpoints_of(run_dir)}


def train_and_stop_at(points, whole, halting, ports):
    """One run that is never stopped, then one that is stopped at each of `points`; the exit codes."""
    codes, _ = train_and_stop(whole, [], ports[:1])
    return codes + train_and_stop(halting, points[:-1], ports[1:])[0]


def test_two_ranks_stopped_at_points_of_many_kinds_change_no_bit(tiny_config, tmp_path):
    """The signal reaches rank 1 only.  Other losses, precisions and points are those of one process, in test_stop."""
    points = [24, 64, 104, 160]
    settings = [*LOSSES["logistic"], "precision=fp16", "ema.rampup=0.5", "ema.half_life_images=50"]
    whole = tiny_config(*settings, f"run_dir={tmp_path / 'whole'}", "checkpoint.every_images=8", "checkpoint.keep=99")
    halting = tiny_config(*settings, f"run_dir={tmp_path / 'stopped'}", "checkpoint.keep=99")
    ports = free_ports(1 + len(points))
    codes = values_of(in_processes(2, train_and_stop_at, points, whole, halting, ports))
    assert codes == 2 * [[0, *(len(points) - 1) * [EXIT_INTERRUPTED], 0]]
    wanted, found = digests(tmp_path / "whole"), digests(tmp_path / "stopped")
    assert found.keys() >= set(points)
    assert found == {images: wanted[images] for images in found}


def settings_of(loss, total):
    """Of a run that other numbers of ranks, up to 4, can continue."""
    kept = ["checkpoint.every_images=32", "checkpoint.keep=99", f"schedule.total_images={total}"]
    return [*LOSSES[loss], SMALL_GROUPS, *kept]


@pytest.mark.parametrize(
    ("loss", "total", "continued"),
    [("wgan_gp", 160, ((2, [72]), (1, [96]), (3, []))), ("relativistic", 64, ((4, []),))],
)
def test_another_number_of_ranks_changes_no_bit_and_no_image_with_elastic(
    tiny_config, tmp_path, monkeypatch, loss, total, continued
):
    """One process, then other numbers of ranks in turn, in one run directory, against one that is never stopped."""
    settings = [*settings_of(loss, total), "elastic=true"]
    _, wanted = alone(monkeypatch, tiny_config(*settings, f"run_dir={tmp_path / 'whole'}"))
    config = tiny_config(*settings, f"run_dir={tmp_path / 'run'}")
    codes, shown = alone(monkeypatch, config, [40])
    assert codes == [EXIT_INTERRUPTED]
    for count, stops in continued:
        codes, found = alone(monkeypatch, config, stops) if count == 1 else several(count, config, stops)
        assert codes == [EXIT_INTERRUPTED if stops else 0]
        assert not set(found) & set(shown)
        shown |= found
    assert shown == wanted
    expected, found = digests(tmp_path / "whole"), digests(tmp_path / "run")
    assert {images: found[images] for images in expected} == expected
