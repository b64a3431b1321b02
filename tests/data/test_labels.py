"""Labels from JSON and CSV files."""

import json

import numpy as np
import pytest
from PIL import Image

from pggan.core.errors import UserError
from pggan.data.labels import class_names, read_labels
from pggan.data.planning import Options
from pggan.data.prepare import prepare


@pytest.fixture
def photos(tmp_path):
    for name in ("a.png", "b/c.png", "d.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(len(name)).integers(0, 256, (8, 8, 3), np.uint8)).save(path)
    return tmp_path / "photos"


FORMS = {
    "labels.csv": "a.png,cat\nb/c.png, dog\nd.png,cat\nnot-there.png,cow\n",
    "labels.json": json.dumps({"a.png": "cat", "b/c.png": "dog", "d.png": "cat"}),
    "dataset.json": json.dumps({"labels": [["a.png", "cat"], ["b/c.png", "dog"], ["d.png", "cat"]]}),
}


@pytest.mark.parametrize(("name", "content"), FORMS.items())
def test_labels_come_from_a_file(photos, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    pyramid = prepare(photos, tmp_path / "set", Options(labels=str(tmp_path / name)))
    assert (pyramid.class_names, pyramid.labels.tolist()) == (["cat", "dog"], [0, 1, 0])


def test_numbers_stay_in_their_order():
    assert class_names(["10", "9", "2", "9"]) == ["2", "9", "10"]
    assert class_names(["b", "10", "9"]) == ["10", "9", "b"]


def test_an_image_that_is_not_listed_is_named(photos, tmp_path):
    (tmp_path / "labels.csv").write_text("a.png,cat\n")
    with pytest.raises(UserError, match=r"no label for 2 of 3 images, b/c\.png"):
        prepare(photos, tmp_path / "set", Options(labels=str(tmp_path / "labels.csv")))
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", "{"),
        ("a.json", "[]"),
        ("a.json", '{"labels": [1]}'),
        ("a.csv", "a,b,c\n"),
        ("a.csv", ""),
        ("b", None),
    ],
)
def test_what_holds_no_labels_is_refused(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match="labels="):
        read_labels(tmp_path / name)
