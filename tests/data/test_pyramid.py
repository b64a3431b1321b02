"""The dataset format against its definition, and against damage, malice and sudden death."""

import hashlib
import json
import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pggan.core.errors import UserError
from pggan.data.format.levels import block_sums, rounded_mean
from pggan.data.format.pyramid import ImagePyramid, pyramid_bytes, require_free_space
from pggan.data.format.writer import PyramidWriter


def random_images(count, resolution=16, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, resolution, resolution, channels), np.uint8)


def write(destination, images, labels=None, **options):
    _, resolution, _, channels = images.shape
    with PyramidWriter(destination, resolution, channels, {"kind": "test"}, **options) as writer:
        for number, image in enumerate(images):
            writer.add(image, None if labels is None else labels[number])
    return ImagePyramid(destination)


def edit_index(dataset, **changes):
    index = json.loads((dataset / "index.json").read_text())
    index.update(changes)
    (dataset / "index.json").write_text(json.dumps(index))


@pytest.fixture
def dataset(tmp_path):
    write(tmp_path / "set", random_images(5))
    return tmp_path / "set"


def test_a_lower_level_is_the_rounded_mean_of_blocks_of_the_top_level(tmp_path):
    images = random_images(3)
    pyramid = write(tmp_path / "set", images)
    for resolution in (4, 8, 16):
        side = 16 // resolution
        expected = np.empty((3, resolution, resolution, 3), np.uint8)
        for number, y, x, channel in np.ndindex(*expected.shape):
            block = images[number, y * side : (y + 1) * side, x * side : (x + 1) * side, channel]
            expected[number, y, x, channel] = math.floor(sum(map(int, block.flat)) / side**2 + 0.5)
        np.testing.assert_array_equal(pyramid.read(resolution, np.arange(3)), expected)


def test_half_rounds_up_and_only_once_over_all_levels(tmp_path):
    image = np.zeros((16, 16, 1), np.uint8)
    image[:4, :4] = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]])[..., None]
    pyramid = write(tmp_path / "set", image[None])
    assert pyramid.read(4, np.array([0]))[0, 0, 0, 0] == 1  # the mean is 8/16
    image[3, 1] = 0  # now 7/16, although level 8 rounds to 1, 0, 1, 1
    assert write(tmp_path / "less", image[None]).read(4, np.array([0]))[0, 0, 0, 0] == 0


@given(st.integers(1, 2**16), st.floats(0, 1))
def test_a_rounded_mean_is_exact_for_every_sum(count, fraction):
    total = round(fraction * 255 * count)
    expected = math.floor(Fraction(total, count) + Fraction(1, 2))
    assert rounded_mean(np.array([total], np.uint32), count)[0] == expected


def test_block_sums_of_white_do_not_overflow():
    white = np.full((1024, 1024, 1), 255, np.uint8)
    assert (block_sums(white, 4) == 255 * 256**2).all()
    assert (rounded_mean(block_sums(white, 4), 256**2) == 255).all()


def test_images_come_in_the_order_asked_for_across_shards(tmp_path):
    images = random_images(11)
    pyramid = write(tmp_path / "set", images, shard_bytes=3 * images[0].nbytes)
    assert sorted(path.name for path in pyramid.path.glob("r0016-*")) == [
        f"r0016-{number:05d}.bin" for number in range(4)
    ]
    for indices in ([10, 0, 5, 5, 3, 2, 9], [4], []):
        found = pyramid.read(16, np.array(indices, np.int64))
        np.testing.assert_array_equal(found, images[np.array(indices, np.int64)])


def test_the_top_level_file_holds_the_images_byte_by_byte(tmp_path):
    images = random_images(4, channels=1)
    assert write(tmp_path / "set", images).channels == 1
    assert (tmp_path / "set/r0016-00000.bin").read_bytes() == images.tobytes()


def test_an_image_larger_than_a_shard_gets_its_own(tmp_path):
    images = random_images(2)
    pyramid = write(tmp_path / "set", images, shard_bytes=1)
    np.testing.assert_array_equal(pyramid.read(16, np.arange(2)), images)


def test_labels_and_class_names_come_back(tmp_path):
    names, labels = ["cat", "dog", "eel"], [2, 0, 1, 2]
    pyramid = write(tmp_path / "set", random_images(4), labels=labels, class_names=names)
    assert pyramid.class_names == names
    assert pyramid.labels.tolist() == labels
    assert pyramid.labels.dtype == np.int64
    content = (pyramid.path / "labels.bin").read_bytes()
    assert content == b"".join(label.to_bytes(8, "little") for label in labels)


def test_a_dataset_says_what_it_holds(dataset):
    pyramid = ImagePyramid(dataset)
    assert (pyramid.images, pyramid.channels, pyramid.resolution) == (5, 3, 16)
    assert pyramid.resolutions == (4, 8, 16)
    assert pyramid.labels is None
    assert pyramid.class_names is None
    assert pyramid.source == {"kind": "test"}
    assert pyramid.fingerprint == hashlib.sha256((dataset / "index.json").read_bytes()).hexdigest()
    pyramid.verify()


def test_the_same_images_give_the_same_fingerprint_and_others_another(tmp_path):
    first, same, other = (write(tmp_path / str(n), random_images(3, seed=n // 2)) for n in range(3))
    assert first.fingerprint == same.fingerprint != other.fingerprint


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


def test_a_directory_without_an_index_is_no_dataset(tmp_path):
    with pytest.raises(UserError, match="not a prepared dataset"):
        ImagePyramid(tmp_path)


def test_a_dataset_of_a_newer_format_asks_for_an_upgrade(dataset):
    edit_index(dataset, version=2)
    with pytest.raises(UserError, match="format version 2") as raised:
        ImagePyramid(dataset)
    assert "pip install --upgrade" in raised.value.remedy


FOREIGN = [b"", b"{", b"\xff\xfe", b"[]", b"3", b"{}", b"[" * 100_000, b'{"format": "x"}']


@pytest.mark.parametrize("content", FOREIGN)
def test_an_index_that_is_not_ours_is_refused(dataset, content):
    (dataset / "index.json").write_bytes(content)
    with pytest.raises(UserError, match=r"index\.json is not usable"):
        ImagePyramid(dataset)


@pytest.mark.parametrize(
    "changes",
    [
        {"images": 0},
        {"images": -5},
        {"images": True},
        {"images": "5"},
        {"images": 4},
        {"channels": 2},
        {"resolution": 24},
        {"resolution": 32},
        {"resolution": 10**30},
        {"resolution": 2**200},
        {"levels": {}},
        {"levels": {"4": 1, "8": 1, "16": 1}},
        {"labels": "cats"},
        {"labels": [1]},
        {"labels": ["cat"]},
        {"source": None},
    ],
    ids=str,
)
def test_an_index_with_an_impossible_value_is_refused(dataset, changes):
    edit_index(dataset, **changes)
    with pytest.raises(UserError, match=r"index\.json is not usable"):
        ImagePyramid(dataset)


OUTSIDE = ["../outside.bin", "/etc/passwd", "..", "a/b", "a\\b", ".hidden", "", "a\0b", "a\nb"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_shard_outside_the_directory_is_refused(dataset, name):
    (dataset.parent / "outside.bin").write_bytes(bytes(5 * 4 * 4 * 3))
    index = json.loads((dataset / "index.json").read_text())
    index["levels"]["4"][0]["file"] = name
    edit_index(dataset, levels=index["levels"])
    with pytest.raises(UserError, match="not a plain file name"):
        ImagePyramid(dataset)


def test_a_shard_that_is_a_link_is_refused(dataset):
    shard = dataset / "r0004-00000.bin"
    shard.rename(dataset.parent / "outside.bin")
    shard.symlink_to(dataset.parent / "outside.bin")
    with pytest.raises(UserError, match=r"r0004-00000\.bin is missing, or not a plain file"):
        ImagePyramid(dataset)


def test_a_label_without_a_class_is_refused(tmp_path):
    pyramid = write(tmp_path / "set", random_images(2), labels=[0, 1], class_names=["cat", "dog"])
    edit_index(pyramid.path, labels=["cat"])
    with pytest.raises(UserError, match=r"label outside 0\.\.0"):
        ImagePyramid(pyramid.path)


# ---- writing


def test_an_existing_destination_is_refused_and_left_alone(dataset):
    before = {path.name: path.read_bytes() for path in dataset.iterdir()}
    with pytest.raises(UserError, match="exists already"):
        write(dataset, random_images(1))
    assert {path.name: path.read_bytes() for path in dataset.iterdir()} == before


def test_an_exception_while_writing_leaves_nothing(tmp_path):
    def interrupted():
        yield random_images(1)[0]
        raise KeyboardInterrupt

    def write_interrupted():
        with PyramidWriter(tmp_path / "set", 16, 3, {}) as writer:
            for image in interrupted():
                writer.add(image)

    with pytest.raises(KeyboardInterrupt):
        write_interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_writer_without_images_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="at least one"), PyramidWriter(tmp_path / "set", 16, 3, {}):
        pass
    assert list(tmp_path.iterdir()) == []


KILLED_WRITER = """
import os, sys
import numpy as np
from pathlib import Path
from pggan.data.format.writer import PyramidWriter
with PyramidWriter(Path(sys.argv[1]), 16, 3, {}, shard_bytes=1) as writer:
    writer.add(np.zeros((16, 16, 3), np.uint8))
    os._exit(9)
"""


def test_a_killed_writer_leaves_nothing_under_the_name_and_the_next_one_sweeps(tmp_path):
    root = Path(__file__).parents[2]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_WRITER, str(tmp_path / "set")],
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    assert killed.returncode == 9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".set.partial-")
    write(tmp_path / "set", random_images(1)).verify()
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_writer_leaves_a_living_writer_of_the_same_name_alone_and_the_second_to_finish_loses(tmp_path):
    images = random_images(2)
    slow = PyramidWriter(tmp_path / "set", 16, 3, {})
    slow.__enter__()
    slow.add(images[0])
    write(tmp_path / "set", images[1:])
    with pytest.raises(UserError, match="cannot be written"):
        slow.__exit__(None, None, None)
    np.testing.assert_array_equal(ImagePyramid(tmp_path / "set").read(16, np.array([0])), images[1:])
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_full_disk_is_a_user_error_and_leaves_nothing(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        write(tmp_path / "set", random_images(1))
    assert list(tmp_path.iterdir()) == []


def test_a_destination_below_a_file_is_a_user_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        write(tmp_path / "file/set", random_images(1))


@pytest.mark.parametrize("resolution", [0, 2, 3, 12, 100, -4])
def test_a_resolution_that_is_no_power_of_two_from_4_is_refused(tmp_path, resolution):
    with pytest.raises(UserError, match="not a power of two"):
        PyramidWriter(tmp_path / "set", resolution, 3, {})


def test_too_little_disk_space_is_told_in_megabytes_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100_000_000))
    # 1000 images of 4/3 * 256 * 256 * 3 bytes, less the levels below 4, are 262 MB.
    with pytest.raises(UserError, match=r"needs 262 MB; the disk is 162 MB short"):
        require_free_space(tmp_path / "not/yet/there", pyramid_bytes(1000, 256, 3))
    require_free_space(tmp_path / "not/yet/there", pyramid_bytes(300, 256, 3))
