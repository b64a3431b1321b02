"""The pictures that a run makes of itself: grids, a film, how varied fakes are, the projector."""

import numpy as np
from PIL import Image
from tensorboard.plugins.projector import projector_config_pb2 as config

from google.protobuf import text_format  # isort: skip - comes with tensorboard

from pggan.run import train
from pggan.sampling.images import grid, grids_in
from pggan.sampling.trained_generator import load


def test_a_resumed_run_has_no_grid_twice(finished_run, tiny_config, tmp_path, capsys):
    """Another interval after the resume, and grids beyond it: what is left are those of one training."""
    folder = tmp_path / "samples" / "timelapse"
    assert train.run(tiny_config(f"run_dir={tmp_path}", "schedule.total_images=96")) == 0
    Image.new("RGB", (4, 4)).save(folder / "000000112.png")
    (tmp_path / "samples" / "fakes-000000112.png").touch()
    (tmp_path / "projector" / "000000160" / "features_of_D").mkdir(parents=True)
    assert [*grids_in(folder).values()][-1].images == 96  # a file of another kind is left out
    assert train.run(tiny_config(f"run_dir={tmp_path}", "schedule.total_images=160")) == 0
    found = [*grids_in(folder).values()]
    assert [facts.images for facts in found] == list(range(0, 161, 8))
    hours = [facts.hours for facts in found]
    assert hours == sorted(hours) != [0] * len(hours)
    assert not (tmp_path / "samples" / "fakes-000000112.png").exists()
    assert "warning: Embedding dir exists" not in capsys.readouterr().out


def test_preview_grids_are_of_the_averaged_generator(finished_run):
    generator = load(finished_run, "cpu")
    averaged = generator.render(generator.latents("0-5"))
    shown = np.asarray(Image.open(finished_run / "samples" / "fakes-000000160.png"))
    assert np.abs(grid(averaged, 3).astype(int) - shown).max() <= 1  # drawn in batches, whose last bit can differ


def test_points_tables_and_pictures_of_the_projector_go_together(finished_run):
    """48 fakes and 48 reals, each with the 8 numbers of D's last features."""
    written = sorted(int(path.parent.name) for path in finished_run.glob("projector/*/features_of_D"))
    assert written == [0, 32, 96, 160]  # at the start, and at the end of each stable phase
    found = text_format.Parse((finished_run / "projector_config.pbtxt").read_text(), config.ProjectorConfig())
    (entry,) = found.embeddings
    assert entry.tensor_name == "features_of_D:projector/000000160"
    assert np.loadtxt(finished_run / entry.tensor_path).shape == (96, 8)
    head, *rows = (finished_run / entry.metadata_path).read_text().splitlines()
    assert head == "name\tkind"
    assert [row.split("\t")[1] for row in rows] == ["fake"] * 48 + ["real"] * 48
    assert list(entry.sprite.single_image_dim) == [16, 16]
