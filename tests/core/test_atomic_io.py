"""Atomic writes: at every system call, what a kill or a power failure would leave is the old content or the new one."""

import json
import os
import shutil
from pathlib import Path

import pytest

from pggan.core.atomic_io import (
    REPLACED,
    TEMPORARY,
    atomic_directory,
    atomic_write,
    clean_partials,
    directory_bytes,
    existing_parent,
    file_sha256,
    is_plain,
    make_directory,
    parse_json,
    read_json,
    remove_directory,
)

CALLS = ("fsync", "rename", "replace", "unlink", "rmdir")


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


# ---- files -----------------------------------------------------------------------------------------------


def test_a_files_content_is_durable_before_its_name_and_its_name_before_the_end(tmp_path, recorded):
    with atomic_write(tmp_path / "file") as temporary:
        temporary.write_text("new")
        assert not (tmp_path / "file").exists()
    assert (tmp_path / "file").read_text() == "new"
    partial = f"{TEMPORARY}file"
    assert [call for call in recorded if call[0] != "unlink"] == [
        ("fsync", partial),
        ("replace", partial),
        ("fsync", tmp_path.name),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_is_the_old_or_the_new_one_at_every_call(tmp_path, recorded):
    seen = []
    (tmp_path / "file").write_text("old")
    recorded.before = lambda: seen.append((tmp_path / "file").read_text())
    with atomic_write(tmp_path / "file") as temporary:
        temporary.write_text("new")
    assert set(seen) == {"old", "new"}


@pytest.mark.parametrize("old", [None, "old"])
def test_a_write_that_fails_leaves_what_was_there(tmp_path, old):
    if old is not None:
        (tmp_path / "file").write_text(old)
    with pytest.raises(InterruptedError), atomic_write(tmp_path / "file") as temporary:
        write_and_fail(temporary)
    assert content(tmp_path) == ({} if old is None else {"file": old})


# ---- directories -----------------------------------------------------------------------------------------


def test_a_directorys_files_are_durable_before_its_name_and_its_name_before_the_old_one_goes(tmp_path, recorded):
    path = tmp_path / "set"
    path.mkdir()
    write_two(path, "old")
    with atomic_directory(path) as temporary:
        write_two(temporary, "new")
    assert content(path) == {"a": "new", "b": "new"}
    assert [item.name for item in tmp_path.iterdir()] == ["set"]
    partial = f"{TEMPORARY}set"
    aside, named = recorded.index(("rename", "set")), recorded.index(("rename", partial))
    assert {("fsync", "a"), ("fsync", "b"), ("fsync", partial)} <= set(recorded[:aside])
    assert named == aside + 1
    assert recorded[named + 1] == ("fsync", tmp_path.name)
    assert not {"unlink", "rmdir"} & {name for name, _ in recorded[: named + 2]}  # nothing is removed before that


@pytest.mark.parametrize("replacing", [False, True])
def test_a_kill_at_any_call_leaves_the_old_directory_or_the_new_one(tmp_path, recorded, replacing, monkeypatch):
    path, seen = tmp_path / "here" / "set", []
    path.parent.mkdir()
    old, new = {"a": "old", "b": "old"}, {"a": "new", "b": "new"}
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
    before = old if replacing else {}
    assert seen == [before] * seen.count(before) + [new] * seen.count(new)  # first the old one, then the new one
    assert seen[0] == before
    assert content(path) == new


@pytest.mark.parametrize("replacing", [False, True])
def test_a_directory_that_can_not_be_finished_leaves_what_was_there(tmp_path, replacing):
    path = tmp_path / "set"
    if replacing:
        path.mkdir()
        write_two(path, "old")
    with pytest.raises(InterruptedError), atomic_directory(path) as temporary:
        write_and_fail(temporary / "a")
    assert [item.name for item in tmp_path.iterdir()] == ["set"] * replacing
    assert not replacing or content(path) == {"a": "old", "b": "old"}


def test_an_earlier_attempt_is_no_part_of_the_next_one(tmp_path):
    leftover = tmp_path / f"{TEMPORARY}set"
    leftover.mkdir()
    (leftover / "stale").write_text("x")
    with atomic_directory(tmp_path / "set") as temporary:
        write_two(temporary, "new")
    assert content(tmp_path / "set") == {"a": "new", "b": "new"}


def test_a_removed_directory_loses_its_name_before_its_files(tmp_path, recorded):
    path = tmp_path / "set"
    path.mkdir()
    write_two(path, "old")
    recorded.before = lambda: (
        recorded and (recorded[0] == ("rename", "set") or pytest.fail(f"first call: {recorded[0]}"))
    )
    remove_directory(path)
    assert list(tmp_path.iterdir()) == []


# ---- cleaning up -----------------------------------------------------------------------------------------


def test_what_was_being_replaced_is_put_back_only_where_nothing_took_its_name(tmp_path):
    for name in (f"{REPLACED}lost", f"{REPLACED}kept", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    clean_partials(tmp_path)
    assert {item.name: content(item) for item in tmp_path.iterdir()} == {
        "lost": {"file": f"{REPLACED}lost"},
        "kept": {"file": "kept"},
    }


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


# ---- making and measuring --------------------------------------------------------------------------------


def test_directories_are_made_durably_and_told_deepest_first(tmp_path, recorded):
    path = tmp_path / "a" / "b" / "c"
    assert make_directory(path) == [path, path.parent, path.parent.parent]
    assert path.is_dir()
    assert recorded == [("fsync", tmp_path.name), ("fsync", "a"), ("fsync", "b")]
    assert make_directory(path) == []


def test_the_deepest_directory_that_exists_is_found(tmp_path):
    assert existing_parent(tmp_path) == tmp_path
    assert existing_parent(tmp_path / "no" / "such") == tmp_path


def test_only_regular_files_are_plain_and_counted(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_bytes(bytes(1000))
    (tmp_path / "file").write_bytes(bytes(10))
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    plain = {name: is_plain(tmp_path / name) for name in ("file", "link", "pipe", "below", "missing")}
    assert plain == {"file": True, "link": False, "pipe": False, "below": False, "missing": False}
    assert directory_bytes(tmp_path) == 1010


def test_the_checksum_is_the_published_one_of_abc(tmp_path):
    (tmp_path / "abc").write_text("abc")  # FIPS 180-2, appendix B.1
    assert file_sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


# ---- JSON ------------------------------------------------------------------------------------------------


def test_a_json_object_of_the_largest_size_is_read(tmp_path):
    value = {"a": [1, 2.5, None, True], "b": {"c": "ü"}}
    (tmp_path / "file").write_text(json.dumps(value))
    size = (tmp_path / "file").stat().st_size
    assert read_json(tmp_path / "file", size) == value
    with pytest.raises(ValueError, match=f"larger than {size - 1}"):
        read_json(tmp_path / "file", size - 1)


def test_a_link_or_a_pipe_is_not_read(tmp_path):
    (tmp_path / "file").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    for name in ("link", "pipe", "missing"):
        with pytest.raises(ValueError, match="not a plain file"):
            read_json(tmp_path / name, 100)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "not a JSON object"),
        ("3", "not a JSON object"),
        ('{"a": 1, "a": 2}', "a key twice"),
        ('{"b": {"a": 1, "a": 1}}', "a key twice"),
        ('{"a": NaN}', "NaN"),
        ('{"a": [-Infinity]}', "Infinity"),
        ('{"a": ' + "[" * 100_000, "nested too deeply"),
        ('{"a": 1', "delimiter"),
        ("", "Expecting value"),
    ],
)
def test_json_that_is_not_strict_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_json(text)
