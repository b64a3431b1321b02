"""Measurements are kept for one kind of machine; a damaged file costs measuring again, and nothing else."""

import json

import pytest

from pggan.training import autotune_cache
from pggan.training.autotune_cache import cache_file, cached_measurements, keep

ONE, OTHER = {"1x64x4x4-same-64": {"native": (0.5, 0.25)}}, {"2x64x4x4-same-64": {"im2col": (0.0, 0.1)}}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_is_kept_is_found_again_and_added_to(folder):
    assert cached_measurements() == {}
    assert keep(ONE)
    assert keep(OTHER)
    assert cached_measurements() == ONE | OTHER
    assert [path.parent for path in folder.rglob("*.json")] == [folder / "pggan" / "convolutions"]


def test_nothing_new_writes_nothing(folder):
    assert keep({})
    assert not folder.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: "",
        lambda text: text.replace("0.5", "0.6"),
        lambda text: json.dumps({**json.loads(text), "machine": {}}),
        lambda text: json.dumps({**json.loads(text), "shapes": [1]}),
        lambda text: "[]",
    ],
)
def test_a_damaged_file_counts_as_none_and_is_replaced(damage):
    keep(ONE)
    cache_file().write_text(damage(cache_file().read_text()))
    assert cached_measurements() == {}
    assert keep(OTHER)
    assert cached_measurements() == OTHER


def test_other_versions_and_instructions_have_files_of_their_own(monkeypatch):
    keep(ONE)
    for change in (
        lambda: monkeypatch.setattr(autotune_cache.torch, "__version__", "0.1"),
        lambda: monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2"),
        lambda: monkeypatch.setattr(autotune_cache, "VERSION", -1),
    ):
        before = cache_file()
        change()
        assert cache_file() != before
        assert cached_measurements() == {}


def test_a_folder_that_cannot_be_written_to_is_reported_and_harmless(folder):
    folder.write_text("a file in its place")
    assert not keep(ONE)
    assert cached_measurements() == {}
