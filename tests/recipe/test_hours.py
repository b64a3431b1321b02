"""hours=: what images cost is measured for the networks that are chosen, and the files are looked at."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from pggan.core.errors import UserError
from pggan.performance import hours
from pggan.performance.hours import MeasuredCosts, choose_threads, facts_of, find_recipe
from pggan.performance.recipe import NetworkSizes, Recipe
from tests.composed import train_config
from tests.pyramids import write_pyramid


def configured(*overrides):
    return train_config("devices=cpu", "loss=logistic", *overrides)


def save(path, width, height, mode="RGB"):
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).convert(mode).save(path)


def test_a_folder_is_as_large_as_most_of_its_images(tmp_path):
    for number in range(40):
        save(tmp_path / f"{number:02}.png", 300, 130)
    save(tmp_path / "small.png", 20, 200)
    (tmp_path / "broken.png").write_bytes(b"no image")
    facts = facts_of(configured(f"data.path={tmp_path}").data)
    assert (facts.images, facts.resolution, facts.channels, facts.drawn) == (40, 128, 3, False)
    said = "98% of them at least 128 pixels wide and high; images smaller than the final resolution are left out"
    assert said in facts.note
    assert facts_of(configured(f"data.path={tmp_path}", "data.crop=pad").data).resolution == 256


def test_channels_are_those_of_the_files_or_given(tmp_path, monkeypatch):
    save(tmp_path / "grey.png", 16, 16, "L")
    assert facts_of(configured(f"data.path={tmp_path}").data).channels == 1
    assert facts_of(configured(f"data.path={tmp_path}", "data.channels=3").data).channels == 3
    save(tmp_path / "colours.png", 16, 16)
    assert facts_of(configured(f"data.path={tmp_path}").data).channels == 3
    monkeypatch.setattr(hours, "MAX_HEADERS", 1)
    assert facts_of(configured(f"data.path={tmp_path}").data).images == 2  # though only one was looked at


def test_a_pyramid_and_avatars_say_what_they_are(toy_data, labelled_data, tmp_path):
    facts = facts_of(configured(f"data.path={toy_data}").data)
    assert (facts.images, facts.resolution, facts.num_classes, facts.drawn) == (48, 16, 0, False)
    assert facts_of(configured(f"data.path={labelled_data}", "data.labels=true").data).num_classes == 3
    assert facts_of(configured("data.count=100").data).drawn
    write_pyramid(tmp_path / "drawn", [np.zeros((4, 4, 3), np.uint8)] * 2, {"kind": "avatars"})
    assert facts_of(configured(f"data.path={tmp_path / 'drawn'}").data).drawn


def test_folders_without_images_and_classes_that_are_not_known_are_refused(tmp_path):
    for overrides, hint in (([], "no images"), (["data.labels=true"], "labels=true")):
        with pytest.raises(UserError, match=hint):
            facts_of(configured(f"data.path={tmp_path}", *overrides).data)


def test_measured_steps_are_believed_and_scale_those_of_other_networks(toy_data):
    config = configured(f"data.path={toy_data}", "schedule.final_resolution=16", "model.fmap_max=16")
    facts, batch = facts_of(config.data), {4: 8}
    costs = MeasuredCosts(config, facts, torch.device("cpu"), ranks=1)
    narrow, wide = (NetworkSizes(16, 256, 16), NetworkSizes(16, 512, 32))
    before = costs(wide, batch)
    recipe = Recipe(config, set(), facts, "cpu", 1, costs, 60.0, sizes=narrow, batch=batch)
    costs.measure(config, recipe, 100.0)
    assert set(costs.ratios) == {4, 8, 16}
    after = costs(wide, batch)
    assert {side: after[side] / before[side] for side in after} == pytest.approx(costs.ratios)


@pytest.mark.parametrize(("timed", "about"), [(True, ""), (False, "about ")])
def test_cpu_threads_are_halved_as_long_as_steps_become_clearly_faster(timed, about, monkeypatch):
    before, times = torch.get_num_threads(), {4: 4.0, 2: 2.0, 1: 1.9}
    recipe = SimpleNamespace(sizes=NetworkSizes(16, 256, 16), batch={4: 1})

    class Costs(SimpleNamespace):
        def __call__(self, *_):
            return self.ratios or {16: self.speed}

    costs = Costs(ratios={16: 4.0} if timed else {}, speed=4.0, device=None, config=SimpleNamespace(precision=None))
    monkeypatch.setattr(hours, "speed_of", lambda *_: times[torch.get_num_threads()])

    def measure():
        costs.ratios = {16: times[torch.get_num_threads()]}

    torch.set_num_threads(4)
    try:
        ((key, value, reason),) = choose_threads(costs, recipe, measure)
        assert (key, value, torch.get_num_threads(), costs()) == ("threads", 2, 2, {16: 2.0})
        assert reason == f"{about}2 s a step at 16x16; 4 threads need 4 s"
        times[2] = 4.0
        torch.set_num_threads(4)
        assert (choose_threads(costs, recipe, measure), torch.get_num_threads()) == ([], 4)
    finally:
        torch.set_num_threads(before)


def test_ranks_of_a_launcher_are_refused(monkeypatch):
    rank = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "x", "MASTER_PORT": 1}
    for name, value in rank.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UserError, match="before the ranks start"):
        find_recipe(configured("hours=1"), set(), pytest.fail, pytest.fail, scales=False)
