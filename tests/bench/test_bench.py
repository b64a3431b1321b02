"""`pggan bench` measures every stage that is asked for."""

import json

import pytest

from pggan.cli.main import main

SMALL = ["model.fmap_max=8", "batch=4", "steps=1", "warmup=0", "device=cpu"]


def test_every_stage_is_measured_beside_the_same_step_with_plain_operations(capsys):
    assert main(["bench", *SMALL, "stages=[4,8]", "against=true", "json=true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["resolution"], row["batch"]) for row in found["stages"]] == [(4, 4), (8, 4)]
    for row in found["stages"]:
        assert row["images_per_second"] == pytest.approx(1000 * row["batch"] / row["milliseconds_per_step"])
        assert row["ratio"] == pytest.approx(row["images_per_second"] / row["reference_images_per_second"])
    assert found["hardware"]["device"] == "cpu"
    assert found["loss"]["name"] == "wgan_gp"


def test_a_table_is_shown_otherwise(capsys):
    assert main(["bench", *SMALL, "stages=4", "loss=logistic", "loss.reg_interval=2"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["side", "batch", "ms/step", "img/s", "reference", "ratio"] in lines
    assert any(line[:2] == ["4", "4"] and len(line) == 4 for line in lines)


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("stages=[12]", "powers of two"),
        ("stages=[]", "for example [4,8,16]"),
        ("batch=6", "does not divide"),
        ("device=tpu", "Use auto"),
        ("modes=[graph]", "compute.cuda_graphs"),
    ],
)
def test_mistakes_are_refused(override, remedy, capsys):
    assert main(["bench", override]) == 2
    assert remedy in capsys.readouterr().err
