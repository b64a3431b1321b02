"""Space on a disk, looked up before it is needed."""

from types import SimpleNamespace

import pytest

from pggan.core.disk import free_bytes, free_files, require_free_space
from pggan.core.errors import UserError


def test_too_little_space_is_told_in_megabytes(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100_000_000))
    with pytest.raises(UserError, match=r"set needs 262\.1 MB more; the disk is 162\.1 MB short") as raised:
        require_free_space(tmp_path / "set", 262_100_000, "Free some.")
    assert raised.value.remedy == "Free some."
    assert require_free_space(tmp_path / "set", 100_000_000, "") == 100_000_000


def test_the_disk_of_a_directory_that_does_not_exist_yet_is_that_of_its_parent(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("shutil.disk_usage", lambda path: asked.append(path) or SimpleNamespace(free=5))
    assert free_bytes(tmp_path / "not/yet/there") == free_bytes(tmp_path) == 5
    assert asked == [tmp_path, tmp_path]


def test_files_that_the_disk_has_room_for_are_unknown_where_it_does_not_count_them(tmp_path, monkeypatch):
    asked = []
    facts = SimpleNamespace(f_files=100, f_favail=0)
    monkeypatch.setattr("os.statvfs", lambda path: asked.append(path) or facts)
    assert free_files(tmp_path / "not/yet/there") == 0
    facts.f_files = 0
    assert free_files(tmp_path) is None
    assert asked == [tmp_path, tmp_path]
