"""The faces as points: as many rows everywhere, and what D says of them."""

import re

import numpy as np
import torch
from PIL import Image
from tensorboard.plugins.projector import projector_config_pb2 as config

from google.protobuf import text_format  # isort: skip - comes with tensorboard

from pggan.run.projector import CONFIG_FILE, face_count


def test_large_faces_are_fewer_and_there_are_as_many_of_each_kind():
    assert [face_count(side, 1000) for side in (4, 256, 512, 1024)] == [256, 256, 64, 16]
    assert face_count(16, 48) == 48


def test_points_tables_and_pictures_go_together(finished_run):
    """48 fakes and 48 reals; latents have 8 numbers, D's last features 8."""
    found = text_format.Parse((finished_run / CONFIG_FILE).read_text(), config.ProjectorConfig())
    assert [entry.tensor_name for entry in found.embeddings] == ["latents", "features_of_D"]
    for entry, count in zip(found.embeddings, (48, 96), strict=True):
        points = np.loadtxt(finished_run / entry.tensor_path)
        assert points.shape == (count, 8)
        assert np.isfinite(points).all()
        head, *rows = (finished_run / entry.metadata_path).read_text().splitlines()
        assert len(rows) == count
        assert head.split("\t")[0] == "name"
        side = int(np.ceil(count**0.5)) * 16
        with Image.open(finished_run / entry.sprite.image_path) as sprite:
            assert sprite.size == (side, -(-count // (side // 16)) * 16)
        assert list(entry.sprite.single_image_dim) == [16, 16]


def test_latents_are_normalised_as_the_generator_does(finished_run):
    points = torch.from_numpy(np.loadtxt(finished_run / "samples/projector/latents.tsv"))
    # Four significant digits: each of 8 squares, of a mean of 1, is off by 2 * 0.5e-3 of itself at most.
    torch.testing.assert_close(points.square().mean(1), torch.ones(48, dtype=torch.float64), rtol=1.1e-3, atol=0)


def test_the_table_tells_fakes_from_reals_with_ds_scores(finished_run):
    head, *rows = (finished_run / "samples/projector/features_of_D_about.tsv").read_text().splitlines()
    assert head == "name\tkind\tscore"
    kinds = [row.split("\t")[1] for row in rows]
    assert kinds == ["fake"] * 48 + ["real"] * 48
    assert all(re.fullmatch(r"-?\d+\.\d{3}", row.split("\t")[2]) for row in rows)
