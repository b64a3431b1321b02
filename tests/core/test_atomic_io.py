"""Atomic writes: at every system call, what a kill or a power failure would leave is whole."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from pggan.core.atomic_io import TEMPORARY, atomic_directory, atomic_write, clean_partials, remove_directory, try_lock

CALLS = ("fsync", "rename", "replace", "unlink", "rmdir")


def test_an_error_that_names_no_file_gets_the_name_of_the_file_to_write(tmp_path):
    with pytest.raises(OSError, match=r"No space left: '.*/a\.png'"), atomic_write(tmp_path / "a.png"):
        raise OSError(errno.ENOSPC, "No space left")


@pytest.fixture
def recorded(monkeypatch):
    """The system calls that change names or make content durable, each as (name, file); `recorded.before` sees them."""

    class Recorded(list):
        before = staticmethod(lambda: None)

    calls = Recorded()

    def watch(name):
        real = getattr(os, name)

        def call(target, *others, **options):
            calls.before()
            calls.append(
                (name, Path(f"/proc/self/fd/{target}").resolve().name if name == "fsync" else Path(target).name)
            )
            return real(target, *others, **options)

        monkeypatch.setattr(os, name, call)

    for name in CALLS:
        watch(name)
    return calls


def write_two(directory: Path, text: str) -> None:
    for name in ("a", "b"):
        (directory / name).write_text(text)


def write_and_fail(path: Path) -> None:
    path.write_text("ne")
    raise InterruptedError


def content(directory: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in directory.iterdir()}


def test_a_file_is_the_old_or_the_new_one_at_every_call_and_the_old_one_after_a_failure(tmp_path, recorded):
    seen = []
    (tmp_path / "file").write_text("old")
    recorded.before = lambda: seen.append((tmp_path / "file").read_text())
    with pytest.raises(InterruptedError), atomic_write(tmp_path / "file") as temporary:
        write_and_fail(temporary)
    assert content(tmp_path) == {"file": "old"}
    with atomic_write(tmp_path / "file") as temporary:
        temporary.write_text("new")
    assert set(seen) == {"old", "new"}


def test_content_is_on_the_disk_before_it_has_its_name_and_the_name_soon_after(tmp_path, recorded):
    file, directory = f"{TEMPORARY}file", f"{TEMPORARY}set"
    with atomic_write(tmp_path / "file") as temporary:
        temporary.write_text("new")
    assert recorded[:3] == [("fsync", file), ("replace", file), ("fsync", tmp_path.name)]
    recorded.clear()
    with atomic_directory(tmp_path / "set") as temporary:
        write_two(temporary, "new")
    assert set(recorded[:3]) == {("fsync", "a"), ("fsync", "b"), ("fsync", directory)}
    assert recorded[3:5] == [("rename", directory), ("fsync", tmp_path.name)]


@pytest.mark.parametrize("replacing", [False, True])
def test_a_kill_at_any_call_leaves_the_old_directory_none_or_the_new_one(tmp_path, recorded, replacing):
    path, seen = tmp_path / "here" / "set", []
    path.parent.mkdir()
    if replacing:
        path.mkdir()
        write_two(path, "old")

    def look():
        """What the next start would find, had this process been killed now."""
        recorded.before = lambda: None
        found = tmp_path / f"found-{len(seen)}"
        shutil.copytree(path.parent, found)
        clean_partials(found)
        assert [item.name for item in found.iterdir()] in ([], ["set"])
        seen.append(content(found / "set") if (found / "set").exists() else {})
        recorded.before = look

    recorded.before = look
    with atomic_directory(path) as temporary:
        write_two(temporary, "new")
    recorded.before = lambda: None
    stages = [{"a": "old", "b": "old"}] * replacing + [{}, {"a": "new", "b": "new"}]
    order = [stages.index(found) for found in seen]
    assert order == sorted(order)
    assert order[0] == 0
    assert content(path) == stages[-1]


def test_a_removed_directory_loses_its_name_before_its_files(tmp_path, recorded):
    path = tmp_path / "set"
    path.mkdir()
    write_two(path, "old")
    recorded.before = lambda: (
        recorded and (recorded[0] == ("rename", "set") or pytest.fail(f"first call: {recorded[0]}"))
    )
    remove_directory(path)
    assert list(tmp_path.iterdir()) == []


def test_unfinished_writes_are_removed_and_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    write_two(outside, "precious")
    here = tmp_path / "here"
    (here / f"{TEMPORARY}set").mkdir(parents=True)
    write_two(here / f"{TEMPORARY}set", "half")
    (here / f"{TEMPORARY}file").write_text("half")
    (here / f"{TEMPORARY}link").symlink_to(outside)
    (here / "file").write_text("whole")
    clean_partials(here)
    assert content(here) == {"file": "whole"}
    assert content(outside) == {"a": "precious", "b": "precious"}


def test_a_lock_is_held_by_one_descriptor(tmp_path):
    with (tmp_path / "lock").open("w") as one, (tmp_path / "lock").open("w") as other:
        assert try_lock(one.fileno())
        assert not try_lock(other.fileno())
        closed = one.fileno()
        one.close()
        assert try_lock(other.fileno())
        assert try_lock(closed)  # fails with an OSError, as a file system without locks does
