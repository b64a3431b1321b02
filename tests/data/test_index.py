"""An index from elsewhere: whatever is wrong with it is refused."""

import json

import pytest

from pggan.core.errors import UserError
from pggan.data.pyramid import ImagePyramid
from tests.data.images import edit_index


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
        {"class_names": "cats"},
        {"class_names": [1]},
        {"class_names": ["cat"]},
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
