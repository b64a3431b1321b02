"""The pictures that a run makes of itself: grids, a film, how varied fakes are, the projector."""

import numpy as np
import torch
from PIL import Image
from tensorboard.plugins.projector import projector_config_pb2 as config

from google.protobuf import text_format  # isort: skip - comes with tensorboard

from pggan.data.pyramid import ImagePyramid
from pggan.optim.state import new_state
from pggan.run import train
from pggan.run.pictures import MAX_GRID, grid_shape, relative_diversity
from pggan.sampling.images import read_facts, stored_grids
from tests.definitions import variant


def facts_in(folder):
    return [read_facts(path) for path in stored_grids(folder).values()]


def test_grids_have_fewer_images_where_these_are_large():
    for layout, resolution, shape in (
        ((8, 4), 4, (8, 4)),  # drawn at 128
        ((8, 4), 512, (4, 4)),
        ((8, 4), 1024, (2, 2)),
        ((1, 9), 1024, (1, 4)),
        ((8, 4), 4096, (1, 1)),
    ):
        columns, rows = grid_shape(layout, resolution, 4096)
        assert (columns, rows) == shape
        assert columns * rows * max(resolution, 128) ** 2 <= max(MAX_GRID, resolution**2)


def test_a_resumed_run_has_no_grid_twice(finished_run, tiny_config, tmp_path):
    """Another interval after the resume, and grids beyond it: what is left are those of one training."""
    folder = tmp_path / "samples" / "timelapse"
    assert train.run(tiny_config(f"run_dir={tmp_path}", "schedule.total_images=96")) == 0
    Image.new("RGB", (4, 4)).save(folder / "000000112.png")
    assert facts_in(folder)[-1] is None  # a file of another kind
    assert train.run(tiny_config(f"run_dir={tmp_path}", "schedule.total_images=160")) == 0
    found = facts_in(folder)
    assert [facts.images for facts in found] == list(range(0, 161, 8))
    hours = [facts.hours for facts in found]
    assert hours == sorted(hours)
    assert hours[-1] > 0


def test_fakes_that_are_all_the_same_have_no_diversity_and_one_real_is_no_measure(
    toy_data, tiny_config, make_pyramid, tmp_path
):
    phase, pyramid = tiny_config().schedule.build().at(159), ImagePyramid(toy_data)
    state = new_state(variant(resolution=16, fmap_max=8), 0, torch.device("cpu"))
    assert relative_diversity(state, phase, pyramid) > 0.05
    assert relative_diversity(state, phase, make_pyramid(tmp_path / "one", images=1)) is None
    for weight in state.g.network.weights:
        weight.data.zero_()
    assert relative_diversity(state, phase, pyramid) < 1e-5


def test_points_tables_and_pictures_of_the_projector_go_together(finished_run):
    """48 fakes and 48 reals; latents have 8 numbers, normalised as the generator does, D's last features 8."""
    found = text_format.Parse((finished_run / "projector_config.pbtxt").read_text(), config.ProjectorConfig())
    assert [entry.tensor_name for entry in found.embeddings] == ["latents:00160", "features_of_D:00160"]
    for entry, count in zip(found.embeddings, (48, 96), strict=True):
        points = np.loadtxt(finished_run / entry.tensor_path)
        assert points.shape == (count, 8)
        head, *rows = (finished_run / entry.metadata_path).read_text().splitlines()
        assert head == "name\tkind\tscore"
        assert [row.split("\t")[1] for row in rows] == (["fake"] * 48 + ["real"] * 48)[:count]
        assert all(np.isfinite(float(row.split("\t")[2])) for row in rows)
        assert list(entry.sprite.single_image_dim) == [16, 16]
    latents = np.loadtxt(finished_run / found.embeddings[0].tensor_path)
    np.testing.assert_allclose((latents**2).mean(1), 1.0, rtol=1e-3)
