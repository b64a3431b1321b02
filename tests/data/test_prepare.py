"""Folders of good and bad images to a pyramid: what it holds, what is refused, and what an interruption leaves."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pggan.cli.main import main
from pggan.core.atomic_io import try_lock
from pggan.core.errors import EXIT_INTERRUPTED, UserError
from pggan.data.pyramid import ImagePyramid
from pggan.data.workers import Workers
from tests.data.images import EXPECTED, cut, everything, noise, prepared, save

ROOT = Path(__file__).parents[2]
LOCK = ".set.lock"


def names(folder):
    """What is in a folder, but for the empty file of a lock, which stays after an interruption."""
    return sorted(path.name for path in folder.iterdir() if path.name != LOCK or path.stat().st_size)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_images_are_stored_in_the_order_of_their_paths(folder, tmp_path, workers):
    pyramid = prepared(folder, tmp_path / "set", workers)
    np.testing.assert_array_equal(everything(pyramid), EXPECTED)
    assert pyramid.source == {"kind": "folder", "name": "photos", "crop": "center", "bad_images": 0}
    pyramid.verify()
    assert names(tmp_path) == ["photos", "set"]


def test_the_resolution_is_the_largest_that_suits_every_image(tmp_path):
    for number, side in enumerate([64] * 10 + [33]):
        save(tmp_path / f"photos/{number}.png", number, side=side)
    assert prepared(tmp_path / "photos", tmp_path / "set").resolution == 32
    assert prepared(tmp_path / "photos", tmp_path / "chosen", max_resolution=8).resolution == 8


def test_channels_follow_the_images_unless_chosen(tmp_path):
    for seed in range(2):
        save(tmp_path / f"photos/{seed}.png", seed, channels=1)
    grey = prepared(tmp_path / "photos", tmp_path / "grey")
    np.testing.assert_array_equal(everything(grey)[1], noise(1, channels=1))
    assert prepared(tmp_path / "photos", tmp_path / "colour", channels=3).channels == 3
    save(tmp_path / "photos/2.png", 2)
    assert prepared(tmp_path / "photos", tmp_path / "mixed").channels == 3


# ---- bad images


def test_bad_images_found_late_leave_the_others_in_their_order_and_classes(tmp_path):
    for seed in range(12):
        save(tmp_path / f"photos/{seed % 3}/{seed:02d}.png", seed, channels=1)
    for name in ("0/03.png", "1/01.png", "2/11.png", "10/0.png"):  # in colour, and one in a class of its own
        save(tmp_path / "photos" / name, 0)
        cut(tmp_path / "photos" / name)
    pyramid = prepared(tmp_path / "photos", tmp_path / "set", labels=True)
    assert (pyramid.class_names, pyramid.labels.tolist()) == ([*"012"], [0, 0, 0, 1, 1, 1, 2, 2, 2])
    expected = [noise(seed, channels=1) for seed in (0, 6, 9, 4, 7, 10, 2, 5, 8)]
    np.testing.assert_array_equal(everything(pyramid), expected)


def test_on_bad_stop_names_the_bad_ones_and_writes_nothing(folder, tmp_path):
    (folder / "empty.jpg").touch()
    save(folder / "half.png", 0, side=64)  # its pixels show it
    cut(folder / "half.png")
    for name, images in (("empty.jpg", 6), ("half.png", 5)):
        with pytest.raises(UserError, match=f"1 of {images} images cannot be used:\n.*{name}"):
            prepared(folder, tmp_path / "set", on_bad="stop")
        assert names(tmp_path) == ["photos"]
        (folder / name).unlink()
    assert prepared(folder, tmp_path / "set", on_bad="stop").images == 4


def test_a_folder_of_bad_images_only_is_refused(tmp_path):
    for number in range(30):
        save(tmp_path / f"photos/{number}.png", 0)
        cut(tmp_path / f"photos/{number}.png")
    (tmp_path / "photos" / "!.png").touch()
    with pytest.raises(UserError, match="31 of 31 images cannot be used") as raised:
        prepared(tmp_path / "photos", tmp_path / "set")
    assert raised.value.problem.splitlines()[1].endswith(": 30 (0.png, 1.png, 10.png, …)")  # most come first
    assert names(tmp_path) == ["photos"]


# ---- what is there already


def test_a_finished_pyramid_is_not_made_again(folder, tmp_path):
    made = prepared(folder, tmp_path / "set").path.stat()
    assert prepared(folder, tmp_path / "set").path.stat() == made
    for options in ({"crop": "pad"}, {"channels": 1}, {}):
        if not options:
            save(folder / "new.png", 9)
        with pytest.raises(UserError, match="exists already, and was not made of these files with these options"):
            prepared(folder, tmp_path / "set", **options)
    assert ImagePyramid(tmp_path / "set").images == 4
    with pytest.raises(UserError, match=r"exists already(?s:.*)Choose a dest="):  # and nobody is told to remove photos
        prepared(folder, folder / "c")
    assert names(folder / "c") == ["d"]


# ---- interruptions


def command(folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = ["-m", "pggan", "prepare", f"source={folder}", f"dest={folder.parent / 'set'}", "num_workers=2"]
    return subprocess.Popen(
        [sys.executable, *words], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def running_in(group):
    """The processes of a group that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, _, its_group = path.read_text().rsplit(")", 1)[1].split()[:3]
            found += [path] * (int(its_group) == group and state != "Z")
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_leaves_nothing_under_the_name_and_the_next_preparation_succeeds(tmp_path, number):
    """A terminal or a scheduler sends it to all processes of the command; who kills the command kills one."""
    for seed in range(200):
        save(tmp_path / f"photos/{seed:03d}.png", seed, side=128)
    process, is_kill = command(tmp_path / "photos"), number == signal.SIGKILL
    wait_for(lambda: list(tmp_path.glob(".partial-set/r0128*")))
    (os.kill if is_kill else os.killpg)(process.pid, number)
    assert "Traceback" not in process.communicate(timeout=60)[1]
    assert process.returncode == (-number if is_kill else EXIT_INTERRUPTED)
    wait_for(lambda: not running_in(process.pid))
    assert not (tmp_path / "set").exists()
    if is_kill:
        pyramid = prepared(tmp_path / "photos", tmp_path / "set")
        pyramid.verify()
        assert pyramid.images == 200
    assert names(tmp_path) == ["photos", "set"][: 1 + is_kill]


def die(number):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_worker_is_a_user_error():
    with Workers(2) as pool:
        for _ in range(2):  # the second time, there are no workers left
            with pytest.raises(UserError, match="was killed"):
                next(pool.in_order("Dying", die, range(99)))


@pytest.mark.slow
def test_worker_processes_do_not_import_torch():
    """It takes seconds and hundreds of megabytes in each of them."""
    code = "import sys, pggan.data.prepare; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.slow
@pytest.mark.parametrize("ends", [True, False])
def test_a_process_waits_for_another_one_that_prepares_the_same(folder, tmp_path, ends):
    """The other one ends, or is killed: then nothing is there."""
    with (tmp_path / LOCK).open("ab") as lock, command(folder) as process:
        assert try_lock(lock.fileno())
        said = ""
        while "this one waits for it" not in said:
            said = process.stderr.readline()
            assert said, "the process has ended"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        assert not (tmp_path / ".partial-set").exists()  # which may be the other one's
        if ends:
            prepared(folder, tmp_path / "elsewhere").path.rename(tmp_path / "set")
        lock.close()
        assert process.wait(60) == 0
    np.testing.assert_array_equal(everything(ImagePyramid(tmp_path / "set")), EXPECTED)
    assert names(tmp_path) == ["photos", "set"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits files as Linux does")
def test_a_full_disk_is_told_and_nothing_is_left(folder, tmp_path):
    least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))  # bytes of a file
    try:
        with pytest.raises(UserError, match="File too large"):
            prepared(folder, tmp_path / "out" / "set")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))
    assert names(tmp_path / "out") == []


# ---- the command


def test_the_command_prepares_with_every_key_and_says_what_it_made(folder, tmp_path, capsys, monkeypatch):
    (folder / "a.png").unlink()
    save(folder / "c" / "x.png", 9, side=64)
    keys = ["max_resolution=32", "crop=pad", "channels=1", "labels=true", "on_bad=report", "num_workers=1"]
    assert main(["prepare", f"source={folder}", f"dest={tmp_path / 'set'}", *keys]) == 0
    pyramid = ImagePyramid(tmp_path / "set")
    assert (pyramid.images, pyramid.channels, pyramid.class_names) == (1, 1, ["c"])
    shown = capsys.readouterr()
    assert "4x4 to 32x32, images: 1, channels: 1, classes: 1" in shown.out
    assert "data.labels=true hours=2" in shown.out
    assert "run_dir=outputs/set " in shown.out
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs" / "set").mkdir(parents=True)
    assert main(["prepare", f"source={folder}", f"dest={tmp_path / 'set'}", *keys]) == 0
    assert "run_dir=" not in capsys.readouterr().out
    assert "Left out 3 of 4 images:" in shown.err
    assert json.loads((tmp_path / "set" / "report.json").read_text())["usable"] == 1


def test_images_of_any_usual_extension_are_read_and_other_files_counted(tmp_path, capsys):
    for seed, ending in enumerate((".jfif", ".JPE", ".apng", ".mpo", ".avif", "", ".txt", ".txt")):
        save(tmp_path / "photos" / f"{seed}{ending}", seed)
    assert main(["prepare", f"source={tmp_path / 'photos'}", f"dest={tmp_path / 'set'}", "num_workers=1"]) == 0
    assert "{'.txt': 2, 'without extension': 1}" in capsys.readouterr().err
    report = json.loads((tmp_path / "set" / "report.json").read_text())
    assert (report["usable"], report["passed_over"]) == (5, {".txt": 2, "without extension": 1})


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("max_resolution=24", "16 or 32"),
        ("max_resolution=32", "give a smaller max_resolution="),
        ("channels=2", "1 or 3 or 4"),
        ("landmarks=a.json", "landmarks=FILE does not go with crop=center"),
        ("labels=3", "labels=3 can't be read"),
        ("dest=/dev/null/set", "cannot be written"),
    ],
)
def test_the_command_refuses_what_cannot_be(folder, tmp_path, capsys, override, hint):
    words = [f"source={folder}", f"dest={tmp_path / 'set'}", "num_workers=1"]
    assert main(["prepare", *words, override]) == 2
    assert hint in capsys.readouterr().err
    assert names(tmp_path) == ["photos"]
