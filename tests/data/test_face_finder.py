"""Faces are found in photographs, here drawn ones, whose eyes and mouths are known."""

import json
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from pggan.cli.main import main
from pggan.config.train import DataConfig
from pggan.core.errors import UserError
from pggan.data import mtcnn
from pggan.data.face_crop import face_side
from pggan.data.report import faces_of
from pggan.data.sources import folder_source
from pggan.performance.hours import facts_of
from tests.data.images import prepared

MARKS = np.array([(78.0, 92.0), (122.0, 92.0), (80.0, 150.0), (120.0, 150.0)])  # in a face of 200 pixels
PAPER = (90, 110, 140)
installed = pytest.mark.skipif(find_spec("mtcnn") is None, reason="the extra faces is not installed")


def face(side):
    """A face [side, side] whose eyes and corners of the mouth are at MARKS * side / 200."""
    image = Image.new("RGB", (side, side), PAPER)
    pen, scale = ImageDraw.Draw(image), side / 200

    def oval(*corners, fill):
        pen.ellipse([corner * scale for corner in corners], fill=fill)

    oval(45, 15, 155, 150, fill=(60, 40, 30))
    oval(52, 30, 148, 185, fill=(205, 160, 130))
    oval(60, 20, 140, 60, fill=(60, 40, 30))
    for x in (78, 122):
        oval(x - 13, 86, x + 13, 98, fill=(235, 230, 225))
        oval(x - 6, 85, x + 6, 98, fill=(60, 40, 30))
        pen.rectangle([(x - 14) * scale, 76 * scale, (x + 14) * scale, 80 * scale], fill=(80, 55, 40))
    oval(92, 100, 108, 128, fill=(190, 140, 112))
    oval(93, 122, 107, 130, fill=(150, 100, 80))
    oval(80, 143, 120, 158, fill=(150, 60, 60))
    return image.filter(ImageFilter.GaussianBlur(1.5 * scale))


def photo(path, size, *faces, **saving):
    """Write a photograph with faces (x, y, side, degrees); returns the marks of each."""
    image, marks = Image.new("RGB", size, PAPER), []
    for x, y, side, degrees in faces:
        image.paste(face(side).rotate(degrees, Image.Resampling.BICUBIC, fillcolor=PAPER), (x, y))
        angle = np.radians(-degrees)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        marks.append((MARKS - 100) @ turn.T * side / 200 + side / 2 + (x, y))
    path.parent.mkdir(exist_ok=True)
    image.save(path, **saving)
    return marks


def found_in(path):
    return [entry.face for entry in faces_of(folder_source(path).entries[0])]


def error(found, marks):
    """The mean distance of found eyes from the eyes, in eye distances."""
    return np.hypot(*(found - marks)[:2].T).mean() / np.hypot(*(marks[1] - marks[0]))


@installed
def test_each_face_is_found_where_it_is_the_largest_first(tmp_path):
    small, large = photo(tmp_path / "a.png", (900, 600), (80, 60, 150, 0), (400, 150, 400, 15))
    found = found_in(tmp_path)
    assert len(found) == 2
    assert max(error(found[0], large), error(found[1], small)) < 0.06


@installed
@pytest.mark.parametrize("orientation", [1, 6])
def test_large_and_turned_photographs_have_marks_in_their_own_pixels(tmp_path, orientation):
    (marks,) = photo(tmp_path / "a.png", (2400, 3200), (500, 900, 1200, 0))
    exif = Image.Exif()
    exif[0x0112] = orientation
    with Image.open(tmp_path / "a.png") as upright:
        stored = upright if orientation == 1 else upright.transpose(Image.Transpose.ROTATE_90)
        stored.save(tmp_path / "a.jpg", exif=exif)
    (tmp_path / "a.png").unlink()
    (found,) = found_in(tmp_path)
    assert error(found, marks) < 0.1


@installed
def test_a_dataset_has_an_image_for_each_face_upright_and_a_report(tmp_path, capsys):
    source, dest = tmp_path / "photos", tmp_path / "set"
    photo(source / "two.png", (900, 600), (80, 60, 150, 0), (400, 150, 400, -12))
    photo(source / "one.png", (500, 500), (100, 100, 240, 20))
    photo(source / "nobody.png", (300, 300))
    photo(source / "tiny.png", (300, 300), (100, 100, 26, 0))  # a face of about 12 pixels
    (tmp_path / "labels.csv").write_text("two.png,a\none.png,b\n")
    words = ["crop=faces", "max_resolution=64", "num_workers=1", f"labels={tmp_path / 'labels.csv'}"]
    assert main(["prepare", f"source={source}", f"dest={dest}", *words]) == 0
    assert "Left out 2 of 5 images:" in capsys.readouterr().err
    report = json.loads((dest / "report.json").read_text())
    assert report["left_out"] == {
        "a face smaller than 64x64": ["tiny.png"],
        "no face found (crop=center takes the middle)": ["nobody.png"],
    }
    assert report["noted"] == {"several faces": ["two.png"]}
    assert json.loads((dest / "index.json").read_text())["images"] == 3
    with Image.open(dest / "faces.png") as sheet:
        assert sheet.size == (24 * 64, 64)
        tiles = np.asarray(sheet).astype(int)[:, : 3 * 64].reshape(64, 3, 64, 3).swapaxes(0, 1)
    assert np.abs(tiles - tiles.mean(0)).mean() < 10  # the three faces lie at the same places


@installed
def test_sixty_faces_are_sixty_images(tmp_path):
    places = [(20 + 100 * (n % 10), 20 + 100 * (n // 10), 96, 0) for n in range(60)]
    photo(tmp_path / "photos" / "class.png", (1040, 640), *places)
    assert prepared(tmp_path / "photos", tmp_path / "set", crop="faces", max_resolution=32).images >= 57


@installed
def test_photographs_without_any_face_are_refused_and_crop_center_is_named(tmp_path, capsys):
    photo(tmp_path / "photos" / "a.png", (300, 300))
    with pytest.raises(UserError, match=r"\(crop=center takes the middle\): 1 \(a.png\)\n  Give other .* images.$"):
        prepared(tmp_path / "photos", tmp_path / "set", crop="faces")
    assert not (tmp_path / "set").exists()
    assert main(["plan", "hours=1", f"data.path={tmp_path / 'photos'}", "data.crop=faces"]) == 2
    assert "No face was found in 1 of the 1 image files" in capsys.readouterr().err


@installed
def test_hours_take_the_size_of_faces_not_that_of_photographs(tmp_path):
    marks = [photo(tmp_path / f"{n}.png", (1200, 800), (300, 200, 300, 0))[0] for n in range(3)]
    keys = {"count": 1, "cache": str(tmp_path), "channels": None, "labels": False, "mirror": False}
    assert facts_of(DataConfig(path=str(tmp_path), crop="faces", **keys)).resolution == 1 << int(
        np.log2(face_side(marks[0]))
    )


@pytest.mark.parametrize("lacking", ["joblib", "other weights"])
def test_what_is_missing_is_said_with_what_to_install(tmp_path, lacking, monkeypatch, capsys):
    mtcnn.weights.cache_clear()
    photo(tmp_path / "photos" / "a.png", (300, 300))
    if lacking == "joblib":
        monkeypatch.setitem(sys.modules, "joblib", None)
    else:
        monkeypatch.setattr(mtcnn, "NETWORKS", [mtcnn.SEARCH._replace(sha256="0" * 64)])
    assert main(["prepare", f"source={tmp_path / 'photos'}", f"dest={tmp_path / 'set'}", "crop=faces"]) == 2
    shown = capsys.readouterr().err
    assert "pip install 'pggan[faces]'" in shown
    assert "Traceback" not in shown
