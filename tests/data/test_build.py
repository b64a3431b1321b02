"""Interrupted, repeated and extended preparations: nothing is decoded twice, nothing half-made is left."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from pggan.core.errors import UserError
from pggan.core.file_lock import try_lock
from pggan.data import build as building
from pggan.data.layout import Layout
from pggan.data.planning import Options
from pggan.data.prepare import prepare
from pggan.data.pyramid import ImagePyramid
from pggan.data.records import FILLED

ROOT = Path(__file__).parents[2]


def noise(seed, side=16):
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)


def save(path, seed, side=16):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(seed, side)).save(path)


@pytest.fixture
def photos(tmp_path):
    for seed in range(12):
        save(tmp_path / "photos" / f"{seed:02d}.png", seed)
    return tmp_path / "photos"


@pytest.fixture
def decoded(monkeypatch):
    """The names of the files that are decoded."""
    names = []
    load = building.load_image

    def noting(file, *arguments):
        names.append(file.path.name)
        return load(file, *arguments)

    monkeypatch.setattr(building, "load_image", noting)
    return names


def contents(path):
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def everything(pyramid):
    return pyramid.read(pyramid.resolution, np.arange(pyramid.images))


def test_doing_it_again_opens_no_file_and_changes_nothing(photos, tmp_path, decoded, monkeypatch):
    prepare(photos, tmp_path / "set", Options())
    before = contents(tmp_path / "set")
    decoded.clear()
    monkeypatch.setattr("pggan.data.checks.read_header", None)
    prepare(photos, tmp_path / "set", Options())
    assert decoded == []
    assert contents(tmp_path / "set") == before


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_the_dataset_is_the_same_byte_by_byte_with_any_number_of_workers(photos, tmp_path, workers):
    (photos / "bad.png").write_bytes((photos / "00.png").read_bytes()[:300])
    first = prepare(photos, tmp_path / "first", Options())
    second = prepare(photos, tmp_path / "second", Options(), workers=workers)
    assert first.fingerprint == second.fingerprint
    second.verify()


def test_only_new_and_changed_files_are_decoded(photos, tmp_path, decoded):
    prepare(photos, tmp_path / "set", Options())
    decoded.clear()
    save(photos / "05.png", 100)
    save(photos / "05b.png", 101)
    (photos / "03.png").unlink()
    (photos / "07.png").write_bytes(b"no longer an image")
    updated = prepare(photos, tmp_path / "set", Options())
    assert sorted(decoded) == ["05.png", "05b.png"]
    expected = [noise(seed) for seed in (0, 1, 2, 4, 100, 101, 6, 8, 9, 10, 11)]
    np.testing.assert_array_equal(everything(updated), np.stack(expected))
    updated.verify()
    fresh = prepare(photos, tmp_path / "fresh", Options())
    for level in (4, 8, 16):
        np.testing.assert_array_equal(updated.read(level, np.arange(11)), fresh.read(level, np.arange(11)))
    assert len(list((tmp_path / "set").glob("r0016-*"))) == 1
    report = json.loads((tmp_path / "set" / "report.json").read_text())
    assert [Path(entry["file"]).name for entry in report["left_out"]] == ["07.png"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_link_has_changed_when_the_file_behind_it_has(photos, tmp_path, decoded):
    save(photos / ".behind.png", 100)
    (photos / "link.png").symlink_to(photos / ".behind.png")
    prepare(photos, tmp_path / "set", Options())
    decoded.clear()
    save(photos / ".behind.png", 101)
    np.testing.assert_array_equal(everything(prepare(photos, tmp_path / "set", Options()))[-1], noise(101))
    assert decoded == ["link.png"]


def test_damage_in_the_old_dataset_is_not_taken_over(photos, tmp_path, decoded):
    prepare(photos, tmp_path / "set", Options())
    shard = tmp_path / "set" / "r0016-00000.bin"
    content = bytearray(shard.read_bytes())
    content[50] ^= 1
    shard.write_bytes(content)
    decoded.clear()
    save(photos / "99.png", 99)
    updated = prepare(photos, tmp_path / "set", Options())
    assert len(decoded) == 13
    np.testing.assert_array_equal(everything(updated)[0], noise(0))


def test_without_its_records_a_dataset_is_not_touched(photos, tmp_path):
    prepare(photos, tmp_path / "set", Options())
    (tmp_path / "set" / "files.jsonl.gz").unlink()
    with pytest.raises(UserError, match="exists already"):
        prepare(photos, tmp_path / "set", Options())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (Options(crop="pad"), "crop=center, now pad"),
        (Options(max_resolution=8), "resolution=16, now 8"),
        (Options(channels=1, keep=0.5, max_resolution=8), "channels=3, now 1"),
    ],
)
def test_another_recipe_does_not_replace_a_dataset(photos, tmp_path, options, problem):
    prepare(photos, tmp_path / "set", Options())
    with pytest.raises(UserError, match=problem):
        prepare(photos, tmp_path / "set", options)


def test_other_files_do_not_replace_a_dataset(photos, tmp_path):
    prepare(photos, tmp_path / "set", Options())
    save(tmp_path / "others" / "x.png", 50)
    with pytest.raises(UserError, match="from other files"):
        prepare(tmp_path / "others", tmp_path / "set", Options())
    assert ImagePyramid(tmp_path / "set").images == 12


def test_labels_change_without_decoding(photos, tmp_path, decoded):
    prepare(photos, tmp_path / "set", Options())
    decoded.clear()
    (tmp_path / "labels.csv").write_text("".join(f"{seed:02d}.png,{seed % 2}\n" for seed in range(12)))
    labelled = prepare(photos, tmp_path / "set", Options(labels=str(tmp_path / "labels.csv")))
    assert labelled.labels.tolist() == [0, 1] * 6
    assert decoded == []


def test_bad_files_found_late_give_their_places_to_the_last_images(photos, tmp_path):
    for name in ("02.png", "03.png", "11.png"):
        content = (photos / name).read_bytes()
        (photos / name).write_bytes(content[: len(content) // 2])
    pyramid = prepare(photos, tmp_path / "set", Options())
    expected = np.stack([noise(seed) for seed in (0, 1, 10, 9, 4, 5, 6, 7, 8)])
    np.testing.assert_array_equal(everything(pyramid), expected)
    pyramid.verify()


# ---- interruptions


def interrupt_at(monkeypatch, slot, error):
    write = Layout.write

    def writing(self, number, levels):
        if number == slot:
            raise error
        write(self, number, levels)

    monkeypatch.setattr(Layout, "write", writing)


def test_a_preparation_continues_after_a_full_disk(photos, tmp_path, decoded, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 7, OSError(28, "No space left on device"))
        with pytest.raises(UserError, match="No space left on device") as raised:
            prepare(photos, tmp_path / "set", Options())
    assert "continues where it stopped" in raised.value.remedy
    assert not (tmp_path / "set").exists()
    decoded.clear()
    pyramid = prepare(photos, tmp_path / "set", Options())
    assert decoded == [f"{seed:02d}.png" for seed in range(7, 12)]
    np.testing.assert_array_equal(everything(pyramid), np.stack([noise(seed) for seed in range(12)]))
    pyramid.verify()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "set"]


def test_what_a_full_disk_kept_of_images_that_were_not_written_down_needs_no_room_again(photos, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 11, OSError(28, "No space left on device"))
        with pytest.raises(UserError):
            prepare(photos, tmp_path / "set", Options())
    (attempt,) = tmp_path.glob(".set.prepare-*")
    (attempt / "done.jsonl").write_bytes(b"")  # that was refused, too
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    assert prepare(photos, tmp_path / "set", Options()).images == 12


def test_what_an_attempt_did_is_taken_over_when_files_have_changed_since(photos, tmp_path, decoded, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 7, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            prepare(photos, tmp_path / "set", Options())
    decoded.clear()
    (photos / "00.png").unlink()
    pyramid = prepare(photos, tmp_path / "set", Options())
    assert decoded == [f"{seed:02d}.png" for seed in range(7, 12)]
    np.testing.assert_array_equal(everything(pyramid), np.stack([noise(seed) for seed in range(1, 12)]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "set"]


@pytest.mark.parametrize("stage", ["_write_index", "_publish"])
@pytest.mark.parametrize("update", [False, True])
def test_an_interruption_near_the_end_leaves_the_old_dataset_or_none(photos, tmp_path, monkeypatch, stage, update):
    if update:
        prepare(photos, tmp_path / "set", Options())
        save(photos / "99.png", 99)
    (photos / "bad.png").write_bytes((photos / "00.png").read_bytes()[:300])
    with monkeypatch.context() as patch:

        def fail(*arguments):
            raise KeyboardInterrupt

        patch.setattr(building, stage, fail)
        with pytest.raises(KeyboardInterrupt):
            prepare(photos, tmp_path / "set", Options())
    if update:
        assert ImagePyramid(tmp_path / "set").images == 12
        ImagePyramid(tmp_path / "set").verify()
    else:
        assert not (tmp_path / "set").exists()
    pyramid = prepare(photos, tmp_path / "set", Options())
    pyramid.verify()
    seeds = [*range(12), *([99] if update else [])]
    np.testing.assert_array_equal(everything(pyramid), np.stack([noise(seed) for seed in seeds]))


def test_two_preparations_of_one_dataset_do_not_meet(photos, tmp_path, monkeypatch):
    def second(*arguments):
        with pytest.raises(UserError, match="Another process is preparing"):
            prepare(photos, tmp_path / "set", Options())
        return write(*arguments)

    write = building._write_index
    with monkeypatch.context() as patch:
        patch.setattr(building, "_write_index", second)
        prepare(photos, tmp_path / "set", Options())
    assert ImagePyramid(tmp_path / "set").images == 12


def test_an_attempt_of_a_living_process_is_left_alone_and_one_of_a_dead_one_is_removed(photos, tmp_path):
    living, dead = tmp_path / ".set.prepare-living", tmp_path / ".set.prepare-dead"
    for attempt in (living, dead):
        attempt.mkdir()
        (attempt / "lock").touch()
    with (living / "lock").open("ab") as lock:
        assert try_lock(lock.fileno(), without_locks=False)
        prepare(photos, tmp_path / "set", Options())
    assert (living / "lock").exists()
    assert not dead.exists()


def test_on_a_file_system_without_locks_no_attempt_is_taken_for_abandoned(photos, tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    attempt = tmp_path / ".set.prepare-of-anyone"
    attempt.mkdir()
    (attempt / "lock").touch()
    assert prepare(photos, tmp_path / "set", Options()).images == 12
    assert (attempt / "lock").exists()


def test_a_line_of_the_journal_that_was_cut_off_costs_no_other(photos, tmp_path, decoded, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 7, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            prepare(photos, tmp_path / "set", Options())
    (attempt,) = tmp_path.glob(".set.prepare-*")
    lines = (attempt / "done.jsonl").read_text().splitlines()
    (attempt / "done.jsonl").write_text("\n".join([*lines[:2], lines[2][:4], *lines[3:]]) + "\n")
    decoded.clear()
    np.testing.assert_array_equal(everything(prepare(photos, tmp_path / "set", Options()))[2], noise(2))
    assert decoded == [f"{seed:02d}.png" for seed in (2, 7, 8, 9, 10, 11)]


# ---- durability


def file_of(descriptor, folder):
    inode = os.fstat(descriptor).st_ino
    return next(path.name for path in (folder, *folder.rglob("*")) if path.lstat().st_ino == inode)


@pytest.mark.parametrize("seconds", [0, 1000], ids=["after every image", "at the end"])
def test_an_image_is_written_down_as_done_only_when_it_is_durable(photos, tmp_path, monkeypatch, seconds):
    """At every fsync, what the journal names had been written before the last fsync of each shard."""
    (photos / "03.png").write_bytes((photos / "03.png").read_bytes()[:300])  # its place goes to the last image
    written, durable, checked = {}, {}, []
    write, fsync = Layout.write, os.fsync

    def noting(self, slot, levels):
        write(self, slot, levels)
        written[slot] = 1 + max(written.values(), default=0)

    def checking(descriptor):
        fsync(descriptor)
        name = file_of(descriptor, tmp_path)
        if name.endswith(".bin"):
            durable[name] = max(written.values(), default=0)
        for journal in tmp_path.glob(".set.prepare-*/done.jsonl"):
            for line in journal.read_text().splitlines():
                slot, bad = json.loads(line)
                needed = max(written.values()) if slot == FILLED else written.get(slot, 0)
                assert bad is not None or (len(durable) == 3 and needed <= min(durable.values()))
                checked.append(slot)

    monkeypatch.setattr(building, "COMMIT_SECONDS", seconds)
    monkeypatch.setattr(Layout, "write", noting)
    monkeypatch.setattr(os, "fsync", checking)
    prepare(photos, tmp_path / "set", Options())
    assert {FILLED, *range(12)} <= set(checked)


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """The system calls that decide what a power cut leaves, in their order, with the names of their files."""
    found, resize = [], Layout.resize

    def noting(text_of, call):
        return lambda *arguments: found.append(text_of(*arguments)) or call(*arguments)

    for name in ("rename", "replace"):
        text_of = lambda old, new: f"{Path(old).name} -> {Path(new).name}"  # noqa: E731
        monkeypatch.setattr(os, name, noting(text_of, getattr(os, name)))
    monkeypatch.setattr(os, "fsync", noting(lambda file: f"fsync {file_of(file, tmp_path)}", os.fsync))
    monkeypatch.setattr(Layout, "resize", noting(lambda layout: "resize", resize))
    return found


def write_labels(tmp_path):
    (tmp_path / "labels.csv").write_text("".join(f"{seed:02d}.png,{seed % 2}\n" for seed in (*range(12), 99)))
    return str(tmp_path / "labels.csv")


def test_a_moved_image_is_written_down_durably_before_its_old_place_is_cut_off(photos, tmp_path, calls):
    """Or, after a power cut, a place that has been cut off would count as done, and be moved once more: black."""
    (photos / "03.png").write_bytes((photos / "03.png").read_bytes()[:300])
    prepare(photos, tmp_path / "set", Options())
    cut = max(place for place, call in enumerate(calls) if call == "resize")
    assert calls[cut - 1] == "fsync done.jsonl"


def test_a_dataset_gets_its_name_after_everything_in_it_is_durable(photos, tmp_path, calls):
    prepare(photos, tmp_path / "set", Options(labels=write_labels(tmp_path)))
    named = next(place for place, call in enumerate(calls) if call.endswith("-> set"))
    index = calls.index(".partial-index.json -> index.json")
    last_change = max(place for place, call in enumerate(calls) if call == "resize")
    for level in (4, 8, 16):
        assert f"fsync r{level:04d}-00000.bin" in calls[last_change:index]
    assert {"fsync labels.bin", "fsync .partial-index.json"} <= set(calls[:index])
    assert index < named
    assert calls[named + 1] == f"fsync {tmp_path.name}"  # afterwards only the report is written


def test_the_index_of_an_updated_dataset_is_replaced_after_all_else_is_in_place(photos, tmp_path, calls):
    prepare(photos, tmp_path / "set", Options(labels=write_labels(tmp_path)))
    calls.clear()
    save(photos / "99.png", 99)
    prepare(photos, tmp_path / "set", Options(labels=write_labels(tmp_path)))
    published = calls.index("index.json -> index.json")
    moved = {call.split(" -> ")[1] for call in calls[:published] if " -> " in call and not call.startswith(".partial")}
    new = {path.name for path in (tmp_path / "set").iterdir()} - {"index.json", "report.json"}
    assert moved == new
    assert not moved & {"files.jsonl.gz", "labels.bin", "r0016-00000.bin"}  # the old one is complete until then
    assert all(f"fsync {name}" in calls[:published] for name in new if name.endswith(".bin"))
    assert calls[published - 1] == calls[published + 1] == "fsync set"


class Interrupted(BaseException):
    """As a killed process: nothing may catch it."""


@pytest.mark.slow
def test_an_update_that_is_cut_off_at_any_call_leaves_the_old_dataset_or_the_new_one(photos, tmp_path, monkeypatch):
    """Before each call that changes names or waits for the disk, from the first that publishes to the last."""
    prepare(photos, tmp_path / "old", Options())
    publish, count, images = building._publish, 0, []
    save(photos / "99.png", 99)
    while len(images) == count:
        count += 1
        shutil.rmtree(tmp_path / "set", ignore_errors=True)
        shutil.copytree(tmp_path / "old", tmp_path / "set")
        with monkeypatch.context() as patch:
            left = []

            def counted(*arguments, left=left, patch=patch, count=count):
                left += range(count)
                publish(*arguments)

            def interrupting(call, left=left):
                def calling(*arguments, **options):
                    if left and left.pop() == 0:
                        raise Interrupted
                    return call(*arguments, **options)

                return calling

            patch.setattr(building, "_publish", counted)
            for name in ("fsync", "rename", "replace", "unlink", "rmdir"):
                patch.setattr(os, name, interrupting(getattr(os, name)))
            with suppress(Interrupted):
                prepare(photos, tmp_path / "set", Options())
                break
        found = ImagePyramid(tmp_path / "set")
        found.verify()
        images.append(found.images)
        updated = prepare(photos, tmp_path / "set", Options())
        updated.verify()
        np.testing.assert_array_equal(everything(updated), np.stack([noise(seed) for seed in (*range(12), 99)]))
        assert len(list((tmp_path / "set").iterdir())) == 6  # three levels, index, records, report
        assert not list(tmp_path.glob(".set*"))
    assert images == sorted(images)  # the old one, then the new one
    assert set(images) == {12, 13}


def test_an_image_that_the_disk_did_not_take_is_told(photos, tmp_path, monkeypatch):
    commit = building._commit

    def refuse(layout, lines):
        if lines[0][0] != FILLED:
            raise OSError(5, "Input/output error")
        commit(layout, lines)

    monkeypatch.setattr(building, "_commit", refuse)
    with pytest.raises(UserError, match="Input/output error"):
        prepare(photos, tmp_path / "set", Options())


KILLED = """
import os, signal, sys
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import count
from pathlib import Path
from pggan.data.layout import Layout
from pggan.data import build
from pggan.data.prepare import prepare
from pggan.data.planning import Options

def kill_before(owner, name, number):
    function, calls = getattr(owner, name), count(1)

    def call(*arguments):
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)

    setattr(owner, name, call)

class Executor(ThreadPoolExecutor):
    def submit(self, *arguments):
        future = super().submit(*arguments)
        wait([future])
        return future

# Every image is written down as done before the next one is made.
build.COMMIT_SECONDS, build.ThreadPoolExecutor = 0, Executor
kill_before(*{"write": (Layout, "write", 20), "commit": (build, "_commit", 3)}[sys.argv[3]])
prepare(Path(sys.argv[1]), Path(sys.argv[2]), Options(), workers=1)
"""


@pytest.mark.slow
def test_kill_9_leaves_nothing_half_made_and_the_next_preparation_continues(tmp_path):
    """Before an image is put into its place, and before the third time that places are written down as done."""
    for seed in range(60):
        save(tmp_path / "photos" / f"{seed:02d}.png", seed)
    (tmp_path / "run.py").write_text(KILLED)
    whole = prepare(tmp_path / "photos", tmp_path / "whole", Options())
    command = [sys.executable, str(tmp_path / "run.py"), str(tmp_path / "photos"), str(tmp_path / "set")]
    for instant in ("write", "commit"):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        killed = subprocess.run([*command, instant], env=environment, stderr=subprocess.PIPE, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert not (tmp_path / "set").exists()
    pyramid = prepare(tmp_path / "photos", tmp_path / "set", Options())
    pyramid.verify()
    assert pyramid.fingerprint == whole.fingerprint
    assert not list(tmp_path.glob(".set*"))
