"""`pggan bench` measures every stage that is asked for, and `pggan bench scaling` every number of ranks."""

import json
import time

import pytest
import torch

from pggan.cli.main import main
from pggan.config.commands import BenchConfig
from pggan.config.validation import validated
from pggan.performance.bench import measured, phase_of, rows_of
from pggan.training.timing import WARMUP
from tests.composed import composed

SMALL = ["model.fmap_max=8", "batch=4", "steps=1", "device=cpu"]
RANKS = ["stages=[8]", "batch=4", "steps=1", "model.fmap_base=64", "model.fmap_max=8", "json=true"]


def test_every_stage_is_measured_beside_the_same_step_with_plain_operations(capsys):
    assert main(["bench", *SMALL, "stages=[4,8]", "against=true", "json=true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["resolution"], row["batch"]) for row in found["stages"]] == [(4, 4), (8, 4)]
    for row in found["stages"]:
        assert row["images_per_second"] == pytest.approx(1000 * row["batch"] / row["milliseconds_per_step"])
        assert row["ratio"] == pytest.approx(row["images_per_second"] / row["reference_images_per_second"])
    assert (found["hardware"]["device"], found["loss"]["name"]) == ("cpu", "wgan_gp")


def test_a_table_is_shown_otherwise(capsys):
    assert main(["bench", *SMALL, "stages=4", "loss=logistic", "loss.reg_interval=2"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["resolution", "batch", "step", "second"] in lines
    assert any(line[:2] == ["4", "4"] and len(line) == 4 for line in lines)


def test_rounds_of_the_warm_up_do_not_count_and_others_are_divided_by_their_steps():
    words = ["steps=1", "device=cpu", "loss=logistic", f"loss.reg_interval={2 * WARMUP['cpu']}"]

    def step(phase, reals, rng):
        time.sleep(0.2 if rng.images < 2 * phase.batch * WARMUP["cpu"] else 0.03)

    config = validated(BenchConfig, composed("bench", words))
    assert measured({"step": step}, phase_of(4, 4), torch.device("cpu"), config)["step"] < 0.1


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("bench batch=6", "does not divide"),
        ("bench device=tpu", "Use auto"),
        ("bench modes=[graph]", "compute.cuda_graphs"),
        ("bench scaling batch=2", "each of 2 ranks needs equally many groups"),
    ],
)
def test_mistakes_are_refused(words, remedy, capsys):
    assert main(words.split()) == 2
    assert remedy in capsys.readouterr().err


def test_figures_of_ranks_follow_from_the_times():
    two, four = rows_of(1024, 4, {2: [3.0, 0.5, 0.5], 4: [0.6, 9.0, 0.8]})
    assert (two["images_per_second"], four["images_per_second"]) == (2 * 4 / 0.5, 4 * 4 / 0.8)
    assert (two["speedup"], four["speedup"], four["efficiency"]) == (2.0, 2.5, 2.5 / 4)


@pytest.mark.slow
def test_ranks_are_measured(capfd):
    assert main(["bench", "scaling", "processes=[1,2]", "devices=cpu", *RANKS]) == 0
    rows = json.loads(capfd.readouterr().out)["stages"]
    assert [row["ranks"] for row in rows] == [1, 2]
    assert all(row["images_per_second"] > 0 for row in rows)
