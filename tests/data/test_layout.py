"""Images at their places in the shards, written in any order and by several processes."""

import os

import numpy as np
import pytest

from pggan.data import layout as layouts
from pggan.data.layout import Layout, close_files
from pggan.data.levels import all_levels


def images(count):
    return np.random.default_rng(0).integers(0, 256, (count, 16, 16, 3), np.uint8)


@pytest.fixture
def layout(tmp_path, monkeypatch):
    """Seven images, at most three to a shard of the top level."""
    monkeypatch.setattr(layouts, "SHARD_BYTES", 3 * 16 * 16 * 3)
    layout = Layout(tmp_path, 16, 3, 7, "-0badcafe")
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
    assert [(shard.path.name, shard.images) for shard in layout.shards()] == [
        ("r0016-00000-0badcafe.bin", 3),
        ("r0016-00001-0badcafe.bin", 3),
        ("r0016-00002-0badcafe.bin", 1),
        ("r0008-00000-0badcafe.bin", 7),
        ("r0004-00000-0badcafe.bin", 7),
    ]
    assert all(shard.bytes == shard.images * shard.resolution**2 * 3 for shard in layout.shards())
    for level, place in enumerate((2, 3, 4)):  # the last image is the last of its shard
        layout.write(6, all_levels(images(7)[6]))
        last = layout.shards()[place].path.read_bytes()[-3 * (16 >> level) ** 2 :]
        assert last == all_levels(images(7)[6])[level].tobytes()


def test_places_take_no_space_before_they_are_written(layout):
    assert sum(shard.path.stat().st_size for shard in layout.shards()) == 7 * 3 * (16**2 + 8**2 + 4**2)
    before = layout.stored_bytes()
    layout.write(0, all_levels(images(1)[0]))
    for shard in layout.shards():
        with shard.path.open("rb") as file:
            os.fsync(file.fileno())  # some file systems decide on blocks only then
    assert before == 0 < layout.stored_bytes()


def test_a_write_that_takes_only_a_part_goes_on_with_the_rest(layout, monkeypatch):
    """As a nearly full disk does: the call after it is the one that is refused."""
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, content, offset: write(descriptor, content[:100], offset))
    layout.write(2, all_levels(images(3)[2]))
    np.testing.assert_array_equal(layout.read(2)[0], images(3)[2])


def test_a_shard_that_was_cut_off_is_an_error(layout):
    os.truncate(layout.shards()[0].path, 100)
    with pytest.raises(EOFError, match="no image 1 at 16x16"):
        layout.read(1)


def test_few_files_are_open_at_any_time(layout, monkeypatch):
    monkeypatch.setattr(layouts, "MAX_OPEN_FILES", 2)
    for slot in range(7):
        layout.write(slot, all_levels(images(7)[slot]))
        assert len(layouts._open_files) <= 2
    np.testing.assert_array_equal(layout.read(0)[0], images(7)[0])
