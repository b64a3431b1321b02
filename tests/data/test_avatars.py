"""The drawn faces: stable bytes, right colours, and clear errors."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pggan.config import TrainConfig
from pggan.core.errors import EXIT_INTERRUPTED, UserError
from pggan.core.validation import validated
from pggan.data import avatars
from pggan.data import open as stream
from pggan.data.avatars import BACKGROUNDS, AvatarSource, avatar_styles
from pggan.data.layout import Layout
from pggan.data.planning import Options
from pggan.data.prepare import prepare
from pggan.data.records import read_journal
from tests.composed import composed

pytest.importorskip("dicebear")
pytest.importorskip("dicebear_styles")
pytest.importorskip("resvg_py")


def draw(destination, *, style="toon-head", count=8, resolution=32, workers=1):
    options = Options(max_resolution=resolution, channels=3)
    return prepare(AvatarSource(style, count, resolution), destination, options, workers=workers)


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


def test_an_interrupted_drawing_goes_on_where_it_was(faces, tmp_path, drawn, monkeypatch, capsys):
    write = Layout.write

    def interrupted(self, slot, levels):
        if slot == 5:
            raise KeyboardInterrupt
        write(self, slot, levels)

    with monkeypatch.context() as patch:
        patch.setattr(Layout, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            draw(tmp_path / "set")
    assert len(drawn) == 6
    drawn.clear()
    assert draw(tmp_path / "set").fingerprint == faces.fingerprint
    assert len(drawn) == 3
    assert "Drawing avatars" in capsys.readouterr().err


DRAWING = """
import sys, time
from pathlib import Path
from pggan.cli.main import main
from pggan.data import build
from pggan.data import avatars
from pggan.data import open

draw, told = avatars._draw, Path(__file__).with_name("told")

def wait_and_draw(style, resolution, number):  # in a worker, too
    if number >= 40 and not told.exists():
        time.sleep(0.1)  # 2 s for the signal to come, and no more: what is journalled waits for the next face
    return draw(style, resolution, number)

avatars._draw = wait_and_draw
build.COMMIT_SECONDS, open.default_workers = 0, lambda: 2
if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR1], ids=lambda number: number.name)
def test_training_that_was_stopped_while_it_drew_its_faces_draws_only_the_rest(tmp_path, drawn, monkeypatch, number):
    """The signal goes to all processes of the command, as Slurm sends it.  Half of the faces are not drawn before."""
    count, cache, run_dir = 80, tmp_path / "cache", tmp_path / "run"
    (tmp_path / "drawing.py").write_text(DRAWING)
    keys = [f"data.count={count}", f"data.cache={cache}", "schedule.final_resolution=16", "devices=cpu"]
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "drawing.py"), *keys, f"run_dir={run_dir}"],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stderr=errors,
            start_new_session=True,
        )

    def journal():
        return read_journal(attempt) if (attempt := next(cache.glob(".*.prepare-*"), None)) else {}

    while len(journal()) < 20:
        assert process.poll() is None, (tmp_path / "errors").read_text()
        time.sleep(0.02)
    os.killpg(process.pid, number)
    (tmp_path / "told").touch()  # what a worker has begun, it brings to an end
    assert process.wait(60) == (EXIT_INTERRUPTED if number == signal.SIGUSR1 else -number)
    said, done = (tmp_path / "errors").read_text(), len(journal())
    assert 20 <= done < count
    if number == signal.SIGUSR1:
        assert "Traceback" not in said
        assert "resource_tracker" not in said
        assert said.endswith("begins again: there is no checkpoint yet.\n")
        assert "Stopped at once. Images that are done are kept: the next start continues with the rest." in said
    monkeypatch.setattr(stream, "default_workers", lambda: 1)  # whose drawings can be counted
    pyramid = stream.open_data(validated(TrainConfig, composed("train", keys)).data, 16)
    assert pyramid.images == count
    assert len(drawn) == count - done
    drawn.clear()
    stream.open_data(validated(TrainConfig, composed("train", keys)).data, 16)
    assert drawn == []


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


def test_a_missing_package_is_named_with_the_way_to_install_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "resvg_py", raising=False)
    monkeypatch.setattr("importlib.machinery.PathFinder.find_spec", lambda *arguments: None)
    with pytest.raises(UserError, match="resvg_py") as raised:
        AvatarSource("toon-head", 1, 4)
    assert 'pip install "pggan[avatars]"' in raised.value.remedy
