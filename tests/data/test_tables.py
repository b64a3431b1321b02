"""The tables that people bring: landmarks and labels."""

import json
import re
import zipfile
import zlib

import numpy as np
import pytest

from pggan.core.errors import UserError
from pggan.data.data_sets import open_source
from pggan.data.tables import landmarks_from, read_labels
from tests.data.images import png, prepared, save, write_tar, write_zip
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


@pytest.mark.parametrize("content", ["", '{"a.png": {"x": 1}}', "a.png 1 2 3", '{"a.png": [[1, 2]]}'])
def test_a_file_without_landmarks_is_refused(folder, tmp_path, content):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(UserError, match="landmarks="):
        prepared(folder, tmp_path / "set", crop="faces", landmarks=str(tmp_path / "bad.json"))


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
    "pairs.json": json.dumps(list(LABELS.items())),
    "excel.csv": "\ufeffname;label\r\n" + "".join(f"{name};{label}\r\n" for name, label in LABELS.items()),
    "excel.txt": "".join(f"{name}\t{label}\r" for name, label in LABELS.items()),
    "quoted.csv": "".join(f'"./{name}","{label}",,\n' for name, label in LABELS.items()),
    "labels.yaml": "# of pets\n" + "".join(f"{name}: '{label}'  # sure\n" for name, label in LABELS.items()),
    "aligned.txt": "".join(f" {name:20} {label}\n" for name, label in LABELS.items()),
    "spaces.txt": "".join(f"{name} {label}\n" for name, label in LABELS.items()),
    "backslashes.csv": "name,label\n"
    + "".join(f"{name},{label}\n".replace("/", "\\") for name, label in LABELS.items()),
}


@pytest.mark.parametrize(("name", "content"), FORMS.items())
def test_labels_come_from_a_file(folder, tmp_path, name, content):
    (tmp_path / name).write_text(content, newline="")
    pyramid = prepared(folder, tmp_path / "set", labels=str(tmp_path / name))
    assert (pyramid.class_names, pyramid.labels.tolist()) == (["cat", "dog"], [0, 1, 1, 0])
    (tmp_path / name).write_text(re.sub(r"b([\\/]+)", r"x\1", content), newline="")  # it is another dataset now
    with pytest.raises(UserError, match="exists already"):
        prepared(folder, tmp_path / "set", labels=str(tmp_path / name))
    with pytest.raises(UserError, match=r"2 of 4 images in photos have no class, b/0\.png"):
        prepared(folder, tmp_path / "other", labels=str(tmp_path / name))


def test_names_in_a_table_may_have_commas_and_accents_of_their_own():
    assert read_labels("a\u0308,b.png;cat\n".encode(), ["\u00e4,b.png"]) == {"\u00e4,b.png": "cat"}


@pytest.mark.parametrize("form", ["a,0\nb,0.0\nc,1e0\nd,9.0\n", '{"a": 0, "b": 0.0, "c": 1.0, "d": 9.0}'])
def test_whole_numbers_in_another_form_are_the_same_classes(form):
    table = form.replace("9", "9007199254740993").encode()  # floats can't hold this number
    assert read_labels(table, [*"abcd"]) == {"a": "0", "b": "0", "c": "1", "d": "9007199254740993"}


@pytest.mark.parametrize("classes", [["2", "9", "10", "10"], ["10", "9", "b", "b"]])
def test_numbers_stay_in_their_order(folder, tmp_path, classes):
    (tmp_path / "labels.json").write_text(json.dumps(dict(zip(LABELS, classes, strict=True))))
    pyramid = prepared(folder, tmp_path / "set", labels=str(tmp_path / "labels.json"))
    assert (pyramid.class_names, pyramid.labels.tolist()) == (classes[:3], [0, 1, 2, 2])


REFUSED = {
    "thousands": 'a.png,"1,000"\nb/0.png,1\nb/1.png,1\nc/d/e.png,1\n',
    "one column": "a.png\nb/0.png\n",
    "three columns": "a.png,cat,black\n",
    "null": '{"labels": null}',
    "two labels": "a.png,cat\na.png,dog\n",
    "two labels in JSON": '{"a.png": "cat", "a.png": "dog", "b/0.png": "x", "b/1.png": "x", "c/d/e.png": "x"}',
    "NaN": '{"a.png": NaN, "b/0.png": "x", "b/1.png": "x", "c/d/e.png": "x"}',
    "null in YAML": "a.png: null\nb/0.png: x\nb/1.png: x\nc/d/e.png: ~  # unknown\n",
    "fractions": "a.png,0.25\n",
    "vectors": '{"a.png": [0, 1]}',
    "nothing": "",
    "Latin-1": "a.png,b\xe4r\n".encode("latin-1"),
    "no file": None,
    "nan in text": "a.png,nan\nb/0.png,NaN\nb/1.png,cat\nc/d/e.png,cat\n",
    "empty labels": "a.png,\nb/0.png,cat\nb/1.png,cat\nc/d/e.png,cat\n",
}


@pytest.mark.parametrize("content", REFUSED.values(), ids=REFUSED)
def test_what_holds_no_classes_is_refused(folder, tmp_path, content):
    if content is not None:
        (tmp_path / "table").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=r"labels=|have no class"):
        prepared(folder, tmp_path / "set", labels=str(tmp_path / "table"))
    assert not (tmp_path / "set").exists()


def test_a_class_for_each_image_is_refused(tmp_path):
    for number in range(11):
        save(tmp_path / "photos" / f"{number}.png", number)
    (tmp_path / "table.csv").write_text("".join(f"{number}.png,{number}\n" for number in range(11)))
    with pytest.raises(UserError, match="a class of its own"):
        prepared(tmp_path / "photos", tmp_path / "set", labels=str(tmp_path / "table.csv"))


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_an_archive_has_the_classes_of_its_table_or_else_of_its_folders(tmp_path, write):
    """Programs on Windows write backslashes, and macOS packs the folder itself."""
    files = [(f"photos/{kind}/{seed}.png", png(seed)) for seed, kind in enumerate(("dogs", "cats", "dogs"))]
    pyramid = prepared(write(tmp_path / "a", files), tmp_path / "a_set", labels=True)
    assert (pyramid.class_names, pyramid.labels.tolist()) == (["cats", "dogs"], [0, 1, 1])
    table = json.dumps({"labels": [["cats/1.png", 7], ["dogs/0.png", 9], ["dogs/2.png", 7]]})
    files.append(("photos/dataset.json", table.encode("utf-16" if write is write_zip else "utf-8")))
    for number, start in enumerate(("", "./", "sg/", "./sg/")):
        archive = write(tmp_path / f"b{number}", [(name.replace("photos/", start), content) for name, content in files])
        pyramid = prepared(archive, tmp_path / f"b{number}_set", labels=True)
        assert (pyramid.class_names, pyramid.labels.tolist()) == (["7", "9"], [0, 1, 0])


def test_names_in_a_zip_may_have_backslashes_and_unmarked_utf_8(tmp_path):
    names = ("b\xe4r\\0.png", "katze\\1.png", "..\\..\\evil.png", "katze\\.thumbs\\2.png", "@eaDir\\3.png")
    archive = write_zip(tmp_path / "a.zip", [(name, png(seed)) for seed, name in enumerate(names)])
    content = bytearray(archive.read_bytes())
    for start in (b"PK\3\4", b"PK\1\2"):
        content[content.index(start) + (7 if start[2] == 3 else 9)] = 0  # no flag says that the first name is UTF-8
    archive.write_bytes(content)
    found = open_source(str(archive)).entries
    named = {entry.name: (entry.label, entry.problem) for entry in found}
    assert named["b\xe4r/0.png"] == ("b\xe4r", None)
    assert named["../../evil.png"][1] == "a name that leads out of the archive"
    assert len(named) == 3


def test_in_a_zip_a_backslash_may_be_part_of_a_letter_and_a_field_may_hold_the_name(tmp_path):
    """A zip of old Japanese Windows, with and without folders; Info-ZIP adds the name in UTF-8."""
    names = ("b\xe4r\\0.png", "\u8868/0.png", "\u8868.png", "\u8868/0.png")
    raw = [name.encode("shift-jis" if number else "cp437") for number, name in enumerate(names)]
    true = b"\1" + zlib.crc32(raw[3]).to_bytes(4, "little") + names[3].encode()
    shown = ("b\xe4r/0.png", "\xf2\\/0.png", "\xf2\\.png", "\u8868/0.png")
    for number, name in enumerate(raw):
        member = zipfile.ZipInfo("x" * len(name))
        member.extra = (b"up" + len(true).to_bytes(2, "little") + true) * (number == 3)
        archive = write_zip(tmp_path / f"{number}.zip", [(member, png(0))])
        archive.write_bytes(archive.read_bytes().replace(b"x" * len(name), name))
        (entry,) = open_source(str(archive)).entries
        assert (entry.name, len(entry.file.open().read())) == (shown[number], len(png(0)))
