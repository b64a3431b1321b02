"""`pggan plan` as a user meets it."""

import json
from pathlib import Path

import pytest
import torch

from pggan.cli.compose import compose, main
from pggan.config import PlanConfig, TrainConfig
from pggan.core.validation import validated
from pggan.distributed.process_group import ProcessGroup, RankInfo
from pggan.losses import build_loss
from pggan.networks.numerics import ComputeOptions
from pggan.plan import calibration as plan_calibration
from pggan.plan import command as plan_command
from pggan.plan.command import image_facts
from pggan.plan.overhead import checkpoint_count
from pggan.plan.phases import phase_costs
from pggan.plan.power import watts_of
from pggan.plan.start_time import shortened
from pggan.plan.tables import Unit, duration
from pggan.training.fake_step import FakeStep, halfway

TINY = [
    "schedule.final_resolution=8",
    "schedule.stable_images=32",
    "schedule.fade_images=20",
    "schedule.batch=8",
    "model.fmap_max=8",
    "devices=cpu",
]


def plan_of(capsys, *arguments):
    assert main(["plan", *TINY, "json=true", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def config(*overrides):
    return validated(PlanConfig, compose("plan", [*TINY, *overrides]))


def test_times_energy_and_sums_follow_from_the_stated_rate(capsys):
    plan = plan_of(capsys, "tflops=0.001", "watts=50", "loss=logistic")
    assert [(row["phase"], row["images"], row["batch"]) for row in plan["phases"]] == [
        ("4x4 stable", 32, 8),
        ("8x8 fade", 20, 8),
        ("8x8 stable", 32, 8),
    ]
    assert [row["updates"] for row in plan["phases"]] == [4, 3, 4]  # 32 are shown, then 56, then 88 of 84
    for row in plan["phases"]:
        each = row["flops_per_update"]
        parts = [each[kind] for kind in ("generator_forward", "discriminator_forward", "backward")]
        assert each["mean"] == pytest.approx(sum(parts) + each["penalty"] / 8)  # logistic: in one update of 8
        assert row["milliseconds_per_update"] == pytest.approx(1000 * each["mean"] / 1e9)
        assert row["gradient_bytes"] == 4 * sum(row["parameters"].values())
        assert row["time_is"] == "assumed"
    total = plan["total"]
    flops = sum(row["updates"] * row["flops_per_update"]["mean"] for row in plan["phases"])
    assert total["exaflops"] == pytest.approx(flops / 1e18)
    assert total["hours"] == pytest.approx(flops / 1e9 / 3600)
    assert total["energy_kwh"] == pytest.approx(0.05 * total["hours"])
    assert total["images"] == 84


def test_the_official_networks_have_the_papers_parameters(capsys):
    assert main(["plan", "experiment=official_8gpus", "schedule.total_images=1000", "tflops=1", "json=true"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["parameters"] == {"generator": 23_079_115, "discriminator": 23_087_249}
    assert [(row["images"], row["updates"]) for row in plan["phases"]] == [(1000, 2)]  # the run ends in the first phase
    assert plan["phases"][0]["parameters"] == {"generator": 6_556_163, "discriminator": 6_561_793}


def test_memory_is_that_of_the_imagined_step(capsys):
    plan = plan_of(capsys, "tflops=1")
    settings = config()
    architecture, loss = settings.model.architecture(8, 3, 0), build_loss(settings.loss)
    last = settings.schedule.build().phases[1]
    imagined = FakeStep(architecture, settings.optimizer, torch.device("cpu"), half=False)
    assert plan["phases"][1]["peak_memory_bytes"] == imagined.peak_bytes(halfway(last), loss, ComputeOptions())


@pytest.fixture
def hasty(monkeypatch):
    """A calibration that takes no more updates than it is told to, and starts no run."""
    monkeypatch.setattr(plan_calibration, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(plan_command, "seconds_of_starting", lambda *_: 2.5)


@pytest.mark.usefixtures("hasty")
def test_calibrated_times_are_those_of_real_updates(capsys, labelled_data):
    plan = plan_of(capsys, "calibrate=true", "steps=2", f"data.path={labelled_data}", "data.labels=true")
    assert plan["notes"][0] == f"3 channels, 3 classes, as in {labelled_data}."
    assert {row["time_is"] for row in plan["phases"]} == {"measured"}
    for row in plan["phases"]:
        assert 0 <= row["fixed_milliseconds"] <= row["milliseconds_per_update"]
    total = plan["total"]
    rest = total["rest_seconds"]
    assert rest["start"] == 2.5
    assert all(rest[kind] > 0 for kind in ("grids", "ticks", "checkpoints"))
    assert (plan["devices"], total["device_hours"]) == (1, total["hours"])
    updating = sum(row["updates"] * row["milliseconds_per_update"] / 1000 for row in plan["phases"])
    assert total["hours"] * 3600 == pytest.approx(updating + sum(rest.values()))


@pytest.mark.slow
def test_a_run_of_two_processes_is_measured_as_two_processes_make_it(capfd):
    """With compression, whose messages fit together only if all processes are at the same image count."""
    given = ["limit_seconds=4", "steps=1", "watts=10", "gradients=dgc"]  # the limit keeps the rounds few
    plan = plan_of(capfd, "devices=cpu:2", "calibrate=true", *given)
    assert plan["devices"] == 2
    assert 2 in [run["devices"] for run in plan["scaling"]["runs"]]
    assert any("by 2 processes, which add up their gradients" in note for note in plan["notes"])
    total, rows = plan["total"], plan["phases"]
    assert rows[0]["time_is"] == "measured"
    assert all(row["milliseconds_per_update"] != row["milliseconds_on_one_device"] for row in rows)
    assert total["rest_seconds"]["start"] > 1  # torch alone takes longer to import
    rest = sum(total["rest_seconds"].values())
    assert total["hours"] * 3600 == pytest.approx(
        rest + sum(row["updates"] * row["milliseconds_per_update"] / 1000 for row in rows)
    )
    assert total["device_hours"] == pytest.approx(2 * total["hours"])
    assert total["energy_kwh"] == pytest.approx(0.01 * total["device_hours"])


def test_a_batch_that_two_processes_cannot_share_is_refused_before_they_start(capsys):
    assert main(["plan", *TINY, "devices=cpu:3", "calibrate=true"]) == 2
    assert "3 processes can't share evenly" in capsys.readouterr().err


def test_a_run_that_does_not_start_is_told_as_it_says(capsys, tmp_path, make_pyramid):
    make_pyramid(tmp_path / "faces", images=3)
    assert main(["plan", *TINY, "calibrate=true", f"data.path={tmp_path / 'faces'}"]) == 2
    told = capsys.readouterr().err
    assert "A run of one update, for calibrate=true, did not work: " in told
    assert "has 3 images; 4 are needed" in told


@pytest.mark.parametrize(("local", "devices"), [(1, "cpu"), (2, "cpu:2")])
def test_the_start_is_that_of_the_run_with_one_small_update(local, devices):
    settings = config(
        "elastic=true", "schedule.batch_factor=2", "distributed.nnodes=2", "distributed.rdzv_endpoint=node0:29500"
    )
    group = ProcessGroup(RankInfo(0, 2 * local, 0, local), torch.device("cpu"), None, None)
    short = validated(TrainConfig, shortened(settings, Path("images"), Path("run"), group))
    schedule = short.schedule.build()
    assert (schedule.updates(), schedule.phases[0].batch) == ((1, 0, 0), 4 * local)  # groups of 4
    assert (short.devices, short.workers.nodes, short.run_dir) == (devices, 1, "run")
    assert (short.elastic, short.loss, short.monitor) == (True, settings.loss, settings.monitor)


@pytest.mark.usefixtures("hasty")
def test_phases_beyond_the_limit_are_extrapolated_and_named_and_nothing_is_left_behind(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = plan_of(capsys, "calibrate=true", "steps=1", "limit_seconds=0.001")
    rows = plan["phases"]
    assert [row["time_is"] for row in rows] == ["measured", "extrapolated", "extrapolated"]
    rate = rows[0]["flops_per_update"]["mean"] / rows[0]["milliseconds_per_update"]
    for row in rows[1:]:
        assert row["flops_per_update"]["mean"] / row["milliseconds_per_update"] == pytest.approx(rate)
    assert any("Extrapolated" in note and "8x8 fade, 8x8 stable" in note for note in plan["notes"])
    assert list(tmp_path.iterdir()) == []


def test_the_plan_scales_to_the_devices_asked_for(capsys):
    plan = plan_of(capsys, "tflops=0.001", "network=10g", "processes=[1,2]", "watts=100")
    runs = plan["scaling"]["runs"]
    assert len(runs) == 2 * 2 * 3
    for run in runs:
        if run["devices"] == 1:
            assert run["hours"] == pytest.approx(plan["total"]["hours"])
        assert run["energy_kwh"] == pytest.approx(0.1 * run["device_hours"])
    shares = {
        run["exchange"]: run["communication"] for run in runs if (run["devices"], run["scaling"]) == (2, "strong")
    }
    assert shares["fp32"] > shares["bf16"] > shares["dgc"]
    assert set(plan["communication_dominates_from"]) == {"nvlink", "pcie", "400g", "100g", "25g", "10g", "1g"}


@pytest.mark.parametrize("wide", [False, True])
def test_the_tables_fit_into_80_columns(wide, capsys):
    official = ["experiment=official_8gpus", "schedule.total_images=1000", "devices=cpu"]
    assert main(["plan", *(official if wide else TINY), "tflops=0.001"]) == 0
    shown = capsys.readouterr().out
    for part in ("4 stable", "G for-", "exchange", "1g, whole run", "Energy: 100 W"):
        assert part in shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_numbers_of_a_column_share_a_unit_that_fits_the_largest():
    unit = Unit([2_500_000, 12, 999_000])
    assert (unit.prefix, [unit.of(value) for value in (2_500_000, 123_456, 12)]) == ("M", ["2.5", "0.123", "0"])
    assert (Unit([3 * 2**30], base=1024).prefix, Unit([0.5]).prefix, Unit([6e18]).of(6e18)) == ("G", "", "6")


def test_channels_and_classes_come_from_the_keys_or_a_pyramids_index(labelled_data):
    assert image_facts(config().data)[:2] == (3, 0)
    assert image_facts(config("data.channels=1").data)[:2] == (1, 0)
    assert image_facts(config(f"data.path={labelled_data}", "data.labels=true").data)[:2] == (3, 3)
    assert image_facts(config(f"data.path={labelled_data}").data)[:2] == (3, 0)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["network=myrinet"], "Valid names"),
        (["network=nvlnk"], "'nvlink'"),
        (["calibrate=true", "tflops=3"], "Leave out one"),
        (["steps=0"], "at least 1"),
        (["tflops=0"], "above 0"),
        (["watts=-1"], "above 0"),
        (["processes=[]"], "at least 1"),
        (["processes=[0]"], "at least 1"),
        (["ratio=0"], "at most 1"),
        (["limit_seconds=0"], "above 0"),
        (["data.labels=true"], "Prepare the data first"),
        (["schedule.batch=6"], "groups"),
        (["sheed=1"], "'seed'"),
        (["experiment=officail_8gpus"], "'official_8gpus'"),
        (["devices=cray"], "auto"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_advice(arguments, hint, capsys):
    assert main(["plan", *TINY, *arguments]) == 2
    assert hint in capsys.readouterr().err


def test_a_device_draws_what_its_data_sheet_says():
    assert watts_of("cuda", "NVIDIA H200")[0] == 700
    assert watts_of("cuda", "NVIDIA H100 80GB HBM3")[0] == 700
    assert watts_of("cuda", "NVIDIA H100 PCIe")[0] == 350
    assert watts_of("cuda", "Tesla V100-SXM2-16GB")[0] == 300
    assert watts_of("cuda", "NVIDIA L40S")[0] == 350
    assert "guess" in watts_of("cuda", "Nameless")[1]
    assert "guess" in watts_of("cpu", "x86_64")[1]


def test_checkpoints_are_counted_by_images_or_by_minutes_whichever_are_more():
    settings = config("checkpoint.every_images=20", "checkpoint.every_minutes=2", "checkpoint.milestones=[8]")
    schedule = settings.schedule.build()  # 84 images
    assert checkpoint_count(settings.checkpoint, schedule, seconds=60) == 8 + 1 + 1
    assert checkpoint_count(settings.checkpoint, schedule, seconds=3600) == 40 + 1 + 1  # every 90 seconds
    settings = config("checkpoint.every_images=200", "checkpoint.every_minutes=null", "checkpoint.milestones=phases")
    assert checkpoint_count(settings.checkpoint, schedule, seconds=0) == 2 + 1  # the last of three phases is the end


def test_a_phase_that_is_not_reached_costs_nothing():
    settings = config("schedule.total_images=40")
    costs = phase_costs(
        settings.model.architecture(8, 3, 0),
        settings.schedule.build(),
        build_loss(settings.loss),
        optimizer=settings.optimizer,
        compute=ComputeOptions(),
        device=torch.device("cpu"),
        log=lambda text: None,
    )
    assert [(cost.phase.name, cost.images, cost.updates) for cost in costs] == [
        ("4x4 stable", 32, 4),
        ("8x8 fade", 8, 1),
    ]


def test_durations_are_read_in_fitting_units():
    assert [duration(s) for s in (3.14159, 119, 120, 7200, 172800)] == ["3.14 s", "119 s", "2 min", "2 h", "2 d"]


def test_the_processes_that_are_asked_for_are_in_the_scaling_table(capsys):
    arguments = ["schedule.final_resolution=8", "model.fmap_max=4", "tflops=1", "json=true"]
    assert main(["plan", "devices=cpu:3", "processes=[1,2]", *arguments]) == 0
    runs = json.loads(capsys.readouterr().out)["scaling"]["runs"]
    assert {run["devices"] for run in runs} == {1, 2, 3}
