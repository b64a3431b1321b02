"""`pggan timelapse`: the growth of a run as a film."""

import numpy as np
import pytest
from PIL import Image

import pggan
from pggan.cli.main import main
from pggan.config import TimeAxis
from pggan.sampling.output.images import enlarge, grid
from pggan.sampling.output.stored_grid import GridFacts, read_facts, stored_grids
from pggan.sampling.timelapse import Shot, font_for, shots_of_frames


def frames_of(path):
    with Image.open(path) as opened:
        for number in range(opened.n_frames):
            opened.seek(number)
            yield np.asarray(opened.convert("RGB"))


def shots(*times):
    return [Shot(GridFacts(images, 4, 1.0, hours, 2), 4, lambda: None) for images, hours in times]


def test_time_passes_evenly_in_images_or_in_hours():
    grown = shots((0, 0.0), (10, 1.0), (20, 1.5), (40, 9.0))
    assert shots_of_frames(grown, 5, TimeAxis.images) == [0, 1, 2, 2, 3]
    assert shots_of_frames(grown, 5, TimeAxis.hours) == [0, 2, 2, 2, 3]
    assert shots_of_frames(grown, 1, TimeAxis.images) == [3]
    assert shots_of_frames(shots((5, 0.0), (5, 0.0)), 2, TimeAxis.hours) == [0, 1]
    assert shots_of_frames(shots((5, 0.0)), 3, TimeAxis.images) == [0, 0, 0]


def test_a_film_shows_the_growth_from_4x4_to_the_end_at_one_size(run_dir, tmp_path):
    out = tmp_path / "a.apng"
    assert main(["timelapse", f"run={run_dir}", "seconds=2", "fps=10", "zoom=2", f"out={out}"]) == 0
    found = list(frames_of(out))
    assert len(found) == 20
    assert {frame.shape for frame in found} == {(128 + 20, 128, 3)}
    drawn = [frame[:128] for frame in found]
    assert np.array_equal(drawn[0], drawn[0][::8, ::8].repeat(8, 0).repeat(8, 1))  # pixels of 4x4
    classes = np.arange(16) % 3
    generator = pggan.load(run_dir, "cpu")
    alpha = read_facts([*stored_grids(run_dir / "samples" / "timelapse").values()][-1]).alpha
    last = [generator.render(generator.latents([n]), alpha=alpha, label=int(classes[n]))[0] for n in range(16)]
    shown = enlarge(np.stack(last), 2)
    # The run draws in batches, whose last bit can differ from images that are drawn one by one.
    assert np.abs(drawn[-1].astype(int) - grid(shown, 4)).max() <= 1
    assert len({frame[128:].tobytes() for frame in found}) > 5  # the stamp changes


def test_a_film_is_rebuilt_from_checkpoints(run_dir, tmp_path):
    out = tmp_path / "a.webp"
    words = ["milestones=true", "grid=3x2", "seconds=0.2", "fps=10", "device=cpu", "scaling=smooth"]
    assert main(["timelapse", f"run={run_dir}", *words, f"out={out}"]) == 0
    found = list(frames_of(out))
    assert {frame.shape for frame in found} == {(320 + 20, 480, 3)}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["run=nowhere"], "no grids"),
        (["run=nowhere", "milestones=true"], "has no checkpoint"),
        (["run={run}/checkpoints/000000096", "milestones=true"], "Give the directory of a run"),
        (["fps=0"], "fps=0"),
        (["out=a.png"], "does not end in"),
        (["zoom=1000"], "more than the 16383"),
    ],
)
def test_slips_of_timelapses_are_refused(run_dir, words, hint, capsys, tmp_path):
    words = [f"run={run_dir}", f"out={tmp_path / 'a.webp'}", *(word.format(run=run_dir) for word in words)]
    assert main(["timelapse", *words]) == 2
    assert hint in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_files_that_are_no_grids_are_no_shots(run_dir):
    folder = run_dir / "samples" / "timelapse"
    assert [path.stem for path in stored_grids(folder).values()] == sorted(path.stem for path in folder.iterdir())


def test_a_stamp_says_images_resolution_and_hours_or_minutes():
    short, long = shots((1234, 0.06), (1_234_567, 123.454))
    assert short.stamp == "1,234 images   4x4   3.6 min"
    assert long.stamp == "1,234,567 images   4x4   123.45 h"


def test_a_stamp_fits_into_the_width():
    lines = ["1,234,567 images   1024x1024   123.45 h"]
    for width in (128, 256, 512):
        assert font_for(lines, width, 32).getlength(lines[0]) <= width
