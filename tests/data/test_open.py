"""From the `data` keys to a pyramid: prepared, plain or rendered, made once."""

import numpy as np
import pytest
from PIL import Image

from pggan.cli import compose
from pggan.config import TrainConfig
from pggan.data.open import open_data
from pggan.errors import UserError
from pggan.schema import validated


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for number in range(4):
        (folder / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        pixels = np.full((20, 24, 3), 50 * number, np.uint8)
        Image.fromarray(pixels).save(folder / "ab"[number % 2] / f"{number}.png")
    return folder


def data_config(tmp_path, *overrides):
    values = compose("train", [f"data.cache={tmp_path / 'cache'}", *overrides])
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


def test_sub_folders_are_classes(photos, tmp_path):
    pyramid = open_data(data_config(tmp_path, f"data.path={photos}", "data.labels=true"), 16)
    assert pyramid.class_names == ["a", "b"]
    assert pyramid.labels.tolist() == [0, 0, 1, 1]


def test_avatars_are_rendered_once_per_resolution(tmp_path):
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
