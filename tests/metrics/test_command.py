"""`pggan evaluate`: tables, JSON, files, and errors before anything is drawn."""

import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from PIL import Image

from pggan.checkpoints.generator_file import LoadedGenerator, save_generator
from pggan.cli.main import main
from pggan.core.errors import EXIT_INTERRUPTED, EXIT_USER_ERROR
from pggan.metrics import command, images
from pggan.metrics.command import Lines, shown
from pggan.metrics.extractors import pixel_extractor
from tests.definitions import variant, with_random_biases

FAST = ["devices=cpu", "extractor=pixels", "count=20"]


def test_json_has_a_curve_with_everything_that_the_numbers_depend_on(finished_run, toy_data, capsys, tmp_path):
    overrides = [f"run={finished_run}", "checkpoint=all", "metrics=[kid,neighbours]", "json=true", f"out={tmp_path}"]
    assert main(["evaluate", *overrides, *FAST]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["images"] for one in found["evaluations"]] == [128, 160]
    newest = found["evaluations"][-1]
    assert (newest["resolution"], newest["alpha"]) == (16, 1.0)
    assert {"kid@pixels-20", "copies@pixels-20"} <= set(newest["metrics"])
    assert newest["parameters"]["neighbours"]["training_images"] == 48
    assert newest["parameters"]["neighbours"]["both_orientations"]  # as data.mirror of the run says
    assert newest["seconds"]["kid"] >= 0
    assert found["data"] == {"path": str(toy_data), "images": 48, "fingerprint": found["data"]["fingerprint"]}
    assert found["extractor"]["name"] == "pixels"
    assert found["first_seed"] == 10_000
    assert json.loads((tmp_path / "evaluation.json").read_text()) == found
    pictures = ["neighbours-000000128.png", "neighbours-000000160.png"]
    assert [one["pictures"] for one in found["evaluations"]] == [[name] for name in pictures]
    for name in pictures:
        with Image.open(tmp_path / name) as picture:
            assert picture.width == (1 + 4) * 64 + 4


def test_what_is_done_is_kept_when_a_later_checkpoint_is_not_finished(finished_run, tmp_path, monkeypatch):
    evaluated = []

    def interrupted(generator, *given, **more):
        evaluated.append(generator.images)
        if len(evaluated) == 2:
            raise KeyboardInterrupt
        return evaluate(generator, *given, **more)

    evaluate = command.evaluate
    monkeypatch.setattr(command, "evaluate", interrupted)
    line = ["evaluate", f"run={finished_run}", "checkpoint=all", "metrics=[kid]", f"out={tmp_path}", *FAST]
    assert main(line) == EXIT_INTERRUPTED
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert evaluated == [128, 160]
    assert [one["images"] for one in found["evaluations"]] == [128]


def test_a_table_names_every_number_and_nothing_is_written(finished_run, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", f"run={finished_run}", "metrics=[swd,fid]", *FAST]) == 0
    printed = capsys.readouterr().out
    for name in (
        "swd/16@patches-20",
        "swd_floor/mean@patches-20",
        "fid@pixels-20",
        "images shown",
        "Time: drawing",
    ):
        assert name in printed
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_grey_images_beside_a_generator_of_colours_are_noted(finished_run, capsys, tmp_path, monkeypatch):
    """A folder of grey files is prepared with the generator's channels."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grey").mkdir()
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (20, 16, 16), np.uint8)):
        Image.fromarray(pixels).save(tmp_path / "grey" / f"{number}.png")
    said = []
    for data in ([], ["data=grey"]):
        assert main(["evaluate", f"run={finished_run}", "metrics=[kid]", *data, *FAST]) == 0
        said.append(re.findall("The images of .*grey.*", capsys.readouterr().out))
    (note,) = said[1]
    assert said[0] == []
    assert note.endswith(" are grey, repeated to three channels.")


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_colours_that_a_generator_of_grey_images_does_not_have_are_noted(tmp_path, capsys, monkeypatch, mode):
    monkeypatch.chdir(tmp_path)
    network = with_random_biases(variant(resolution=16, fmap_max=8, channels=1))
    save_generator(LoadedGenerator(network, 16, 1.0, 100), run := tmp_path / "generator.safetensors")
    (tmp_path / "photos").mkdir()
    draws = np.random.default_rng(0)
    for number in range(20):
        pixels = draws.integers(0, 256, (16, 16, 3)[: 2 + (mode == "RGB")], np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    assert main(["evaluate", f"run={run}", "data=photos", "metrics=[kid]", *FAST]) == 0
    noted = "20 of 20 images of" in capsys.readouterr().out
    assert noted == (mode == "RGB")


def test_metrics_by_the_features_that_d_looked_at_are_noted(finished_run, capsys, monkeypatch):
    load, said = command.load_generator, []

    def load_projected(features, *given):
        generator = load(*given)
        generator.network.architecture = replace(generator.network.architecture, features=features)
        return generator

    extractor = replace(pixel_extractor(), name="torchvision-resnet18-45670000", facts={"weights": "45670000"})
    monkeypatch.setattr(command, "load_extractor", lambda *_: extractor)
    for features in (None, "torchvision:resnet18@0123", "torchvision:resnet18@4567"):
        monkeypatch.setattr(command, "load_generator", partial(load_projected, features))
        assert main(["evaluate", f"run={finished_run}", "metrics=[kid]", *FAST]) == 0
        said.append(re.findall("D looked at .*", capsys.readouterr().out))
    assert said[:2] == [[], []]
    note = "D looked at features of torchvision-resnet18-45670000 in training, so metrics by them are too good."
    assert said[2] == [note]


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        (["metrics=[kidd]"], "Did you mean 'kid'"),
        (["metrics=[]"], "at least one"),
        (["metrics=[swd]", "extractor=inception", "weights=nowhere.pth"], "metrics=[swd] need none"),
        (["metrics=[swd]", "weights=nowhere.pth"], "efficientnet-lite0 takes no weights="),
        (["metrics=[swd]", "extractor=pixls"], "pixels"),
        (["metrics=[kid]", "extractor=pixels:16"], "Write pixels."),
        (["metrics=[kid]", "extractor=torchvision"], "torchvision:NAME"),
        (["checkpoint=best"], "128, 160"),
        (["checkpoint=worst"], "newest"),
        (["checkpoint=7"], "128, 160"),
        (["count=1"], "at least 2"),
        (["count=15", "metrics=[kid]"], "needs at least 16 images; count=15.\n  Raise count="),
        (["count=19", "metrics=[precision_recall]"], "needs at least 20 images"),
        (["count=15", "metrics=[swd]"], "needs at least 16 images"),
        (["count=2", "metrics=[duplicates,neighbours]"], "needs at least 20 images"),
        (["resolution=32"], "no level"),
        (["resolution=4", "metrics=[swd]"], "do not fit"),
        (["alpha=2"], "alpha=2"),
        (["data=nowhere"], "nowhere"),
        (["extractor=inception", "weights=nowhere.pth", "metrics=[fid]"], "is not a file"),
        (["extractor=pixls", "metrics=[fid]"], "pixels"),
    ],
)
def test_a_mistake_is_named_before_anything_is_drawn(finished_run, capsys, monkeypatch, tmp_path, overrides, hint):
    monkeypatch.setattr(images.FakeImages, "read", lambda *_: pytest.fail("images were drawn"))
    line = ["evaluate", f"run={finished_run}", "devices=cpu", f"out={tmp_path / 'new' / 'folder'}", *overrides]
    assert main(line) == EXIT_USER_ERROR
    assert hint in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_devices_start_as_many_ranks(finished_run, capfd):
    arguments = ["evaluate", f"run={finished_run}", "metrics=[kid]", "json=true", *FAST]
    found = []
    for devices in ("cpu", "cpu:2"):
        assert main([*arguments, f"devices={devices}"]) == 0
        found.append(json.loads(capfd.readouterr().out)["evaluations"][0]["metrics"])
    assert found[0] == found[1]


def test_progress_in_lines_tells_the_time_left(capsys, monkeypatch):
    clock = iter([0.0, 0.0, 5.0, 20.0, 40.0])
    monkeypatch.setattr("pggan.metrics.command.time.monotonic", lambda: next(clock))
    lines = Lines("1/2 ")
    for done in (0, 1, 2, 4):
        lines("drawing fakes", done, 4)
    assert capsys.readouterr().err == "1/2 drawing fakes: 2 of 4, 20 s left\n"


def test_numbers_below_zero_keep_their_sign():
    values = (None, -3.14159, 0.0, 1234.5, -0.0004)
    assert [shown(value) for value in values] == ["", "-3.14", "0", "1,234", "0"]
