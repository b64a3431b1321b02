"""Folders, pyramids, several sources as one, and labels."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from pggan.core.errors import UserError
from pggan.data.labels import class_names, read_labels
from pggan.data.sources import JoinedSource, open_source
from tests.data.images import EXPECTED, everything, noise, png, prepared, save, write_tar


def test_hidden_and_other_files_and_linked_folders_are_passed_over(folder, tmp_path):
    save(tmp_path / "elsewhere" / "f.png", 0)
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    save(folder / ".cache" / "g.png", 0)
    save(folder / "._a.png", 0)
    save(folder / "z.PNG", 0)
    (folder / "notes.txt").write_text("not an image")
    names = ["a.png", "b/0.png", "b/1.png", "c/d/e.png", "z.PNG"]
    assert [entry.name for entry in open_source(folder).entries()] == names


def test_file_names_may_be_any_bytes(tmp_path):
    (tmp_path / "photos").mkdir()
    for number, name in enumerate([b"\xff\xfe.png", "Käse 画.png".encode(), b"new\nline.png", b"bad\xff.png"]):
        content = b"" if name.startswith(b"bad") else png(number)
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path / "photos"), name))).write_bytes(content)
    for _ in range(2):
        pyramid = prepared(tmp_path / "photos", tmp_path / "set")
        assert (pyramid.images, pyramid.source["bad_images"]) == (3, 1)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_pyramid_is_a_source_with_its_labels_and_can_be_cropped(tmp_path, make_pyramid, channels):
    first = make_pyramid(tmp_path / "first", classes=3, images=7, channels=channels)
    second = prepared(first.path, tmp_path / "second", max_resolution=8, labels=True, channels=channels)
    np.testing.assert_array_equal(everything(second), first.read(8, np.arange(7)))
    assert (second.class_names, second.labels.tolist()) == (first.class_names, first.labels.tolist())
    middle = prepared(first.path, tmp_path / "middle", max_resolution=8, keep=0.5, channels=channels)
    np.testing.assert_array_equal(everything(middle), everything(first)[:, 4:12, 4:12])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_compressed_archive_a_pyramid_and_a_folder_together(folder, tmp_path, workers):
    archive = write_tar(tmp_path / "more.tgz", [("x/b.png", png(8)), ("x/a.png", png(9))])
    first = prepared(folder, tmp_path / "first")
    source = JoinedSource([open_source(path) for path in (archive, first.path, folder)])
    both = prepared(source, tmp_path / "both", workers)
    np.testing.assert_array_equal(everything(both), np.stack([noise(9), noise(8), *EXPECTED, *EXPECTED]))
    assert [entry.name for entry in source.entries()][1:3] == ["1-more.tgz/x/b.png", "2-first/00000000"]


# ---- labels


def test_the_first_folder_is_the_class(folder, tmp_path):
    with pytest.raises(UserError, match=r"1 images are directly in .*photos"):
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
    with pytest.raises(UserError, match=r"no label for 2 of 4 images, b/0\.png"):
        prepared(folder, tmp_path / "other", labels=str(tmp_path / name))


def test_numbers_stay_in_their_order():
    assert class_names(["10", "9", "2", "9"]) == ["2", "9", "10"]
    assert class_names(["b", "10", "9"]) == ["10", "9", "b"]


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
