"""From run=, checkpoint= and data= to generators and images."""

import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from PIL import Image

from pggan.config import EvaluateConfig
from pggan.core.errors import UserError
from pggan.core.validation import validated
from pggan.data.pyramid import ImagePyramid
from pggan.metrics.inputs import find_generators, images_of_run, mirrored_in_training, notes_on_images, open_images
from pggan.sampling.trained_generator import load
from tests.composed import composed


def config(*overrides):
    return validated(EvaluateConfig, composed("evaluate", list(map(str, overrides))))


def test_checkpoints_are_chosen_by_their_images(finished_run):
    assert find_generators(str(finished_run), "newest") == [finished_run]
    assert [int(path.name) for path in find_generators(str(finished_run), "all")] == [128, 160]
    assert [int(path.name) for path in find_generators(str(finished_run), 128)] == [128]
    with pytest.raises(UserError, match="128, 160"):
        find_generators(str(finished_run), 129)
    with pytest.raises(UserError, match="has no checkpoints"):
        find_generators(str(finished_run / "generator.safetensors"), "all")


def test_a_run_a_checkpoint_and_a_generator_file_know_their_images(finished_run, toy_data):
    for place in (finished_run, finished_run / "checkpoints" / "000000128", finished_run / "generator.safetensors"):
        data, resolution = images_of_run(str(place))
        assert (data.path, resolution) == (str(toy_data), 16)


@pytest.mark.parametrize("mirror", [True, False])
def test_a_run_knows_whether_images_were_mirrored(finished_run, tmp_path, mirror):
    text = (finished_run / "config.yaml").read_text()
    assert text.count("  mirror: true\n") == 1
    (tmp_path / "config.yaml").write_text(text.replace("mirror: true", f"mirror: {str(mirror).lower()}"))
    assert mirrored_in_training(str(tmp_path / "checkpoints" / "000000128")) is mirror
    (tmp_path / "config.yaml").unlink()
    assert mirrored_in_training(str(tmp_path)) is None


def test_a_generator_by_itself_asks_for_images(finished_run, tmp_path):
    shutil.copy(finished_run / "generator.safetensors", tmp_path)
    with pytest.raises(UserError, match="data=DIRECTORY"):
        images_of_run(str(tmp_path / "generator.safetensors"))


@pytest.mark.parametrize(
    "text", ["data: 5", "{", "data: {path: '${oc.env:HOME}'}", "", "data: {path: x}", "data: {}\nschedule: {}"]
)
def test_a_configuration_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match="does not tell what images"):
        images_of_run(str(tmp_path))


def test_images_are_those_of_the_run_or_those_that_are_named(finished_run, toy_data, make_pyramid, tmp_path, alone):
    generator = load(str(finished_run), "cpu")
    assert open_images(config(f"run={finished_run}"), generator, alone).path == toy_data
    other = make_pyramid(tmp_path / "other", images=9, resolution=16)
    assert open_images(config(f"run={finished_run}", f"data={other.path}"), generator, alone).images == 9
    small = make_pyramid(tmp_path / "small", images=9, resolution=8)
    with pytest.raises(UserError, match="goes up to 8x8"):
        open_images(config(f"run={finished_run}", f"data={small.path}"), generator, alone)
    assert open_images(config(f"run={finished_run}", f"data={small.path}", "resolution=8"), generator, alone)


def test_damaged_images_are_refused_unless_the_run_does_not_verify_its_own(finished_run, make_pyramid, tmp_path, alone):
    """Their numbers would be kept as those of the good images, which have the same fingerprint."""
    damaged = make_pyramid(tmp_path / "damaged")
    (shard,) = damaged.shard_paths(16)
    shard.write_bytes(bytes(shard.stat().st_size))
    generator, named = load(str(finished_run), "cpu"), [f"run={finished_run}", f"data={damaged.path}"]
    with pytest.raises(UserError, match="changed or damaged"):
        open_images(config(*named), generator, alone)
    assert open_images(config(*named, "resolution=8"), generator, alone)  # another level
    values = OmegaConf.load(finished_run / "config.yaml")
    values.data.path, values.data.verify = str(damaged.path), False
    OmegaConf.save(values, tmp_path / "config.yaml")
    assert open_images(config(f"run={tmp_path}"), generator, alone)


def test_images_that_are_not_those_of_training_are_noted(finished_run, make_pyramid, tmp_path):
    trained, other = (
        ImagePyramid(Path(images_of_run(str(finished_run))[0].path)),
        make_pyramid(tmp_path / "other", images=40),
    )
    places = finished_run, finished_run / "checkpoints" / "000000128", finished_run / "generator.safetensors"
    for place in places:
        assert notes_on_images(config(f"run={place}"), 3, trained) == []
        (note,) = notes_on_images(config(f"run={place}"), 3, other)
        assert note.endswith("are not those of training: they have changed since.")
        assert notes_on_images(config(f"run={place}", f"data={other.path}"), 3, other) == []
    shutil.copy(finished_run / "config.yaml", tmp_path)
    assert notes_on_images(config(f"run={tmp_path}"), 3, other) == []  # no checkpoint tells


def test_files_that_are_too_small_are_refused_by_the_key_of_this_command(finished_run, tmp_path, alone, monkeypatch):
    monkeypatch.chdir(tmp_path)  # data.cache is there
    (tmp_path / "photos").mkdir()
    for number in range(6):
        Image.new("RGB", (8, 8), (40 * number, 0, 0)).save(tmp_path / "photos" / f"{number}.png")
    with pytest.raises(UserError, match=r"^resolution=16 is too much.*\n.*Choose resolution=8"):
        open_images(config(f"run={finished_run}", "data=photos"), load(str(finished_run), "cpu"), alone)


def test_the_folders_that_were_classes_in_training_are_classes(finished_run, tmp_path, alone):
    """Else fakes would have other classes than reals, and the images would be prepared a second time."""
    for number in range(6):
        folder = tmp_path / "photos" / ("cats" if number < 4 else "dogs")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (40 * number, 0, 0)).save(folder / f"{number}.png")
    values = OmegaConf.load(finished_run / "config.yaml")
    values.data.path, values.data.labels, values.data.cache = str(tmp_path / "photos"), True, str(tmp_path / "cache")
    OmegaConf.save(values, tmp_path / "config.yaml")
    pyramid = open_images(config(f"run={tmp_path}"), load(str(finished_run), "cpu"), alone)
    assert sorted(pyramid.labels.tolist()) == [0, 0, 0, 0, 1, 1]
