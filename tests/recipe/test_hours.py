"""hours=: what images cost is measured for the networks that are chosen, and the files are looked at."""

import numpy as np
import pytest
import torch
from PIL import Image

from pggan.cli.auto_recipe import GivenKeys
from pggan.config import TrainConfig
from pggan.config.validation import validated
from pggan.core.errors import UserError
from pggan.performance.hours import MeasuredCosts, facts_of, find_recipe
from pggan.performance.recipe import NetworkSizes, Recipe, Situation
from tests.composed import composed
from tests.pyramids import write_pyramid


def configured(*overrides):
    return validated(TrainConfig, composed("train", ["devices=cpu", "loss=logistic", *overrides]))


# ---- data ------------------------------------------------------------------------------------------------


def save(path, width, height, mode="RGB"):
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).convert(mode).save(path)


def test_a_folder_is_as_large_as_most_of_its_images(tmp_path):
    for number in range(40):
        save(tmp_path / f"{number:02}.png", 300, 130)
    save(tmp_path / "small.png", 20, 200)
    (tmp_path / "broken.png").write_bytes(b"no image")
    facts = facts_of(configured(f"data.path={tmp_path}").data)
    assert (facts.images, facts.resolution, facts.channels, facts.drawn) == (40, 128, 3, False)
    assert (
        "98% of them at least 128 pixels wide and high; images smaller than the final resolution are left out"
        in facts.note
    )
    padded = facts_of(configured(f"data.path={tmp_path}", "data.crop=pad").data)
    assert padded.resolution == 256


@pytest.mark.parametrize(("small", "resolution", "images"), [(1, 64, 10), (2, 64, 10), (3, 8, 13)])
def test_a_few_small_images_do_not_decide_how_large_the_others_may_be(tmp_path, small, resolution, images):
    """One fifth of the images may be left out for twice the resolution."""
    for number in range(10):
        save(tmp_path / f"{number}.png", 80, 80)
    for number in range(small):
        save(tmp_path / f"icon-{number}.png", 9, 9)
    facts = facts_of(configured(f"data.path={tmp_path}").data)
    assert (facts.resolution, facts.images) == (resolution, images)


def test_a_resolution_above_the_largest_image_is_refused_before_anything_is_measured(tmp_path):
    for number, side in enumerate((40, 40, 70)):
        save(tmp_path / f"{number}.png", side, side)
    word = f"data.path={tmp_path}"
    assert facts_of(configured(word).data).largest == 64
    given = GivenKeys.of(["schedule.final_resolution=128"])
    with pytest.raises(UserError, match="the largest image allows 64 pixels"):
        find_recipe(configured(word, "schedule.final_resolution=128"), 1.0, given, pytest.fail, pytest.fail)


def test_files_of_different_channels_are_noticed(tmp_path):
    for number in range(8):
        save(tmp_path / f"{number}.png", 16, 16)
    save(tmp_path / "grey.png", 16, 16, "L")
    data = configured(f"data.path={tmp_path}").data
    assert (facts_of(data).channels, facts_of(data).mixed) == (3, True)
    for number in range(8, 9):
        save(tmp_path / f"{number}.png", 16, 16)
    assert not facts_of(data).mixed  # one in ten


def test_grey_images_have_one_channel_unless_another_number_is_given(tmp_path):
    for number in range(3):
        save(tmp_path / f"{number}.png", 16, 16, "L")
    assert facts_of(configured(f"data.path={tmp_path}").data).channels == 1
    assert facts_of(configured(f"data.path={tmp_path}", "data.channels=3").data).channels == 3


def test_a_pyramid_and_avatars_say_what_they_are(toy_data, labelled_data, tmp_path):
    facts = facts_of(configured(f"data.path={toy_data}").data)
    assert (facts.images, facts.resolution, facts.num_classes) == (48, 16, 0)
    assert facts_of(configured(f"data.path={labelled_data}", "data.labels=true").data).num_classes == 3
    assert not facts.drawn
    assert facts_of(configured("data.count=100").data).drawn
    write_pyramid(tmp_path / "drawn", [np.zeros((4, 4, 3), np.uint8)] * 2, {"kind": "avatars"})
    assert facts_of(configured(f"data.path={tmp_path / 'drawn'}").data).drawn


def test_folders_without_images_and_classes_that_are_not_known_are_refused(tmp_path):
    for overrides, hint in (([], "no images"), (["data.labels=true"], "labels=true")):
        with pytest.raises(UserError, match=hint):
            facts_of(configured(f"data.path={tmp_path}", *overrides).data)


# ---- measuring -------------------------------------------------------------------------------------------


def test_measured_updates_are_believed_and_scale_those_of_other_networks(toy_data):
    config = configured(f"data.path={toy_data}", "schedule.final_resolution=16", "model.fmap_max=16")
    facts, batch = facts_of(config.data), {4: 8}
    costs = MeasuredCosts(config, facts, torch.device("cpu"), ranks=1)
    narrow, wide = (NetworkSizes(16, 256, 16), NetworkSizes(16, 512, 32))
    before = costs(wide, batch)
    situation = Situation(config, GivenKeys.of([]), facts, "cpu", 1, costs, 60.0)
    assert costs.measure(config, recipe := Recipe(situation, narrow, batch), 100.0)
    assert not costs.measure(config, recipe, 100.0)  # they are known
    assert set(costs.ratios) == {4, 8, 16}
    after = costs(wide, batch)
    assert {side: after[side] / before[side] for side in after} == pytest.approx(costs.ratios)
    assert costs(narrow, {4: 16})[16] != costs(narrow, batch)[16]


def test_ranks_of_a_launcher_are_refused(monkeypatch):
    for name, value in {
        "RANK": 0,
        "WORLD_SIZE": 2,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 2,
        "MASTER_ADDR": "x",
        "MASTER_PORT": 1,
    }.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UserError, match="before the ranks start"):
        find_recipe(configured(), 1.0, GivenKeys.of([]), pytest.fail, pytest.fail)
