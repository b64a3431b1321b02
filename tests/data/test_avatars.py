"""The drawn faces: stable bytes, right colours, and clear errors."""

import hashlib
import sys

import numpy as np
import pytest

from pggan.core.errors import UserError
from pggan.data import avatars
from pggan.data.avatars import BACKGROUNDS, AvatarSource, avatar_styles
from tests.data.images import prepared

pytest.importorskip("dicebear")
pytest.importorskip("dicebear_styles")
pytest.importorskip("resvg_py")


def draw(destination, *, style="toon-head", count=8, resolution=32, workers=1):
    source = AvatarSource(style, count, resolution)
    return prepared(source, destination, workers, max_resolution=resolution, channels=3)


def contents(pyramid):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in pyramid.path.iterdir()}


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("avatars") / "set")


@pytest.fixture
def drawn(monkeypatch):
    """One item for every face that is drawn."""
    items, style_of = [], avatars._style
    monkeypatch.setattr(avatars, "_style", lambda style: items.append(style) or style_of(style))
    return items


@pytest.mark.slow
def test_two_drawings_are_equal_byte_by_byte_with_any_number_of_workers(faces, tmp_path):
    shards = {name: digest for name, digest in contents(faces).items() if name.endswith((".bin", ".json"))}
    for workers in (1, 2):
        again = contents(draw(tmp_path / f"by{workers}", workers=workers))
        assert {name: again[name] for name in shards} == shards


def test_a_face_depends_on_its_number_and_not_on_the_count(faces, tmp_path):
    fewer = draw(tmp_path / "set", count=3)
    np.testing.assert_array_equal(fewer.read(32, np.arange(3)), faces.read(32, np.arange(3)))


def test_faces_differ(faces):
    assert len({image.tobytes() for image in faces.read(32, np.arange(8))}) == 8


def test_every_corner_has_one_of_the_background_colours(faces):
    allowed = {tuple(bytes.fromhex(colour)) for colour in BACKGROUNDS}
    corners = {tuple(image[0, 0].tolist()) for image in faces.read(32, np.arange(8))}
    assert corners <= allowed
    assert len(corners) > 1


def test_a_lower_resolution_is_drawn_like_a_higher_one(faces, tmp_path):
    # Both come from a drawing of 64 pixels, so one is the block mean of the other but for rounding twice.
    lower = draw(tmp_path / "set", resolution=16).read(16, np.arange(8))
    difference = lower.astype(int) - faces.read(16, np.arange(8)).astype(int)
    assert np.abs(difference).max() <= 1


def test_each_face_is_drawn_once(tmp_path, drawn):
    draw(tmp_path / "set")
    assert len(drawn) == 8


def test_the_dataset_names_the_artist_and_the_licence(faces):
    assert (faces.source["kind"], faces.source["name"]) == ("avatars", "toon-head")
    assert faces.source["credit"]["creator"]["name"] == "Johan Melin"
    assert faces.source["credit"]["license"]["name"] == "CC BY 4.0"


@pytest.mark.slow
def test_another_style_can_be_drawn(tmp_path):
    pyramid = draw(tmp_path / "set", style="avataaars", count=1, resolution=4)
    assert pyramid.source["credit"]["creator"]["name"] == "Pablo Stanley"


def test_a_mistyped_style_is_answered_with_the_nearest_and_how_to_list_all():
    assert "toon-head" in avatar_styles()
    with pytest.raises(UserError, match="no avatar style 'toonhead'") as raised:
        AvatarSource("toonhead", 1, 32)
    assert "'toon-head'" in raised.value.remedy
    assert "avatar_styles" in raised.value.remedy


def test_a_package_that_lacks_what_it_needs_is_named_before_every_image_is_called_damaged(monkeypatch, tmp_path):
    (tmp_path / "dicebear.py").write_text("import no_such_schema\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "dicebear", raising=False)
    with pytest.raises(UserError, match="do not work: No module named 'no_such_schema'") as raised:
        AvatarSource("toon-head", 1, 32)
    assert "pggan[avatars]" in raised.value.remedy


@pytest.mark.parametrize(("count", "resolution"), [(0, 32), (1, 33), (1, 2)])
def test_impossible_numbers_are_refused(tmp_path, count, resolution):
    with pytest.raises(UserError):
        draw(tmp_path / "set", count=count, resolution=resolution)
    assert not (tmp_path / "set").exists()
