"""`pggan plan` as a user meets it, what it counts, and many devices worked out by hand."""

import json
import re

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pggan.cli.main import main
from pggan.core.architecture import Precision
from pggan.core.rng import StepRng
from pggan.distributed.process_group import ProcessGroup
from pggan.losses import build_loss
from pggan.losses.base import Reals
from pggan.performance.costs import CARDS, NCCL_BYTES, Cluster, CostCounter, Link, Load, Reduction, Scaling
from pggan.training.build import build_trainer
from pggan.training.timing import StepTimes
from tests.composed import train_config

CPU = torch.device("cpu")
TINY = ["schedule.final_resolution=8", "schedule.stable_images=32", "schedule.fade_images=20", "schedule.batch=8"]
TINY += ["model.fmap_max=8", "loss=logistic", "devices=cpu"]
# Milliseconds of captured steps with the paper's networks on one H200 in bf16 (docs/performance.md).
H200 = {4: 1.65, 8: 3.83, 16: 10.5, 32: 20.0, 64: 20.4, 128: 18.0, 256: 15.5, 512: 13.9, 1024: 21.7}


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


@pytest.mark.parametrize("loss", [["loss=wgan_gp"], ["loss=relativistic", "loss.reg_interval=1"]])
def test_operations_are_those_of_real_steps(loss):
    keys = [*TINY, *loss, "model.fmap_max=32"]
    config = train_config(*keys)
    architecture, phase = config.model.architecture(8, 3, 0), config.schedule.build().phases[2]
    cost = CostCounter(architecture, build_loss(vars(config.loss)), Precision.fp32).cost(phase)
    trainer = build_trainer(config.trainer_settings(), architecture, [phase], ProcessGroup.single_process(CPU))
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = Everything()
    players = trainer.state.g, trainer.state.d
    before = [[weight.clone() for weight in player.network.weights] for player in players]
    with counter:
        trainer.step(phase, Reals(torch.rand(8, 3, 8, 8), None, None), StepRng(0, 0, CPU), 0.9)
    counts = counter.get_flop_counts()["Global"]
    found = sum(count for operation, count in counts.items() if operation is not torch.ops.aten.bmm)
    assert found == pytest.approx(cost["flops_per_step"], rel=0.02)
    moved = [
        sum(new.numel() for old, new in zip(weights, player.network.weights, strict=True) if not torch.equal(old, new))
        for weights, player in zip(before, players, strict=True)
    ]
    assert [*cost["parameters"].values()] == pytest.approx(moved, abs=1)  # differences of scores do not move their bias


def test_a_calibrated_plan_measures_every_resolution_and_adds_up(plan_of):
    plan = plan_of("calibrate=true")
    rows, total = plan["phases"], plan["total"]
    assert [row["phase"] for row in rows] == ["4x4 stable", "8x8 fade", "8x8 stable"]
    assert [(row["images"], row["steps"], row["batch"]) for row in rows] == [(32, 4, 8), (20, 3, 8), (32, 4, 8)]
    assert {row["time_is"] for row in rows} == {"measured"}
    assert total["hours"] == pytest.approx(sum(row["steps"] * row["milliseconds_per_step"] / 3.6e6 for row in rows))
    assert total["energy_kwh"] == pytest.approx(plan["watts"] / 1000 * total["hours"])
    assert total["exaflops"] == pytest.approx(sum(row["steps"] * row["flops_per_step"] / 1e18 for row in rows))
    assert total["images"] == 84
    (row,) = plan_of("schedule.total_images=16")["phases"]  # those that are not reached are left out
    assert (row["phase"], row["images"], row["steps"]) == ("4x4 stable", 16, 2)
    assert all(row["gradient_bytes"] == 4 * sum(row["parameters"].values()) for row in rows)


def test_a_card_elsewhere_is_predicted_by_what_one_has_shown(plan_of):
    plan = plan_of("device=H200", of=["experiment=celebahq_1024"])
    rows = {row["resolution"]: row["milliseconds_per_step"] for row in plan["phases"] if not row["fading"]}
    assert rows == pytest.approx(H200, rel=0.05)
    assert plan["total"]["hours"] == pytest.approx(7.06, rel=0.02)  # without the fades' own time
    assert "schedule=official_8gpus: 20 GiB" in plan["notes"][2]  # the card has room for its batches
    assert plan["parameters"] == {"generator": 23_079_115, "discriminator": 23_087_249}  # Table 2, fused
    assert plan["hardware"] == {"device": "h200", "name": "NVIDIA H200"}
    assert plan["watts"] == 700
    assert 2**30 < plan["total"]["memory_bytes"] < plan["total"]["device_memory_bytes"]
    ranks = [], ["distributed.nnodes=2", "distributed.rdzv_endpoint=a:1"]
    one, two = (plan_of("device=h200", *words)["total"]["memory_bytes"] for words in ranks)
    assert two - one == NCCL_BYTES


def times_on(card, schedule):
    """The times of steps of the paper's networks on a card."""
    config = train_config("experiment=celebahq_1024", f"schedule={schedule}", "precision=bf16")
    speed, architecture = CARDS[card].speed(Precision.bf16), config.model.architecture(1024, 3, 0)
    times = StepTimes(config.trainer_settings(), architecture, torch.device("cuda"), speed)
    return times, config.schedule.build()


def test_larger_batches_are_faster_and_said_where_there_is_room():
    times, one = times_on("h100", "official_1gpu")
    assert times.of_phases(one, seconds=0.0).seconds(one, 0, one.total) <= 8.2 * 3600
    times, schedule = times_on("h100", "official_8gpus")
    assert times.of_phases(schedule, seconds=0.0).seconds(schedule, 0, schedule.total) <= 7.4 * 3600
    assert not times.larger_batches(schedule.phases[-1], 80 * 2**30)
    assert "schedule=official_8gpus" in times.larger_batches(one.phases[-1], 40 * 2**30)
    assert not times.larger_batches(one.phases[-1], 22 * 2**30)
    assert not times.larger_batches(one.phases[-1], None)


def test_runs_on_many_devices_are_those_that_were_asked_for_and_idle_ones_show(plan_of):
    scaling = plan_of("processes=[2,16]", "devices=cpu:4", "gradients=dgc", "gradients.ratio=0.2")["scaling"]
    assert sorted({run["devices"] for run in scaling["runs"]}) == [2, 4, 16]
    assert scaling["ratio"] == 0.2
    assert {run["reduction"] for run in scaling["runs"]} == {"fp32", "bf16", "dgc"}
    strong = {run["devices"]: run for run in scaling["runs"] if run["scaling"] == "strong"}
    assert strong[16]["hours"] == pytest.approx(strong[2]["hours"])  # batches of 8 are two groups: 14 are idle
    assert strong[16]["efficiency"] == pytest.approx(strong[2]["efficiency"] / 8)


@pytest.mark.parametrize("words", ["", "details=true", "devices=cpu:2", "devices=2 device=h100"])
def test_the_answer_is_the_last_line_and_scaling_is_shown_on_request_or_for_several_devices(words, capsys):
    assert main(["plan", *TINY, *words.split()]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    steps = rf"about [\d.]+ \w+ of steps on {'2 x' if 'devices' in words else 'one'}"
    assert re.fullmatch(rf"8x8 after 84 images: {steps} .+ \((predicted|±\d+ %)\), [\d.]+ [MG]B", last)
    assert any(line.startswith("Scaling on nvlink") for line in lines) is bool(words)


@pytest.mark.parametrize(("side", "hours"), [(16, 0.5), (64, 2)])  # at 64x64, D sees pretrained features
def test_hours_and_a_card_tell_what_the_card_would_train(side, hours, plan_of, make_pyramid, tmp_path):
    make_pyramid(tmp_path / "photos", images=200, resolution=side)
    plan = plan_of(f"data.path={tmp_path / 'photos'}", f"hours={hours}", "device=4090", of=[])
    assert {row["time_is"] for row in plan["phases"]} == {"predicted"}
    assert plan["phases"][-1]["resolution"] == side
    assert plan["total"]["hours"] == pytest.approx(hours, rel=0.15)
    assert re.search(r" \d+ minutes of steps on one RTX 4090 \(predicted\)", plan["answer"])


def test_pretrained_features_are_counted_without_their_weights(plan_of):
    keys = ("model.features=efficientnet-lite0", "model.features_from=8")
    assert plan_of(*keys)["phases"][-1]["flops"] > plan_of()["phases"][-1]["flops"]


# ---- many devices ------------------------------------------------------------------------------------------

MILLION = 10**6  # numbers
# 100 steps of 16 images: 1 s each, of which 0.2 s are there with any batch.  A gradient takes 4 MB.
LOAD = Load(steps=100, batch=16, group=4, seconds=1.0, fixed_seconds=0.2, numels=(600_000, 400_000))
FREE = Cluster(Link(bytes_per_second=1e30, latency_seconds=0.0, source="a wish"), Reduction.fp32, 1.0, Scaling.strong)
SLOW = FREE._replace(link=Link(bytes_per_second=10e6, latency_seconds=0.0, source="a slow one"))


def test_strong_scaling_shares_every_update_and_weak_scaling_takes_fewer():
    strong, weak = (FREE._replace(scaling=kind).run([LOAD], 4) for kind in (Scaling.strong, Scaling.weak))
    assert (strong["hours"], weak["hours"]) == pytest.approx((100 * 0.4 / 3600, 100 / 4 * 1.0 / 3600))
    assert strong["device_hours"] == pytest.approx(4 * strong["hours"])
    assert (strong["efficiency"], weak["efficiency"]) == pytest.approx((100 / (4 * 40), 1))
    # 4 MB between two devices: each sends half, twice: 0.4 s at 10 MB/s, beside 0.6 s of compute.
    assert SLOW.run([LOAD], 2)["communication"] == pytest.approx(0.4)


def test_a_ring_sends_shares_of_sums_or_all_messages_of_compressed_gradients():
    fp32 = FREE._replace(link=Link(bytes_per_second=1e9, latency_seconds=1e-3, source="a worked example"))
    bf16, dgc = (fp32._replace(reduction=kind, ratio=0.5) for kind in (Reduction.bf16, Reduction.dgc))
    # Four devices, 400 MB: 2 * 3 messages of 100 MB each, 0.1 s, and a millisecond for every message.
    assert fp32.reduction_seconds(4, 100 * MILLION) == pytest.approx(6 * 0.1 + 6 * 1e-3)
    assert bf16.reduction_seconds(4, 100 * MILLION) == pytest.approx(6 * 0.05 + 6 * 1e-3)
    # 6 MB of compressed gradient each, at 3 bytes a number: 3 messages of 6 ms, and a millisecond for each.
    assert dgc.reduction_seconds(4, 4 * MILLION) == pytest.approx(3 * (6e-3 + 1e-3))
