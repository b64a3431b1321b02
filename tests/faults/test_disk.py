"""Full, read-only and failing disks: nothing that was there is lost, and the message says what to do."""

import errno
import os
import subprocess
import threading
from pathlib import Path

import pytest

from pggan.cli.main import main
from pggan.core.errors import UserError
from pggan.interop import web
from pggan.run import train
from pggan.run.inspect import facts_of_run


def fill(folder: Path, leave: int = 16_384) -> None:
    """Write a file that leaves `leave` bytes free."""
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    (folder / "ballast").write_bytes(bytes(free - leave))


def wait_for_save() -> None:
    """Wait until no checkpoint is being written: one that was begun before a fault may still be."""
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join()


def leftovers(run_dir: Path) -> list[Path]:
    return [*run_dir.rglob(".partial-*"), *run_dir.rglob(".lock")]


def use_up_inodes(folder: Path) -> None:
    for number in range(128):
        try:
            (folder / f"ballast-{number}").touch()
        except OSError:
            return


@pytest.mark.parametrize("spoil", [fill, use_up_inodes])
def test_a_disk_that_fills_up_costs_only_what_was_not_saved(finished_run, tiny_config, small_disk, after_step, spoil):
    run_dir = small_disk / "run"
    config = tiny_config(f"run_dir={run_dir}", "checkpoint.every_images=64")

    def fill_up(state) -> None:
        if state.images == 104:
            wait_for_save()
            spoil(small_disk)

    after_step(fill_up)
    with pytest.raises(UserError, match=r"(?s)No space left.*checkpoint is valid"):
        train.run(config)
    assert facts_of_run(run_dir)["images"] == 64
    assert leftovers(run_dir) == []
    for path in small_disk.glob("ballast*"):
        path.unlink()
    after_step(lambda state: None)
    assert train.run(config) == 0
    assert facts_of_run(run_dir)["state_sha256"] == facts_of_run(finished_run)["state_sha256"]


def test_a_directory_that_becomes_read_only_is_left_with_its_checkpoint(
    tiny_config, tiny_overrides, small_disk, after_step, capsys
):
    run_dir = small_disk / "run"
    config = tiny_config(f"run_dir={run_dir}", "checkpoint.every_images=64", "monitor.grid=1x1", "model.fmap_max=4")

    def make_read_only(state) -> None:
        if state.images == 72:
            wait_for_save()
            subprocess.run(["mount", "--bind", str(run_dir), str(run_dir)], check=True)
            subprocess.run(["mount", "-o", "remount,ro,bind", str(run_dir)], check=True)

    after_step(make_read_only)
    try:
        with pytest.raises(UserError, match=r"(?s)Read-only file system.*last checkpoint is valid"):
            train.run(config)
        assert main(["train", *tiny_overrides, f"run_dir={run_dir}"]) == 2  # from the start, too
        assert f"run_dir={run_dir} can't be written: Read-only file system" in capsys.readouterr().err
    finally:
        subprocess.run(["umount", str(run_dir)], check=True)
    assert facts_of_run(run_dir)["images"] == 64
    after_step(lambda state: None)
    assert train.run(config) == 0


def test_what_the_system_refuses_inside_a_save_stops_the_run_in_order(tiny_config, tmp_path, monkeypatch, after_step):
    """The same where mounting is not allowed."""

    def refuse(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def break_disk(state) -> None:
        if state.images == 80:
            wait_for_save()
            monkeypatch.setattr(os, "fsync", refuse)

    after_step(break_disk)
    with pytest.raises(UserError, match=r"(?s)No space left.*checkpoint is valid"):
        train.run(tiny_config(f"run_dir={tmp_path}", "checkpoint.every_images=64"))
    assert facts_of_run(tmp_path)["images"] == 64
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("form", ["hf", "web"])
def test_an_exported_folder_that_the_disk_has_no_room_for_is_named(form, finished_run, small_disk, monkeypatch, capsys):
    monkeypatch.setattr(web, "read_runtime", lambda given: {})
    fill(small_disk)
    assert main(["export", f"run={finished_run}", f"format={form}", f"out={small_disk / 'page'}"]) == 2
    assert f"'{small_disk}/.partial-page/" in capsys.readouterr().err
