"""Small datasets written in one call: the bytes of every file."""

import numpy as np

from pggan.data.writer import write_pyramid
from tests.data.images import random_images


def test_the_top_level_file_holds_the_images_byte_by_byte(tmp_path):
    images = random_images(4, channels=1)
    assert write_pyramid(tmp_path / "set", images, {}).channels == 1
    assert (tmp_path / "set/r0016-00000.bin").read_bytes() == images.tobytes()


def test_an_image_larger_than_a_shard_gets_its_own(tmp_path, monkeypatch):
    images = random_images(2)
    monkeypatch.setattr("pggan.data.layout.SHARD_BYTES", 1)
    pyramid = write_pyramid(tmp_path / "set", images, {})
    np.testing.assert_array_equal(pyramid.read(16, np.arange(2)), images)


def test_labels_and_class_names_come_back(tmp_path):
    names, labels = ["cat", "dog", "eel"], [2, 0, 1, 2]
    pyramid = write_pyramid(tmp_path / "set", random_images(4), {}, labels=labels, class_names=names)
    assert pyramid.class_names == names
    assert pyramid.labels.tolist() == labels
    assert pyramid.labels.dtype == np.int64
    content = (pyramid.path / "labels.bin").read_bytes()
    assert content == b"".join(label.to_bytes(8, "little") for label in labels)


def test_the_same_images_give_the_same_fingerprint_and_others_another(tmp_path):
    first, same, other = (write_pyramid(tmp_path / str(n), random_images(3, seed=n // 2), {}) for n in range(3))
    assert first.fingerprint == same.fingerprint != other.fingerprint
