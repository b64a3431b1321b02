"""The space predicted before the first step, against what runs take."""

import pytest

from pggan.core.atomic_io import directory_bytes
from pggan.core.errors import UserError
from pggan.core.intervals import is_due
from pggan.run import disk_space, open_run, train
from pggan.run.disk_space import DiskNeed, require_disk, times_due
from pggan.training import build
from pggan.training.memory_fit import MemoryFit
from tests.processes import in_processes, values_of


@pytest.mark.parametrize("total", [95, 96, 97])
@pytest.mark.parametrize("middle", [24, 48, 50])
def test_the_end_of_a_run_is_counted_once_whether_or_not_something_is_due_there(total, middle):
    """As in a run, whose steps are of one image here: something follows each that makes it due, and the last."""
    due = [images for images in range(1, total + 1) if is_due(24, images - 1, images) or images == total]
    assert times_due(24, 0, total, last=True) == len(due)
    parts = times_due(24, 0, middle, last=False), times_due(24, middle, total, last=True)
    assert parts == (sum(images <= middle for images in due), sum(images > middle for images in due))


def predict_and_train(config) -> DiskNeed:
    """What was predicted for a run, which has come to its end; nothing on other ranks than 0."""
    found = []

    def keep(*arguments, **options) -> DiskNeed:
        found.append(disk_space.disk_need(*arguments, **options))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_run, "disk_need", keep)
        patch.setattr(build, "fit_memory", lambda *_, **__: MemoryFit("not checked", {}))  # it takes seconds
        assert train.run(config) == 0
    return found[0] if found else DiskNeed(0, 0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["model.fmap_max=64", "checkpoint.keep=2"],
        ["model.fmap_max=32", "checkpoint.keep=3", "checkpoint.milestones=phases", "schedule.batch=4"],
        ["model.fmap_max=96", "checkpoint.keep=1", "monitor.grid_images=32", "schedule.final_resolution=8"],
    ],
)
def test_the_space_predicted_is_what_it_turns_out_to_be(tiny_config, tmp_path, overrides):
    found = predict_and_train(tiny_config(f"run_dir={tmp_path}", *overrides))
    assert found.final == pytest.approx(directory_bytes(tmp_path), rel=0.1)
    assert found.files >= sum(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.slow
def test_ranks_with_moments_of_their_own_are_counted(tiny_config, tmp_path):
    """With dgc every rank's moments are in the checkpoint, and they are most of it."""
    short = ["schedule.final_resolution=4", "schedule.total_images=32", "checkpoint.every_images=16"]
    config = tiny_config(f"run_dir={tmp_path}", "gradients=dgc", "model.fmap_max=96", *short)
    found, _ = values_of(in_processes(2, predict_and_train, config))
    assert found.final == pytest.approx(directory_bytes(tmp_path), rel=0.1)
    newest = max(path for path in (tmp_path / "checkpoints").iterdir())
    assert found.checkpoint == pytest.approx(directory_bytes(newest), rel=0.1)


def test_files_that_are_there_already_are_not_asked_for_again(tmp_path, monkeypatch):
    for number in range(30):
        (tmp_path / str(number)).touch()
    need = DiskNeed(checkpoint=1, final=1, peak=1, files=40)

    class Inodes:
        f_files, f_favail = 100, 10
        f_blocks = f_bfree = f_bavail = f_frsize = 10**6

    monkeypatch.setattr("os.statvfs", lambda _: Inodes)
    assert "are free" in require_disk(tmp_path, need)
    Inodes.f_favail = 9
    with pytest.raises(UserError, match=r"about 10 more files; the disk has room for 9"):
        require_disk(tmp_path, need)
    Inodes.f_files = 0  # of a file system that does not count them
    assert "are free" in require_disk(tmp_path, need)


def test_bytes_that_are_there_already_are_not_asked_for_again_but_two_checkpoints_always_are(tmp_path, monkeypatch):
    (tmp_path / "there").write_bytes(bytes(600))
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 400}))
    assert "are free" in require_disk(tmp_path, DiskNeed(checkpoint=100, final=900, peak=1000, files=1))
    with pytest.raises(UserError, match="short"):
        require_disk(tmp_path, DiskNeed(checkpoint=100, final=900, peak=1001, files=1))
    with pytest.raises(UserError, match="short"):
        require_disk(tmp_path, DiskNeed(checkpoint=201, final=300, peak=500, files=1))
