"""Images at their places in the shards, written in any order and by several processes."""

import os
from itertools import pairwise

import numpy as np
import pytest

from pggan.data.format import layout as layouts
from pggan.data.format.layout import close_files, new_layout
from pggan.data.format.levels import all_levels


def images(count):
    return np.random.default_rng(0).integers(0, 256, (count, 16, 16, 3), np.uint8)


@pytest.fixture
def layout(tmp_path, monkeypatch):
    """Seven images, at most three to a shard of the top level."""
    monkeypatch.setattr(layouts, "SHARD_BYTES", 3 * 16 * 16 * 3)
    layout = new_layout(tmp_path, 16, 3, 7, "-0badcafe")
    layout.resize()
    yield layout
    close_files()


def test_images_written_in_any_order_are_read_back_at_every_level(layout):
    for slot in (6, 0, 3, 2, 5, 1, 4):
        layout.write(slot, all_levels(images(7)[slot]))
    for slot in range(7):
        for found, expected in zip(layout.read(slot), all_levels(images(7)[slot]), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_shards_follow_each_other_without_a_gap(layout):
    for resolution, shards in layout.levels:
        assert shards[0].first == 0
        assert all(later.first == shard.first + shard.images for shard, later in pairwise(shards))
        assert sum(shard.images for shard in shards) == 7
        assert all(shard.file.startswith(f"r{resolution:04d}-") for shard in shards)
        assert all(shard.file.endswith("-0badcafe.bin") for shard in shards)
    assert [shard.images for shard in layout.levels[0][1]] == [3, 3, 1]


def test_places_take_no_space_before_they_are_written(layout):
    assert sum(path.stat().st_size for path in layout.paths()) == 7 * 3 * (16**2 + 8**2 + 4**2)
    before = layout.stored_bytes()
    layout.write(0, all_levels(images(1)[0]))
    for path in layout.paths():
        with path.open("rb") as file:
            os.fsync(file.fileno())  # some file systems decide on blocks only then
    assert before == 0 < layout.stored_bytes()


def test_a_write_that_takes_only_a_part_goes_on_with_the_rest(layout, monkeypatch):
    """As a nearly full disk does: the call after it is the one that is refused."""
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, content, offset: write(descriptor, content[:100], offset))
    layout.write(2, all_levels(images(3)[2]))
    np.testing.assert_array_equal(layout.read(2)[0], images(3)[2])


def test_a_shard_that_was_cut_off_is_an_error(layout):
    os.truncate(layout.paths()[0], 100)
    with pytest.raises(EOFError, match="no image 1 at 16x16"):
        layout.read(1)


def test_few_files_are_open_at_any_time(layout, monkeypatch):
    monkeypatch.setattr(layouts, "MOST_OPEN_FILES", 2)
    for slot in range(7):
        layout.write(slot, all_levels(images(7)[slot]))
        assert len(layouts._open_files) <= 2
    np.testing.assert_array_equal(layout.read(0)[0], images(7)[0])
