"""Pyramids written and read: every byte in its place, the lower levels as defined, damage and lies refused."""

import json
import math
import os

import numpy as np
import pytest

from pggan.core.errors import UserError
from pggan.data import pyramid
from pggan.data.pyramid import ImagePyramid
from tests.data.images import edit_index, random_images
from tests.pyramids import write_pyramid


@pytest.fixture
def small_shards(monkeypatch):
    """At most three images to a shard of the top level."""
    monkeypatch.setattr(pyramid, "SHARD_BYTES", 3 * 16 * 16 * 3)


def test_images_come_in_the_order_asked_for_across_shards(tmp_path, small_shards):
    images = random_images(11)
    pyramid = write_pyramid(tmp_path / "set", images, {})
    shards = sorted((path.name, path.stat().st_size // (16 * 16 * 3)) for path in pyramid.path.glob("r0016*"))
    assert shards == [(f"r0016-{number:05d}.bin", images) for number, images in enumerate((3, 3, 3, 2))]
    for indices in ([10, 0, 5, 5, 3, 2, 9], [4], []):
        found = pyramid.read(16, np.array(indices, np.int64))
        np.testing.assert_array_equal(found, images[np.array(indices, np.int64)])


def test_labels_and_class_names_come_back(tmp_path):
    names, labels = ["cat", "dog", "eel"], [2, 0, 1, 2]
    pyramid = write_pyramid(tmp_path / "set", random_images(4), {}, labels=labels, class_names=names)
    assert (pyramid.class_names, pyramid.labels.tolist(), pyramid.labels.dtype) == (names, labels, np.int64)
    content = (pyramid.path / "labels.bin").read_bytes()
    assert content == b"".join(label.to_bytes(8, "little") for label in labels)
    edit_index(pyramid.path, class_names=["a", "b", "c"])
    assert ImagePyramid(pyramid.path).fingerprint == pyramid.fingerprint
    edit_index(pyramid.path, class_names=["cat", "dog"])
    with pytest.raises(UserError, match=r"label outside 0\.\.1"):
        ImagePyramid(pyramid.path)


# ---- the lower levels: the exact mean of blocks of the top level, rounded half up


def test_a_lower_level_is_the_rounded_mean_of_blocks_of_the_top_level(tmp_path):
    images = random_images(3)
    pyramid = write_pyramid(tmp_path / "set", images, {})
    for resolution in (4, 8, 16):
        side = 16 // resolution
        expected = np.empty((3, resolution, resolution, 3), np.uint8)
        for number, y, x, channel in np.ndindex(*expected.shape):
            block = images[number, y * side : (y + 1) * side, x * side : (x + 1) * side, channel]
            expected[number, y, x, channel] = math.floor(sum(map(int, block.flat)) / side**2 + 0.5)
        np.testing.assert_array_equal(pyramid.read(resolution, np.arange(3)), expected)
    white = write_pyramid(tmp_path / "white", np.full((1, 128, 128, 1), 255, np.uint8), {})
    assert (white.read(4, np.arange(1)) == 255).all()  # sums of 1024 pixels take more than 16 bits


# ---- damage and lies


def link(path):
    path.rename(path.parent.parent / "outside.bin")
    path.symlink_to(path.parent.parent / "outside.bin")


DAMAGE = {
    "other pixels": (lambda path: path.write_bytes(bytes(path.stat().st_size)), "was changed"),
    "a cut file": (lambda path: os.truncate(path, 100), f"has 100 bytes where {5 * 8 * 8 * 3} are"),
    "a missing file": (lambda path: path.unlink(), "is missing"),
    "a link": (link, "is missing, or not a regular file"),
}


@pytest.mark.parametrize(("damage", "problem"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_shard_is_named(dataset, damage, problem):
    damage(dataset / "r0008-00000.bin")
    with pytest.raises(UserError, match=rf"r0008-00000\.bin {problem}"):
        ImagePyramid(dataset).verify()


def test_no_dataset_and_one_of_a_newer_format_are_refused(dataset, tmp_path):
    with pytest.raises(UserError, match="not a prepared dataset"):
        ImagePyramid(tmp_path)
    edit_index(dataset, version=2)
    with pytest.raises(UserError, match="format version 2"):
        ImagePyramid(dataset)


LIES = [
    *(b"", b"\xff\xfe", b"[]", b'{"format": "x"}'),
    *({"images": 0}, {"images": 2**200}, {"channels": 2}, {"resolution": 24}, {"resolution": 2**200}),
    *({"levels": {"4": 1, "8": 1, "16": 1}}, {"class_names": ["cat"]}, {"images": "5"}, {"images": -5}),
]


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_an_index_that_can_not_be_true_is_refused(dataset, lie):
    index = json.loads((dataset / "index.json").read_text())
    if isinstance(lie, dict):
        index.update(lie)
    (dataset / "index.json").write_bytes(lie if isinstance(lie, bytes) else json.dumps(index).encode())
    with pytest.raises(UserError, match=r"index\.json is not usable"):
        ImagePyramid(dataset)
