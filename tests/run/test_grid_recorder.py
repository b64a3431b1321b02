"""The grids that a run stores for a timelapse."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from pggan.networks.networks import Generator
from pggan.run import grid_recorder, train
from pggan.run.grid_recorder import MAX_GRIDS, MAX_PIXELS, MIN_GRIDS, UPDATES, GridRecorder, interval_of, layout
from pggan.sampling.timelapse import read_facts, stored_grids


def facts_in(folder):
    return [read_facts(path) for path in stored_grids(folder).values()]


@pytest.mark.parametrize("final", [4, 8, 16, 32, 64, 128, 256, 512, 1024])
def test_a_grid_of_any_run_is_small_and_has_several_images(final):
    columns, side = layout(final)
    assert columns**2 * side**2 <= MAX_PIXELS
    assert columns >= 2
    assert side == min(final, 128)


@pytest.mark.parametrize("steps", [1, 99, 100, 101, 3657, 12_345, 1_234_567])
def test_a_run_stores_enough_grids_for_a_film_and_no_more_than_their_cost_allows(steps):
    """Of 16 images each; one per update if there are fewer. An interval of whole images is up to 1 longer."""
    every = interval_of(SimpleNamespace(total=16 * steps, steps=lambda: (steps // 2, steps - steps // 2)))
    grids = 16 * steps / every
    assert grids <= min(max(steps / UPDATES, MIN_GRIDS), MAX_GRIDS)
    assert min(grids, steps) >= min(steps, MIN_GRIDS) * 16 / 17


@pytest.mark.slow
def test_a_run_stores_its_growth_and_a_resumed_one_has_no_grid_twice(tiny_config, tmp_path, monkeypatch):
    """Another interval after the resume, and grids beyond it: what is left are those of one training."""
    folder = tmp_path / "samples" / "timelapse"
    monkeypatch.setattr(grid_recorder, "MIN_GRIDS", 5)
    assert train.run(tiny_config(f"run_dir={tmp_path}", "schedule.total_images=96")) == 0
    first = facts_in(folder)
    assert [facts.images for facts in first] == [0, 24, 40, 64, 80, 96]
    Image.new("RGB", (4, 4)).save(folder / "000000112.png")
    monkeypatch.setattr(grid_recorder, "MIN_GRIDS", 10)
    assert train.run(tiny_config(f"run_dir={tmp_path}", "schedule.total_images=160")) == 0
    found = facts_in(folder)
    assert found[:6] == first
    assert [facts.images for facts in found[6:]] == [112, 128, 144, 160]
    assert [facts.resolution for facts in found] == sorted(facts.resolution for facts in found)
    assert found[-1].resolution == 16
    hours = [facts.hours for facts in found]
    assert hours == sorted(hours)
    assert hours[-1] > 0


def test_images_larger_than_a_tile_are_averaged(tiny_config, tmp_path, monkeypatch):
    monkeypatch.setattr(grid_recorder, "MAX_TILE", 4)
    torch.manual_seed(0)
    generator = Generator(tiny_config().model.architecture(8, 3, 0))
    schedule = SimpleNamespace(total=10, final_resolution=8, steps=lambda: (10,))
    recorder = GridRecorder(schedule, tmp_path, 0)
    recorder.record(generator, SimpleNamespace(resolution=8, alpha=1.0), 7)
    (path,) = stored_grids(tmp_path).values()
    facts = read_facts(path)
    assert (facts.images, facts.resolution, facts.alpha, facts.columns) == (7, 8, 1.0, 4)
    assert np.asarray(Image.open(path)).shape == (16, 16, 3)


def test_a_file_of_another_kind_has_no_facts(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "1.png")
    (tmp_path / "2.png").write_bytes(b"no picture")
    assert facts_in(tmp_path) == [None, None]
