"""The drawn faces: stable bytes, right colours, and clear errors."""

import sys

import numpy as np
import pytest

from pggan.core.errors import UserError
from pggan.data import avatars
from pggan.data.avatars import BACKGROUNDS, AvatarSource
from tests.data.images import prepared

pytest.importorskip("dicebear")
pytest.importorskip("dicebear_styles")
pytest.importorskip("resvg_py")


def draw(destination, *, count=8, resolution=32, workers=1):
    return prepared(AvatarSource(count, resolution), destination, workers, max_resolution=resolution, channels=3)


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("avatars") / "set")


@pytest.mark.slow
def test_two_drawings_are_equal_byte_by_byte_with_any_number_of_workers(faces, tmp_path):
    again = draw(tmp_path / "set", workers=2)
    for file in faces.path.iterdir():
        assert (again.path / file.name).read_bytes() == file.read_bytes()


def test_a_face_depends_on_its_number_and_hardly_on_the_resolution(faces, tmp_path):
    fewer, lower = draw(tmp_path / "fewer", count=3), draw(tmp_path / "lower", resolution=16)
    np.testing.assert_array_equal(fewer.read(32, np.arange(3)), faces.read(32, np.arange(3)))
    # Both come from a drawing of 64 pixels, so one is the block mean of the other but for rounding twice.
    difference = lower.read(16, np.arange(8)).astype(int) - faces.read(16, np.arange(8)).astype(int)
    assert np.abs(difference).max() <= 1


def test_faces_differ_and_every_corner_has_one_of_the_background_colours(faces):
    images = faces.read(32, np.arange(8))
    assert len({image.tobytes() for image in images}) == 8
    allowed = {tuple(bytes.fromhex(colour)) for colour in BACKGROUNDS}
    corners = {tuple(image[0, 0].tolist()) for image in images}
    assert corners <= allowed
    assert len(corners) > 1


def test_the_dataset_names_the_artist_and_the_licence(faces):
    assert (faces.source["kind"], faces.source["name"]) == ("avatars", "toon-head")
    assert faces.source["credit"]["creator"]["name"] == "Johan Melin"
    assert faces.source["credit"]["license"]["name"] == "CC BY 4.0"


def test_a_package_that_lacks_what_it_needs_is_named_before_every_image_is_called_damaged(monkeypatch, tmp_path):
    (tmp_path / "dicebear.py").write_text("import no_such_schema\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "dicebear", raising=False)
    avatars._style.cache_clear()
    with pytest.raises(UserError, match="do not work: No module named 'no_such_schema'") as raised:
        AvatarSource(1, 32)
    assert "pggan[avatars]" in raised.value.remedy
