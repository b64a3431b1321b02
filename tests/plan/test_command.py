"""`pggan plan` as a user meets it."""

import json
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO

import pytest

from pggan.cli.main import main
from pggan.performance.plan import calibration, command, run_time
from pggan.performance.plan.command import image_facts
from pggan.training.kernel_counter import Kernel, KernelKind
from pggan.training.step_cost import StepKernels
from pggan.training.timing import PhaseTimes
from tests.processes import in_processes, values_of


@pytest.fixture
def plan_of(tiny, capsys):
    """The plan of the small run with more arguments."""

    def plan(*arguments):
        assert main(["plan", *tiny, "json=true", *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    return plan


@pytest.mark.slow
def test_the_command_counts_the_steps_of_the_phases_that_are_reached(plan_of, costs):
    (row,) = plan_of("tflops=1", "schedule.total_images=16")["phases"]
    assert (row["phase"], row["images"], row["steps"], row["batch"]) == ("4x4 stable", 16, 2, 8)
    assert row["flops_per_step"]["mean"] == costs[0].flops
    assert row["peak_memory_bytes"] == costs[0].peak_bytes


@pytest.mark.usefixtures("counted")
def test_times_energy_and_sums_follow_from_the_stated_rate(plan_of):
    plan = plan_of("tflops=0.001", "watts=50")
    for row in plan["phases"]:
        assert row["milliseconds_per_step"] == pytest.approx(1000 * row["flops_per_step"]["mean"] / 1e9)
        assert row["gradient_bytes"] == 4 * sum(row["parameters"].values())
        assert row["time_is"] == "assumed"
    total = plan["total"]
    flops = sum(row["steps"] * row["flops_per_step"]["mean"] for row in plan["phases"])
    assert total["exaflops"] == pytest.approx(flops / 1e18)
    assert total["hours"] == pytest.approx(flops / 1e9 / 3600)
    assert total["energy_kwh"] == pytest.approx(0.05 * total["hours"])
    assert total["images"] == 84
    assert set(total["overhead_seconds"].values()) == {0}


@pytest.mark.usefixtures("counted")
def test_by_default_steps_take_as_long_as_the_start_of_a_run_expects(plan_of, monkeypatch):
    def expected(config, architecture, schedule, partition, *, device, images):
        assert (images, partition.world_size, device.type) == (0, 1, "cpu")
        return PhaseTimes(tuple(0.5 * phase.resolution for phase in schedule.phases), measured=frozenset({4}))

    monkeypatch.setattr(run_time, "measure_phase_times", expected)
    plan = plan_of()
    for row in plan["phases"]:
        assert row["milliseconds_per_step"] == pytest.approx(500 * row["resolution"] * row["batch"])
        assert row["time_is"] == ("measured" if row["resolution"] == 4 else "extrapolated")
    assert "up to 4x4, measured here" in plan["notes"][1]
    assert set(plan["total"]["overhead_seconds"].values()) == {0}


@pytest.mark.usefixtures("counted")
def test_the_official_networks_have_the_papers_parameters(capsys):
    assert main(["plan", "experiment=celebahq_1024_8gpus", "devices=cpu", "tflops=1", "json=true"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["parameters"] == {"generator": 23_079_115, "discriminator": 23_087_249}


@pytest.mark.usefixtures("counted")
def test_the_plan_scales_to_the_devices_asked_for(plan_of):
    plan = plan_of("tflops=0.001", "interconnect=10g", "processes=[1,2]", "watts=100")
    runs = plan["scaling"]["runs"]
    assert len(runs) == 2 * 2 * 3
    for run in runs:
        if run["devices"] == 1:
            assert run["hours"] == pytest.approx(plan["total"]["hours"])
        assert run["energy_kwh"] == pytest.approx(0.1 * run["device_hours"])
    shares = {
        run["reduction"]: run["communication"] for run in runs if (run["devices"], run["scaling"]) == (2, "strong")
    }
    assert shares["fp32"] > shares["bf16"] > shares["dgc"]
    assert set(plan["communication_dominates_from"]) == {"nvlink", "pcie", "400g", "100g", "25g", "10g", "1g"}


@pytest.mark.usefixtures("counted")
def test_the_ranks_of_the_run_are_in_the_scaling_table(plan_of):
    plan = plan_of("devices=cpu:3", "processes=[1,2]", "tflops=1")
    assert {run["devices"] for run in plan["scaling"]["runs"]} == {1, 2, 3}


@pytest.mark.usefixtures("counted")
def test_without_json_tables_are_printed(tiny, capsys):
    assert main(["plan", *tiny, "tflops=1"]) == 0
    shown = capsys.readouterr().out
    assert "default, on one cpu" in shown
    assert "\n3 channels, unless data.channels=" in shown
    assert "\nTime: from tflops=1" in shown  # every note begins a line


@pytest.mark.slow
def test_a_card_that_is_not_here_is_predicted(plan_of):
    plan = plan_of("device=H200", "schedule.total_images=16", "loss=wgan_gp")
    (row,), prediction = plan["phases"], plan["prediction"]
    (predicted,) = prediction["phases"]
    assert plan["hardware"] == {"device": "h200", "name": "NVIDIA H200"}
    assert (plan["watts"]["device"], row["time_is"], prediction["precision"]) == (700, "predicted", "bf16")
    assert row["milliseconds_per_step"] == predicted["captured_milliseconds"] < predicted["eager_milliseconds"]
    assert plan["total"]["hours"] == pytest.approx(prediction["hours"]["captured"])
    assert row["peak_memory_bytes"] == predicted["peak_memory_bytes"] > 0
    assert plan["parameters"].keys() == {"generator", "discriminator"}
    assert [note.split(":")[0] for note in plan["notes"][-2:]] == ["Scaling", "Prediction"]


@pytest.fixture
def counted_kernels(monkeypatch, costs):
    """Let steps launch two kernels each, which nobody has to count."""
    kernels = {Kernel(KernelKind.matmul, 10**6, 10**9): 1, Kernel(KernelKind.elementwise, 10**6): 1}
    found = [replace(cost, kernels=StepKernels(kernels, kernels, 1)) for cost in costs]
    monkeypatch.setattr("pggan.performance.plan.command.phase_costs", lambda *_, memory: found)


@pytest.mark.usefixtures("counted_kernels")
def test_a_card_without_cuda_graphs_waits_for_the_host(plan_of, tiny, capsys):
    plan = plan_of("device=4090", "compute.cuda_graphs=off")
    assert [row["milliseconds_per_step"] for row in plan["phases"]] == pytest.approx([2 * 0.013] * 3)
    assert plan["total"]["hours"] == pytest.approx(plan["prediction"]["hours"]["eager"])
    assert main(["plan", *tiny, "device=t4"]) == 0
    shown = capsys.readouterr().out
    assert "on one t4" in shown
    assert "Predicted: Tesla T4, fp16" in shown


def hurry(set_attribute):
    """Let calibrations take no more steps than they are told to, and start no run."""
    set_attribute(calibration, "MIN_SECONDS", 0.0)
    set_attribute(calibration, "ROUNDS", 2)
    set_attribute(run_time, "start_seconds", lambda *_: 2.5)


@pytest.fixture
def hasty(monkeypatch, counted):
    hurry(monkeypatch.setattr)


def updating_seconds(plan):
    return sum(row["steps"] * row["milliseconds_per_step"] / 1000 for row in plan["phases"])


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_calibrated_times_are_those_of_real_updates(plan_of, labelled_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = plan_of("calibrate=true", "loss=wgan_gp", "steps=1", f"data.path={labelled_data}", "data.labels=true")
    assert plan["notes"][0] == f"3 channels, 3 classes, as in {labelled_data}."
    assert {row["time_is"] for row in plan["phases"]} == {"measured"}
    for row in plan["phases"]:
        assert 0 <= row["fixed_milliseconds"] <= row["milliseconds_per_step"]
    total = plan["total"]
    overhead = total["overhead_seconds"]
    assert overhead["start"] == 2.5
    assert all(overhead[kind] > 0 for kind in ("grids", "ticks", "checkpoints"))
    assert (plan["devices"], total["device_hours"]) == (1, total["hours"])
    assert total["hours"] * 3600 == pytest.approx(updating_seconds(plan) + sum(overhead.values()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_phases_beyond_the_limit_are_extrapolated_and_named(plan_of):
    plan = plan_of("calibrate=true", "steps=1", "limit_seconds=0.001")
    rows = plan["phases"]
    assert [row["time_is"] for row in rows] == ["measured", "extrapolated", "extrapolated"]
    rate = rows[0]["flops_per_step"]["mean"] / rows[0]["milliseconds_per_step"]
    for row in rows[1:]:
        assert row["flops_per_step"]["mean"] / row["milliseconds_per_step"] == pytest.approx(rate)
    assert any("Extrapolated" in note and "8x8 fade, 8x8 stable" in note for note in plan["notes"])


def planned_on_this_rank(arguments, costs):
    """What `plan` prints on one of several ranks, and the optimizers of the trainers that it times."""
    hurry(setattr)
    command.phase_costs = lambda *_: costs
    optimizers, measure = [], calibration.Calibration.timings

    def timings(self, log):
        timers = self.run, self.single_device
        optimizers.extend(type(timer.trainer.state.g.optimizer).__name__ for timer in timers)
        return measure(self, log)

    calibration.Calibration.timings = timings
    with redirect_stdout(StringIO()) as printed:
        assert main(["plan", *arguments]) == 0
    return printed.getvalue(), optimizers


@pytest.mark.slow
def test_a_run_of_two_ranks_is_measured_as_two_ranks_make_it(tiny, costs):
    """With compression, whose messages fit together only if all ranks are at the same image count."""
    given = ["devices=cpu:2", "loss=wgan_gp", "calibrate=true", "steps=1", "watts=10", "gradients=dgc", "json=true"]
    (printed, optimizers), (nothing, _) = values_of(in_processes(2, planned_on_this_rank, [*tiny, *given], costs[:2]))
    assert nothing == ""
    assert optimizers == ["Descent", "Adam"]  # a single device updates its weights as without compression
    plan = json.loads(printed)
    total, rows = plan["total"], plan["phases"]
    assert plan["devices"] == 2
    assert 2 in [run["devices"] for run in plan["scaling"]["runs"]]
    assert any("by 2 ranks, which add up their gradients" in note for note in plan["notes"])
    assert {row["time_is"] for row in rows} == {"measured"}
    assert all(row["milliseconds_per_step"] != row["milliseconds_on_one_device"] for row in rows)
    assert total["hours"] * 3600 == pytest.approx(updating_seconds(plan) + sum(total["overhead_seconds"].values()))
    assert total["device_hours"] == pytest.approx(2 * total["hours"])
    assert total["energy_kwh"] == pytest.approx(0.01 * total["device_hours"])


def test_a_calibration_starts_the_ranks_of_the_run_and_restarts_none(tiny, monkeypatch):
    started = []
    monkeypatch.setattr(command, "launch", lambda *arguments, **_: started.append(arguments) or 7)
    assert main(["plan", *tiny, "devices=cpu:2", "calibrate=true", "distributed.max_restarts=3"]) == 7
    ((name, values, count, distributed),) = started
    assert (name, count, distributed.max_restarts) == ("plan", 2, 0)
    assert (values["devices"], values["calibrate"], values["processes"]) == ("cpu:2", True, [1, 2, 4, 8, 16])


def test_a_batch_that_the_ranks_cannot_share_is_refused_before_they_start(tiny, capsys, monkeypatch):
    monkeypatch.setattr(command, "launch", None)
    assert main(["plan", *tiny, "devices=cpu:3", "calibrate=true"]) == 2
    assert "3 ranks can't share evenly" in capsys.readouterr().err


@pytest.mark.slow
def test_channels_and_classes_come_from_the_keys_or_a_pyramids_index(labelled_data, make_config):
    def facts(*overrides):
        return image_facts(make_config(*overrides).data)[:3]

    assert facts() == (None, 3, 0)
    assert facts("data.channels=1") == (None, 1, 0)
    assert facts(f"data.path={labelled_data}", "data.labels=true") == (labelled_data, 3, 3)
    assert facts(f"data.path={labelled_data}") == (labelled_data, 3, 0)
    assert facts(f"data.path={labelled_data.parent}") == (None, 3, 0)  # photographs that are not prepared yet


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["interconnect=myrinet"], "Valid names"),
        (["interconnect=nvlnk"], "'nvlink'"),
        (["calibrate=true", "tflops=3"], "Leave out one"),
        (["device=h20"], "'h200'"),
        (["device=list"], "4090, a100, h100, h200, l4, t4"),
        (["device=h200", "calibrate=true"], "calibrate=true measures here"),
        (["device=h200", "tflops=3"], "tflops= states a rate"),
        (["device=h200", "compute.compile=true"], "Leave out one"),
        (["device=t4", "precision=bf16"], "fp16, fp32"),
        (["device=h200", "devices=2"], "not of devices=2"),
        (["steps=0"], "at least 1"),
        (["tflops=0"], "above 0"),
        (["watts=-1"], "above 0"),
        (["processes=[]"], "numbers of ranks"),
        (["processes=[0]"], "at least 1"),
        (["gradients=dgc", "gradients.ratio=0"], "at most 1"),
        (["ratio=0.1"], "ratio"),
        (["limit_seconds=0"], "above 0"),
        (["data.labels=true"], "Prepare the data first"),
        (["schedule.batch=6"], "groups"),
        (["sheed=1"], "'seed'"),
        (["experiment=celebahq_1024_8gpu"], "'celebahq_1024_8gpus'"),
        (["devices=cray"], "auto"),
    ],
)
def test_an_impossible_plan_is_refused_with_advice(arguments, hint, tiny, capsys):
    assert main(["plan", *tiny, *arguments]) == 2
    assert hint in capsys.readouterr().err
