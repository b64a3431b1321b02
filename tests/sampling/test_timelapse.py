"""`pggan timelapse`: the growth of a run as a film."""

from bisect import bisect_right

import numpy as np
import pytest
from PIL import Image

from pggan.cli.main import main
from pggan.sampling.images import GridFacts, enlarge, grid
from pggan.sampling.timelapse import film_of, grids_of_run


def test_images_pass_evenly_and_the_film_grows_from_4x4_to_the_end_at_one_size(run_dir, generator):
    grids = grids_of_run(run_dir)
    facts = [*grids.values()]
    assert [each.images for each in facts] == sorted(each.images for each in facts)
    found = list(film_of(grids, 20))
    assert {frame.shape for frame in found} == {(512 + 32, 512, 3)}
    times = np.linspace(facts[0].images, facts[-1].images, 20)
    for frame, time in zip(found, times, strict=True):
        shown = [*grids][bisect_right([each.images for each in facts], time) - 1]
        with Image.open(shown) as stored:
            factor = 512 // stored.width
            assert np.array_equal(frame[:512:factor, :512:factor], np.asarray(stored))
    first, last = found[0][:512], found[-1][:512]
    assert np.array_equal(first, first[::32, ::32].repeat(32, 0).repeat(32, 1))  # pixels of 4x4
    drawn = [generator.render(generator.latents([n]), alpha=facts[-1].alpha, label=n % 3)[0] for n in range(16)]
    # The run draws in batches, whose last bit can differ from images that are drawn one by one.
    assert np.abs(last.astype(int) - grid(enlarge(np.stack(drawn), 8), 4)).max() <= 1
    assert len({frame[512:].tobytes() for frame in found}) > 5  # the stamp changes


def test_the_command_writes_a_film_of_the_length_asked_for(run_dir, tmp_path):
    assert main(["timelapse", f"run={run_dir}", "seconds=2", "fps=10", f"out={tmp_path / 'a.webp'}"]) == 0
    with Image.open(tmp_path / "a.webp") as film:
        assert film.size == (512, 512 + 32)
        durations = []
        for number in range(film.n_frames):
            film.seek(number)
            film.load()
            durations.append(film.info["duration"])
    assert sum(durations) == 2000


@pytest.mark.parametrize(
    ("word", "hint"), [("run=nowhere", "no grids"), ("fps=0", "fps=0"), ("out=new/a.png", "does not end in")]
)
def test_slips_of_timelapses_are_refused(run_dir, word, hint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["timelapse", f"run={run_dir}", "out=a.webp", word]) == 2
    assert hint in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_stamp_says_images_resolution_and_hours_or_minutes_and_fits_into_the_width(tmp_path):
    assert GridFacts(1234, 4, 1.0, 0.06, 2).stamp == "1,234 images   4x4   3.6 min"
    long = GridFacts(1_234_567, 1024, 1.0, 123.454, 2)
    assert long.stamp == "1,234,567 images   1024x1024   123.45 h"
    Image.new("RGB", (512, 512)).save(tmp_path / "a.png")
    (frame,) = film_of({tmp_path / "a.png": long}, 1)
    columns = np.flatnonzero(frame.any((0, 2)))
    assert 0 < columns[0] < 60  # large, and no letter is cut off
    assert 452 < columns[-1] < 511
