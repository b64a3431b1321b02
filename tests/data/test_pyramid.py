"""Datasets opened for reading, complete or damaged."""

import hashlib
import os

import numpy as np
import pytest

from pggan.core.errors import UserError
from pggan.data.pyramid import ImagePyramid
from pggan.data.writer import write_pyramid
from tests.data.images import edit_index, random_images


def test_images_come_in_the_order_asked_for_across_shards(tmp_path, monkeypatch):
    images = random_images(11)
    monkeypatch.setattr("pggan.data.layout.SHARD_BYTES", 3 * images[0].nbytes)
    pyramid = write_pyramid(tmp_path / "set", images, {})
    assert sorted(path.name for path in pyramid.path.glob("r0016-*")) == [
        f"r0016-{number:05d}.bin" for number in range(4)
    ]
    for indices in ([10, 0, 5, 5, 3, 2, 9], [4], []):
        found = pyramid.read(16, np.array(indices, np.int64))
        np.testing.assert_array_equal(found, images[np.array(indices, np.int64)])


def test_a_dataset_says_what_it_holds(dataset):
    pyramid = ImagePyramid(dataset)
    assert (pyramid.images, pyramid.channels, pyramid.resolution) == (5, 3, 16)
    assert pyramid.resolutions == (4, 8, 16)
    assert pyramid.labels is None
    assert pyramid.class_names is None
    assert pyramid.source == {"kind": "test"}
    assert pyramid.fingerprint == hashlib.sha256((dataset / "index.json").read_bytes()).hexdigest()
    pyramid.verify()


def test_a_level_or_image_that_does_not_exist_is_refused(dataset):
    pyramid = ImagePyramid(dataset)
    with pytest.raises(UserError, match="no level 32"):
        pyramid.read(32, np.array([0]))
    for index in (-1, 5):
        with pytest.raises(IndexError):
            pyramid.read(16, np.array([index]))


# ---- damage


def test_a_flipped_bit_is_found_by_verify_and_its_file_named(dataset):
    path = dataset / "r0008-00000.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"r0008-00000\.bin was changed"):
        ImagePyramid(dataset).verify()


def test_a_truncated_shard_is_named_with_the_bytes_expected(dataset):
    os.truncate(dataset / "r0016-00000.bin", 100)
    with pytest.raises(UserError, match=rf"r0016-00000\.bin has 100 bytes where {5 * 16 * 16 * 3} are"):
        ImagePyramid(dataset)


def test_a_missing_shard_is_named(dataset):
    (dataset / "r0004-00000.bin").unlink()
    with pytest.raises(UserError, match=r"r0004-00000\.bin is missing"):
        ImagePyramid(dataset)


def test_a_shard_that_is_a_link_is_refused(dataset):
    shard = dataset / "r0004-00000.bin"
    shard.rename(dataset.parent / "outside.bin")
    shard.symlink_to(dataset.parent / "outside.bin")
    with pytest.raises(UserError, match=r"r0004-00000\.bin is missing, or not a plain file"):
        ImagePyramid(dataset)


def test_a_label_without_a_class_is_refused(tmp_path):
    pyramid = write_pyramid(tmp_path / "set", random_images(2), {}, labels=[0, 1], class_names=["cat", "dog"])
    edit_index(pyramid.path, class_names=["cat"])
    with pytest.raises(UserError, match=r"label outside 0\.\.0"):
        ImagePyramid(pyramid.path)


def test_the_bytes_of_a_level_are_those_of_its_shards(dataset):
    pyramid = ImagePyramid(dataset)
    assert [pyramid.level_bytes(level) for level in (4, 8, 16)] == [5 * level**2 * 3 for level in (4, 8, 16)]
    assert sum(path.stat().st_size for path in dataset.glob("r*.bin")) == sum(map(pyramid.level_bytes, (4, 8, 16)))
