"""From the `data` keys to a pyramid: opened, prepared or drawn, and made once."""

import zipfile

import numpy as np
import pytest
from PIL import Image

from pggan.cli.main import main
from pggan.config import TrainConfig
from pggan.core.errors import UserError
from pggan.core.validation import validated
from pggan.data.open import open_data
from tests.composed import composed


@pytest.fixture(autouse=True)
def no_processes(monkeypatch):
    """Work is done in this process: starting others takes seconds."""
    monkeypatch.setattr("pggan.data.workers.MAX_WORKERS", 1)


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for number in range(4):
        (folder / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        pixels = np.full((20, 24, 3), 50 * number, np.uint8)
        Image.fromarray(pixels).save(folder / "ab"[number % 2] / f"{number}.png")
    return folder


def data_config(tmp_path, *overrides):
    values = composed("train", [f"data.cache={tmp_path / 'cache'}", *overrides])
    return validated(TrainConfig, values).data


def test_a_plain_folder_is_prepared_into_the_cache_once(photos, tmp_path):
    config = data_config(tmp_path, f"data.path={photos}")
    pyramid = open_data(config, 16)
    assert (pyramid.images, pyramid.resolution, pyramid.channels) == (4, 16, 3)
    assert pyramid.path.parent == tmp_path / "cache"
    made = pyramid.path.stat().st_mtime_ns
    assert open_data(config, 16).path.stat().st_mtime_ns == made
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_changed_folder_is_prepared_again(photos, tmp_path):
    config = data_config(tmp_path, f"data.path={photos}")
    open_data(config, 16)
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(photos / "a" / "new.png")
    assert open_data(config, 16).images == 5


def test_a_prepared_pyramid_is_opened_where_it_is(toy_data, tmp_path):
    assert open_data(data_config(tmp_path, f"data.path={toy_data}"), 16).path == toy_data
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("override", "resolution", "key"),
    [("data.verify=true", 64, "schedule.final_resolution=64"), ("data.channels=2", 16, "data.channels=1")],
)
def test_what_can_not_be_prepared_is_told_in_keys_of_training(photos, tmp_path, override, resolution, key):
    with pytest.raises(UserError) as refused:
        open_data(data_config(tmp_path, f"data.path={photos}", override), resolution)
    assert key in str(refused.value)
    assert "max_resolution" not in str(refused.value)


def test_sub_folders_are_classes(photos, tmp_path):
    pyramid = open_data(data_config(tmp_path, f"data.path={photos}", "data.labels=true"), 16)
    assert pyramid.class_names == ["a", "b"]
    assert pyramid.labels.tolist() == [0, 0, 1, 1]


def test_avatars_are_drawn_once_per_resolution(tmp_path):
    pytest.importorskip("dicebear")
    config = data_config(tmp_path, "data.count=4")
    pyramid = open_data(config, 8)
    assert (pyramid.images, pyramid.resolution) == (4, 8)
    assert open_data(config, 8).fingerprint == pyramid.fingerprint
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["avatars-toon-head-4-8px"]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["data.path=nowhere"], "nowhere"),
        (["data.path={toy}", "data.labels=true"], "no labels"),
        (["data.path={toy}", "data.channels=1"], "data.channels=1, but the images in .* have 3"),
    ],
)
def test_what_is_not_there_is_refused(overrides, problem, toy_data, tmp_path):
    config = data_config(tmp_path, *(override.format(toy=toy_data) for override in overrides))
    with pytest.raises(UserError, match=problem):
        open_data(config, 16)


def test_images_below_the_wanted_resolution_are_refused(photos, toy_data, tmp_path):
    with pytest.raises(UserError, match="16"):
        open_data(data_config(tmp_path, f"data.path={photos}"), 32)
    with pytest.raises(UserError, match="goes up to 16x16"):
        open_data(data_config(tmp_path, f"data.path={toy_data}"), 32)


def test_an_archive_is_prepared_into_the_cache_and_says_so(photos, tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for path in sorted(photos.rglob("*.png")):
            archive.write(path, path.relative_to(photos))
    config = data_config(tmp_path, f"data.path={tmp_path / 'photos.zip'}", "data.labels=true")
    pyramid = open_data(config, 16)
    assert (pyramid.images, pyramid.class_names) == (4, ["a", "b"])
    assert f"Preparing {tmp_path / 'photos.zip'}, once, into" in capsys.readouterr().err
    open_data(config, 16)
    assert "once" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("images", "batch", "problem"),
    [
        (1, 1, "has 1 image; 2 are needed"),
        (1, 16, "has 1 image; 16 are needed for a batch of 16"),
        (3, 16, "has 3 images; 16 are needed"),
    ],
)
def test_too_few_images_are_refused(tmp_path, make_pyramid, images, batch, problem):
    make_pyramid(tmp_path / "few", images=images)
    with pytest.raises(UserError, match=problem):
        open_data(data_config(tmp_path, f"data.path={tmp_path / 'few'}"), 16, batch)


def test_a_damaged_shard_is_found_before_training_unless_told_not_to_look(tmp_path, make_pyramid):
    make_pyramid(tmp_path / "set")
    path = tmp_path / "set" / "r0008-00000.bin"
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    config = data_config(tmp_path, f"data.path={tmp_path / 'set'}")
    with pytest.raises(UserError, match=r"r0008-00000\.bin was changed or damaged"):
        open_data(config, 16)
    assert open_data(config, 4).images == 48  # that level is not used
    assert open_data(data_config(tmp_path, f"data.path={tmp_path / 'set'}", "data.verify=false"), 16).images == 48


BAD_INPUT = {
    "a wrong path": ("nowhere", "does not exist"),
    "an empty folder": ("empty", "There are no images"),
    "one image only": ("one", "has 1 image"),
    "three images": ("three", "has 3 images; 8 are needed"),
    "mixed channels": ("mixed", "mixed: "),
    "too low a pyramid": ("low", "goes up to 8x8"),
    "a damaged pyramid": ("damaged", "was changed or damaged"),
    "no archive": ("fake.zip", "can't be read"),
}


@pytest.mark.parametrize(("name", "problem"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_ends_training_with_2_and_leaves_nothing(
    tmp_path, make_pyramid, tiny_overrides, capsys, name, problem
):
    (tmp_path / "empty").mkdir()
    for folder, count in (("one", 1), ("three", 3), ("mixed", 12)):
        (tmp_path / folder).mkdir()
        for number in range(count):
            grey = folder == "mixed" and number % 2
            shape = (16, 16) if grey else (16, 16, 3)
            pixels = np.random.default_rng(number).integers(0, 256, shape, np.uint8)
            Image.fromarray(pixels).save(tmp_path / folder / f"{number}.png")
    make_pyramid(tmp_path / "low", resolution=8)
    make_pyramid(tmp_path / "damaged")
    (tmp_path / "damaged" / "r0016-00000.bin").write_bytes(bytes(48 * 16 * 16 * 3))
    (tmp_path / "fake.zip").write_bytes(b"not a zip")
    overrides = [*tiny_overrides, f"data.path={tmp_path / name}", f"data.cache={tmp_path / 'cache'}"]
    assert main(["train", *overrides, f"run_dir={tmp_path / 'run'}"]) == 2
    message = capsys.readouterr().err
    assert problem in message
    assert "Traceback" not in message
    assert not (tmp_path / "run").exists()
