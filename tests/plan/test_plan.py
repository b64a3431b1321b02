"""`pggan plan` as a user meets it, and what it counts."""

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pggan.cli.main import main
from pggan.config import TrainConfig
from pggan.config.validation import validated
from pggan.core.rng import StepRng
from pggan.distributed.process_group import ProcessGroup
from pggan.losses import build_loss
from pggan.losses.base import Reals
from pggan.performance.costs import CostCounter
from pggan.training.build import build_trainer
from tests.composed import composed

CPU = torch.device("cpu")
TINY = [
    "schedule.final_resolution=8",
    "schedule.stable_images=32",
    "schedule.fade_images=20",
    "schedule.batch=8",
    "model.fmap_max=8",
    "loss=logistic",
    "devices=cpu",
]
# Milliseconds of captured steps with the paper's networks on one H100 in bf16 (docs/performance.md).
H100 = {4: 2.19, 8: 4.6, 16: 11.7, 32: 20.9, 64: 22.1, 128: 19.6, 256: 17.9, 512: 18.6, 1024: 37.5}


@pytest.fixture
def plan_of(capsys):
    """The plan of a small run, or of the one that the arguments name."""

    def plan(*arguments, of=TINY):
        assert main(["plan", *of, "json=true", *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    return plan


class Everything:
    """Counts whatever module an operation is in: with modules, PyTorch can't follow gradients at leaves."""

    parents = frozenset({"Global"})
    __enter__ = __exit__ = lambda self, *_: None


@pytest.mark.parametrize("loss", ["wgan_gp", "relativistic"])
@pytest.mark.parametrize("number", [0, 1])
def test_operations_are_those_of_real_steps(loss, number):
    keys = [*TINY, f"loss={loss}", "model.fmap_max=32"]
    config = validated(TrainConfig, composed("train", keys))
    architecture, phase = config.model.architecture(8, 3, 0), config.schedule.build().phases[2]
    cost = CostCounter(architecture, build_loss(vars(config.loss)), 4).cost(phase)
    trainer = build_trainer(config, architecture, [phase], ProcessGroup.single_process(CPU))
    reals = Reals(torch.rand(8, 3, 8, 8), None, None)
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = Everything()
    players = trainer.state.g, trainer.state.d
    before = [[weight.clone() for weight in player.network.weights] for player in players]
    with counter:
        trainer.step(phase, reals, StepRng(0, 8 * number, CPU), 0.9)
    counts = counter.get_flop_counts()["Global"]
    found = sum(count for operation, count in counts.items() if operation is not torch.ops.aten.bmm)
    due = number % config.loss.reg_interval == 0
    flops = cost.flops
    expected = flops.generator_forward + flops.discriminator_forward + flops.backward + due * flops.penalty
    assert found / 8 == pytest.approx(expected, rel=0.02)
    moved = [
        sum(new.numel() for old, new in zip(weights, player.network.weights, strict=True) if not torch.equal(old, new))
        for weights, player in zip(before, players, strict=True)
    ]
    used = [cost.generator_weights, cost.discriminator_weights]
    assert used == pytest.approx(moved, abs=1)  # differences of scores do not move their bias


def test_a_calibrated_plan_measures_every_resolution_and_adds_up(plan_of):
    plan = plan_of("calibrate=true", "watts=50")
    rows, total = plan["phases"], plan["total"]
    assert [row["phase"] for row in rows] == ["4x4 stable", "8x8 fade", "8x8 stable"]
    assert [(row["images"], row["steps"], row["batch"]) for row in rows] == [(32, 4, 8), (20, 3, 8), (32, 4, 8)]
    assert {row["time_is"] for row in rows} == {"measured"}
    assert total["hours"] == pytest.approx(sum(row["steps"] * row["milliseconds_per_step"] / 3.6e6 for row in rows))
    assert total["energy_kwh"] == pytest.approx(0.05 * total["hours"])
    assert total["exaflops"] == pytest.approx(sum(row["steps"] * row["flops_per_step"]["mean"] / 1e18 for row in rows))
    assert total["images"] == 84
    assert all(row["gradient_bytes"] == 4 * sum(row["parameters"].values()) for row in rows)


def test_phases_that_a_run_does_not_reach_are_left_out(plan_of):
    (row,) = plan_of("schedule.total_images=16")["phases"]
    assert (row["phase"], row["images"], row["steps"]) == ("4x4 stable", 16, 2)


def test_a_card_elsewhere_is_predicted_as_one_was_measured(plan_of):
    plan = plan_of("device=H100", of=["experiment=celebahq_1024"])
    rows = {row["resolution"]: row for row in plan["phases"] if not row["fading"]}
    assert {side: row["milliseconds_per_step"] for side, row in rows.items()} == pytest.approx(H100, rel=0.2)
    assert plan["parameters"] == {"generator": 23_079_115, "discriminator": 23_087_249}  # Table 2, fused
    assert plan["hardware"] == {"device": "h100", "name": "NVIDIA H100"}
    assert plan["watts"] == {"device": 700, "source": "data sheet of the NVIDIA H100"}
    assert 2**30 < plan["total"]["memory_bytes"] < plan["total"]["device_memory_bytes"]


def test_runs_on_many_devices_are_those_that_were_asked_for(plan_of):
    scaling = plan_of("processes=[2]", "devices=cpu:4", "gradients=dgc", "gradients.ratio=0.2")["scaling"]
    assert sorted({run["devices"] for run in scaling["runs"]}) == [2, 4]
    assert scaling["ratio"] == 0.2
    assert {run["reduction"] for run in scaling["runs"]} == {"fp32", "bf16", "dgc"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["device=h10"], "h100"),
        (["device=t4", "precision=bf16"], "no units"),
        (["data.labels=true"], "Prepare the data"),
        (["tflops=200"], "calibrate=true"),
    ],
)
def test_mistakes_are_refused_with_a_remedy(arguments, message, capsys):
    assert main(["plan", *TINY, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_tables_fit_into_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["plan", "device=h200", "experiment=celebahq_1024"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if "…" in line]
    assert any(line.startswith("1024 stable") for line in lines)
    assert lines[-1] == "Next: pggan train experiment=celebahq_1024"


def test_the_images_of_a_prepared_folder_say_how_many_channels_they_have(plan_of, labelled_data):
    notes = plan_of(f"data.path={labelled_data}", "data.labels=true")["notes"]
    assert notes[0] == f"3 channels, 3 classes, as in {labelled_data}."
