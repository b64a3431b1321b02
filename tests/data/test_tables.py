"""The tables that people bring: landmarks and labels."""

import json

import numpy as np
import pytest

from pggan.core.errors import UserError
from pggan.data.tables import class_names, landmarks_from, read_labels, read_landmarks
from tests.data.images import prepared
from tests.data.test_face_crop import UPRIGHT


def test_68_and_5_and_4_points_are_the_same_landmarks():
    points = np.zeros((68, 2))
    around = np.array([[-5, 0], [-2, -3], [2, -3], [5, 0], [2, 3], [-2, 3]])
    points[36:42], points[42:48] = around + UPRIGHT[0], around + UPRIGHT[1]
    points[48], points[54] = UPRIGHT[2:]
    for form in (points.tolist(), [*UPRIGHT[:2], [100, 130], *UPRIGHT[2:]], UPRIGHT.tolist()):
        np.testing.assert_array_equal(landmarks_from(form), UPRIGHT)
    for bad in ([], [[1, 2]], [[1, 2, 3]] * 4, [[1, float("nan")]] * 4):
        with pytest.raises(ValueError, match="points"):
            landmarks_from(bad)


@pytest.mark.parametrize("content", ["", '{"a.png": {"x": 1}}', "a.png 1 2 3"])
def test_a_file_without_landmarks_is_refused(tmp_path, content):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(UserError, match="landmarks="):
        read_landmarks(tmp_path / "bad.json")


# ---- labels


def test_the_first_folder_is_the_class(folder, tmp_path):
    with pytest.raises(UserError, match=r"1 of 4 images in photos have no class, a\.png"):
        prepared(folder, tmp_path / "set", labels=True)
    (folder / "a.png").unlink()
    pyramid = prepared(folder, tmp_path / "set", labels=True)
    assert (pyramid.class_names, pyramid.labels.tolist()) == (["b", "c"], [0, 0, 1])


LABELS = {"a.png": "cat", "b/0.png": "dog", "b/1.png": "dog", "c/d/e.png": "cat"}
FORMS = {
    "labels.csv": "".join(f"{name}, {label}\n" for name, label in LABELS.items()) + "not-there.png,cow\n",
    "labels.json": json.dumps(LABELS),
    "dataset.json": json.dumps({"labels": list(LABELS.items())}),
}


@pytest.mark.parametrize(("name", "content"), FORMS.items())
def test_labels_come_from_a_file(folder, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    pyramid = prepared(folder, tmp_path / "set", labels=str(tmp_path / name))
    assert (pyramid.class_names, pyramid.labels.tolist()) == (["cat", "dog"], [0, 1, 1, 0])
    (tmp_path / name).write_text(content.replace("b/", "x/"))  # it is another dataset now
    with pytest.raises(UserError, match="exists already"):
        prepared(folder, tmp_path / "set", labels=str(tmp_path / name))
    with pytest.raises(UserError, match=r"2 of 4 images in photos have no class, b/0\.png"):
        prepared(folder, tmp_path / "other", labels=str(tmp_path / name))


def test_numbers_stay_in_their_order():
    assert class_names(["10", "9", "2", "9"]) == ["2", "9", "10"]
    assert class_names(["b", "10", "9"]) == ["10", "9", "b"]


@pytest.mark.parametrize(("name", "content"), [("a.json", '{"labels": [1]}'), ("a.csv", "a,b,c\n"), ("b", None)])
def test_what_holds_no_labels_is_refused(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match="labels="):
        read_labels(tmp_path / name)
