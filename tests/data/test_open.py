"""From the `data` keys to a pyramid: opened, prepared or drawn, and made once."""

import os
import shutil

import numpy as np
import pytest
from PIL import Image

from pggan.cli.main import main
from pggan.data.prepare import training_pyramid
from pggan.data.pyramid import ImagePyramid


@pytest.fixture(autouse=True)
def one_core():
    """Work is done in this process: starting others takes seconds."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for number in range(4):
        (folder / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        pixels = np.full((20, 24, 3), 50 * number, np.uint8)
        Image.fromarray(pixels).save(folder / "ab"[number % 2] / f"{number}.png")
    return folder


def opened(tmp_path, resolution, path, **keys):
    """The pyramid that `path` gives, with the cache in `tmp_path`."""
    usual = {"cache": str(tmp_path / "cache"), "count": 4, "crop": "center", "channels": None, "labels": False}
    path = None if path is None else str(path)
    return ImagePyramid(training_pyramid(resolution, path=path, **usual | keys))


def test_a_folder_is_prepared_into_the_cache_once_and_again_after_a_change(photos, tmp_path, capsys):
    pyramid = opened(tmp_path, 16, photos, labels=True)
    assert (pyramid.images, pyramid.resolution, pyramid.channels) == (4, 16, 3)
    assert (pyramid.class_names, pyramid.labels.tolist()) == (["a", "b"], [0, 0, 1, 1])
    assert pyramid.path.parent == tmp_path / "cache"
    assert f"{photos} become a dataset for this run and later runs: {pyramid.path}." in capsys.readouterr().err
    assert opened(tmp_path, 16, photos, labels=True).path == pyramid.path
    assert "once" not in capsys.readouterr().err
    for file in pyramid.path.iterdir():
        file.unlink()  # it is made again in the empty folder
    assert opened(tmp_path, 16, photos, labels=True).path == pyramid.path
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(photos / "a" / "new.png")
    assert opened(tmp_path, 16, photos, labels=True).images == 5
    Image.fromarray(np.full((20, 20, 3), 9, np.uint8)).save(photos / "a" / "0.png")  # another image under its name
    assert (opened(tmp_path, 16, photos, labels=True).read(16, np.array([0])) == 9).all()
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_runs_and_datasets_in_the_folder_are_not_images_of_it_nor_is_it_a_dataset(photos, tmp_path, make_pyramid):
    (photos / "index.json").write_text("[]")  # of another program
    pyramid = opened(tmp_path, 16, photos)
    dataset, run = make_pyramid(photos / "data" / "set").path, photos / "outputs" / "f"
    (run / "samples").mkdir(parents=True)
    (run / "config.yaml").touch()
    for place in (dataset / "faces.png", run / "samples" / "fakes.png"):
        shutil.copy(photos / "a" / "0.png", place)
    assert opened(tmp_path, 16, photos).path == pyramid.path
    (dataset / "r0004-00000.bin").unlink()  # even a damaged one
    assert opened(tmp_path, 16, photos).path == pyramid.path


def test_avatars_are_drawn_once_per_resolution(tmp_path):
    pytest.importorskip("dicebear")
    pyramid = opened(tmp_path, 8, None)
    assert (pyramid.images, pyramid.resolution) == (4, 8)
    assert opened(tmp_path, 8, None).fingerprint == pyramid.fingerprint
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["avatars-toon-head-4-8px"]


BAD_INPUT = [
    ("three", "has 3 images; 8 are needed for a batch of 8"),
    ("low", "goes up to 8x8"),
    ("low data.labels=true", "has no labels"),
    ("low data.channels=1", "have 3 channels; 1 are needed"),
    ("damaged", "was changed or damaged: its checksum differs from the index.\n  Delete this dataset"),
    ("lost", "index.json is not usable (No such file or directory).\n  Delete this dataset"),
    ("broken", "broken does not exist.\n  Give the path"),
    ("gone", "add data.path={cache}/gone-16px-0123 "),
    ("nothere/**", "does not exist.\n  Give the path"),
]


@pytest.mark.parametrize(("words", "problem"), BAD_INPUT)
def test_bad_input_ends_training_with_2_and_leaves_nothing(
    tmp_path, make_pyramid, tiny_overrides, capsys, words, problem
):
    make_pyramid(tmp_path / "three", images=3)
    make_pyramid(tmp_path / "low", resolution=8)
    make_pyramid(tmp_path / "damaged")
    (tmp_path / "damaged" / "r0016-00000.bin").write_bytes(bytes(48 * 16 * 16 * 3))
    (tmp_path / "broken").symlink_to("nowhere")
    make_pyramid(tmp_path / "lost")
    (tmp_path / "lost" / "index.json").unlink()
    for digest in ("0456", "0123"):
        make_pyramid(tmp_path / "cache" / f"gone-16px-{digest}")  # of images that are not there any more
    name, *keys = words.split()
    overrides = [*tiny_overrides, f"data.path={tmp_path / name}", f"data.cache={tmp_path / 'cache'}", *keys]
    if keys:
        overrides.append("schedule.final_resolution=8")
    assert main(["train", *overrides, f"run_dir={tmp_path / 'run'}"]) == 2
    message = capsys.readouterr().err
    assert problem.format(cache=tmp_path / "cache") in message
    assert "Traceback" not in message
    assert not (tmp_path / "run").exists()
