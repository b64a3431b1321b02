"""hours=: what images cost is measured for the networks that are chosen, and the files are looked at."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from pggan.cli.auto_recipe import GivenKeys
from pggan.config import TrainConfig
from pggan.core.errors import UserError
from pggan.core.validation import validated
from pggan.data.writer import write_pyramid
from pggan.performance.recipe import hours
from pggan.performance.recipe.data_facts import facts_of
from pggan.performance.recipe.hours import MeasuredCosts, find_recipe
from pggan.performance.recipe.situation import NetworkSizes
from pggan.training import timing
from tests.composed import composed


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


def test_a_folder_whose_image_files_are_all_broken_or_tiny_is_refused(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    save(tmp_path / "tiny.png", 3, 3)
    with pytest.raises(UserError, match=r"Of the 2 image files in .*, none can be used"):
        facts_of(configured(f"data.path={tmp_path}").data)


# ---- measuring -------------------------------------------------------------------------------------------

NARROW, WIDE = NetworkSizes(16, 128, 64), NetworkSizes(16, 1024, 512)


@pytest.fixture
def costs(toy_data, monkeypatch):
    """Costs on a machine of 1 GFLOP/s, where steps take twice as long as the model says, and measuring no time."""
    monkeypatch.setattr(timing, "matmul_rate", lambda *_: 1e9)
    config = configured(f"data.path={toy_data}", "schedule.final_resolution=16")
    found = MeasuredCosts(config, facts_of(config.data), hours.choose_device("cpu"), 1)
    found.measured, found.architectures = [], []

    def single_device_timer(config, architecture, phases, device):
        found.architectures.append(architecture)

        def seconds(phase, *_):
            found.measured.append(phase.resolution)
            return 2 * found._model(NARROW).seconds(phase.resolution, phase.batch)

        return SimpleNamespace(seconds=seconds, need=lambda step, steps: 6 * step)

    monkeypatch.setattr(hours, "single_device_timer", single_device_timer)
    monkeypatch.setattr(hours, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    return found


def test_measured_updates_are_believed_and_scale_those_of_other_networks(costs):
    before, wide = costs(NARROW, {4: 16}), costs(WIDE, {4: 16})
    assert sorted(before) == [4, 8, 16]
    costs.measure(costs.config, NARROW, {4: 16}, 1e9)
    assert costs.measured == [16, 4, 8]  # the last level is most of a run
    assert costs(NARROW, {4: 16}) == pytest.approx({side: 2 * each for side, each in before.items()})
    assert costs(WIDE, {4: 16}) == pytest.approx({side: 2 * each for side, each in wide.items()})


def test_the_layers_that_were_chosen_are_measured(costs, toy_data):
    chosen = configured(f"data.path={toy_data}", "model.blur=true", "model.fmap_max=64")
    costs.measure(chosen, NARROW, {4: 16}, 1e9)
    (measured,) = costs.architectures
    assert (measured.resolution, measured.fmap_max, measured.blur) == (16, 64, True)


def test_levels_that_would_take_too_long_are_not_measured(costs):
    each = costs(NARROW, {4: 16})
    costs.measure(costs.config, NARROW, {4: 16}, 0.99 * 6 * 16 * each[16])
    assert costs.measured[0] == 4
    assert 16 not in costs.measured
    assert costs(NARROW, {4: 16})[16] == pytest.approx(2 * each[16])


def test_choosing_convolution_methods_takes_nothing_of_the_time_for_updates(costs, monkeypatch):
    """The run takes what is chosen, and would have to choose it otherwise."""
    budget, make, now = 1.01 * 6 * 16 * costs(NARROW, {4: 16})[16], hours.single_device_timer, [0.0]

    def choosing(*asked):
        now[0] += 10 * budget
        return make(*asked)

    monkeypatch.setattr(hours, "single_device_timer", choosing)
    monkeypatch.setattr(hours, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    costs.measure(costs.config, NARROW, {4: 16}, budget)
    assert 16 in costs.measured


@pytest.mark.parametrize(
    ("seconds", "threads", "tried"),
    [
        ({4: 1, 2: 2}, 4, [4, 2]),
        ({4: 10, 2: 9.5}, 4, [4, 2]),
        ({4: 9, 2: 2, 1: 3}, 2, [4, 2, 1]),
        ({4: 9, 2: 3, 1: 1}, 1, [4, 2, 1]),
    ],
)
def test_fewer_threads_are_taken_where_they_are_clearly_faster(costs, monkeypatch, seconds, threads, tried):
    used = []

    class Timer:
        def seconds(self, *_):
            used.append(count[0])
            return seconds[count[0]]

    count = [4]
    monkeypatch.setattr(hours.torch, "get_num_threads", lambda: count[0])
    monkeypatch.setattr(hours.torch, "set_num_threads", lambda number: count.__setitem__(0, number))
    timer, part = Timer(), SimpleNamespace(resolution=16)
    assert costs._seconds(timer, part) == seconds[4]  # their number is given
    assert (used, costs.threads) == ([4], [])
    used.clear()
    costs.chooses_threads = True
    assert costs._seconds(timer, part) == seconds[threads]
    assert used == tried
    assert (costs.threads[0].key, costs.threads[0].value, count) == ("threads", threads, [threads])
    assert f"takes {1000 * seconds[4]:.3g} ms, {1000 * seconds[2]:.3g} with 2" in costs.threads[0].reason
    assert costs._seconds(timer, part) == seconds[threads]
    assert used == [*tried, threads]  # tried once


class Nothing:
    """No key is given."""

    in_command = has = staticmethod(lambda key: False)


def test_what_is_chosen_is_measured_until_the_choice_stays(costs, monkeypatch):
    monkeypatch.setattr(hours, "MeasuredCosts", lambda *_: costs)
    monkeypatch.setattr(hours, "configure_process", lambda *_, **__: None)
    asked = []

    def composed(choices):
        asked.append({choice.key: choice.value for choice in choices})
        return costs.config

    choices, about = find_recipe(costs.config, 1.5, Nothing(), composed, lambda text: None)
    values = {choice.key: choice.value for choice in choices}
    assert "48 images" in about
    assert values["precision"] == "auto"
    keys = ("schedule.final_resolution", "model.fmap_base", "model.fmap_max")
    assert {NetworkSizes(*(each[key] for key in keys)) for each in asked} == {sizes for sizes, _ in costs.known}
    assert costs.has_measured(NetworkSizes(*(values[key] for key in keys)), values["schedule.batch"])


@pytest.mark.parametrize(
    ("words", "share"),
    [(["evaluation.metrics=[swd]", "evaluation.max_share=0.3"], 0.3), (["evaluation.metrics=[]"], 0)],
)
def test_the_share_of_evaluations_is_no_time_for_images(costs, monkeypatch, words, share):
    monkeypatch.setattr(hours, "MeasuredCosts", lambda *_: costs)
    monkeypatch.setattr(hours, "configure_process", lambda *_, **__: None)
    monkeypatch.setattr(hours, "command_seconds", lambda: 10.0)
    seen, choose_recipe = [], hours.choose_recipe
    monkeypatch.setattr(hours, "choose_recipe", lambda situation: [seen.append(situation), choose_recipe(situation)][1])
    config = configured(f"data.path={costs.config.data.path}", *words)
    find_recipe(config, 0.1, Nothing(), lambda _: config, lambda text: None)
    left = hours.TRAINING_SHARE * 360 - 10
    for situation in seen:
        assert (situation.seconds, situation.other_seconds) == pytest.approx(((1 - share) * left, 360 - left))


def test_the_precision_is_named_unless_it_is_given(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    (choice,) = hours.precision_choice(Nothing(), torch.device("cpu"))
    assert (choice.key, choice.value) == ("precision", "auto")
    assert choice.reason.startswith("fp32 on cpu")
    (choice,) = hours.precision_choice(Nothing(), torch.device("cuda"))
    assert choice.reason.startswith("bf16 on cuda")
    assert hours.precision_choice(SimpleNamespace(has=lambda key: key == "precision"), torch.device("cpu")) == []


def test_ranks_of_a_launcher_are_refused(costs, monkeypatch):
    monkeypatch.setattr(hours, "rank_from_environment", lambda: "rank 0 of 2")
    with pytest.raises(UserError, match="before the ranks start"):
        find_recipe(costs.config, 1.0, Nothing(), lambda choices: costs.config, lambda text: None)
