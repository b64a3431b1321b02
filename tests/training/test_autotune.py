"""Which shapes are measured, what is chosen for them, and that all ranks and all resumed runs take the same."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pggan.checkpoints.read import newest_checkpoint
from pggan.config import BenchScalingConfig, PlanConfig
from pggan.core.validation import validated
from pggan.distributed.process_group import ProcessGroup
from pggan.networks.method_table import ShapeRecorder
from pggan.optim.batch_partition import BatchPartition
from pggan.performance.bench.scaling import Runner
from pggan.performance.plan.calibration import Calibration, write_noise
from pggan.run import train
from pggan.training import autotune as module
from pggan.training.autotune import autotune
from pggan.training.autotune_timing import sample_of
from pggan.training.build import build_trainer
from pggan.training.timing import single_device_timer
from tests.composed import composed
from tests.plan.conftest import TINY

CPU = torch.device("cpu")
ALONE = ProcessGroup.single_process(CPU)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where measurements are kept; the tests' networks are wide enough."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "NARROWEST", 8)
    return tmp_path / "cache"


@pytest.fixture
def fastest(monkeypatch):
    """Lets one method be the fastest; returns the shapes that are measured from then on."""

    def install(name):
        found = []

        def measure(sample):
            found.append(sample)
            return {method.name: (0.0, 0.1 if method.name == name else 1.0) for method in sample.methods()}

        monkeypatch.setattr(module, "measure", measure)
        return found

    return install


@pytest.fixture
def measured(fastest):
    """The shapes that are measured, with im2col as the fastest."""
    return fastest("im2col")


@pytest.fixture
def case(tiny_config):
    """A configuration, its trainer, its phases and its partition."""

    def build(*overrides):
        config = tiny_config("schedule.final_resolution=8", "schedule.batch={4: 16, 8: 8}", *overrides)
        phases = config.schedule.build().phases
        architecture = config.model.architecture(8, 3, 0)
        trainer = build_trainer(config, architecture, phases, ALONE, check_memory=False)
        return config, trainer, phases, BatchPartition.of(config, (), 1)

    return build


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [("compute.micro_batch_size=4",), ("loss=logistic", "loss.reg_interval=2", "elastic=true")]
)
def test_the_shapes_are_those_of_real_steps(case, measured, overrides):
    config, trainer, phases, partition = case(*overrides)
    chosen = autotune(config, trainer, phases, partition, ALONE).method_table.names()
    timer = single_device_timer(config, trainer.state.g_ema.architecture, phases, CPU, ShapeRecorder())
    timer.trainer.micro_batch_sizes = trainer.micro_batch_sizes
    for phase in phases:
        timer.seconds(phase, 1, 0.0)
    shapes = timer.trainer.options.method_table.shapes
    assert chosen.keys() == {str(shape) for shape in shapes}
    assert {*measured} == {sample_of(shape) for shape in shapes}


@pytest.mark.slow
def test_whatever_times_updates_takes_the_methods_of_a_run(case, measured, tmp_path):
    """A calibration, a timer of `hours=`, and a step of `bench scaling`."""
    config, trainer, phases, _ = case()
    of_run = autotune(*case(), ALONE).method_table.names()
    assert set(of_run.values()) == {"im2col"}
    timer = single_device_timer(config, trainer.state.g_ema.architecture, phases, CPU)
    assert timer.trainer.options.method_table.names() == of_run
    write_noise(tmp_path / "noise", trainer.state.g_ema.architecture, 16)
    plan = validated(PlanConfig, composed("plan", [*TINY, "model.fmap_max=8", "schedule.batch={4: 16, 8: 8}"]))
    costs = [SimpleNamespace(phase=phase) for phase in phases]
    calibration = Calibration(plan, plan.model.architecture(8, 3, 0), costs, ALONE, tmp_path / "noise")
    names = calibration.run.trainer.options.method_table.names()
    assert of_run.items() <= names.items()
    assert any(name.startswith("4x") for name in names)  # a group of minibatch stddev alone is timed, too
    scaling = validated(BenchScalingConfig, composed("bench scaling", ["stages=[8]", "batch=8", "model.fmap_max=8"]))
    assert set(Runner(scaling, ALONE, 8, 8).trainer.options.method_table.names().values()) == {"im2col"}


def test_what_was_measured_once_is_not_measured_again(case, measured, folder):
    first = autotune(*case(), ALONE)
    assert set(first.method_table.names().values()) == {"im2col"}
    count = len(measured)
    assert f"{count} measured in" in first.summary
    assert f"kept in {folder}" in first.summary
    again = autotune(*case(), ALONE)
    assert len(measured) == count == len(set(measured))
    assert again.method_table.names() == first.method_table.names()
    assert "measured in" not in again.summary


def test_a_batch_of_twice_the_size_takes_the_method_for_which_the_kernel_is_prepared(case, monkeypatch):
    """Reals and fakes at once: im2col, the fastest for 8 images, stays for 16 and 32, where winograd2 is faster."""

    def measure(sample):
        usual = dict.fromkeys((method.name for method in sample.methods()), (0.0, 1.0))
        return usual | {"im2col": (0.0, 0.1), "winograd2": (0.0, 0.2 if sample.images == 8 else 0.095)}

    monkeypatch.setattr(module, "measure", measure)
    monkeypatch.setattr(module, "sample_of", lambda shape: shape)
    names = autotune(*case(), ALONE).method_table.names()
    assert [names[f"{images}x8x4x4-same-8"] for images in (8, 16, 32)] == ["im2col"] * 3


@pytest.mark.slow
def test_what_a_checkpoint_notes_is_taken_whatever_was_measured(case, measured):
    first = autotune(*case(), ALONE).method_table.names()
    known, *others = first
    recorded = {known: "winograd", others[0]: "unknown", others[1]: [7], "16x512x4x4-up-512": "im2col"}
    assert autotune(*case(), ALONE, recorded=recorded).method_table.names() == {**first, known: "winograd"}
    for nonsense in ([], "im2col", 3):
        assert autotune(*case(), ALONE, recorded=nonsense).method_table.names() == first


def test_shapes_of_half_precision_are_measured_as_such(case, measured):
    choice = autotune(*case("precision=bf16"), ALONE)
    assert {shape.dtype for shape in measured} == {torch.bfloat16}
    assert set(choice.method_table.names().values()) == {"im2col"}


def test_where_time_is_short_the_rule_stays_so_that_the_same_command_makes_the_same_run(case, measured, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module, "MAX_SECONDS", 0.0)
        hurried = autotune(*case(), ALONE)
    assert not measured
    assert set(hurried.method_table.names().values()) == {"native"}
    assert "more by the heuristic, as 0 s are over" in hurried.summary
    again = autotune(*case(), ALONE)
    assert (again.method_table.names(), measured) == (hurried.method_table.names(), [])


@pytest.mark.parametrize(
    "changed",
    [
        {"compute.convolution": "heuristic"},
        {"compute.convolution": "direct"},
        {"model.fmap_max": 4},
    ],
)
def test_nothing_is_measured_where_it_would_not_be_used(case, measured, changed):
    choice = autotune(*case(*(f"{key}={value}" for key, value in changed.items())), ALONE)
    assert (choice.method_table.names(), choice.summary, measured) == ({}, "", [])


def test_rank_0_chooses_for_all(case, measured):
    """The other ranks measure nothing, and take what they are sent."""
    config, trainer, phases, _ = case()
    partition = BatchPartition.of(config, (), 2, 1)
    sent = []

    def group(is_main):
        return SimpleNamespace(
            is_main=is_main, device=CPU, broadcast_object=lambda names: sent.append(names) or sent[0]
        )

    chosen = autotune(config, trainer, phases, replace(partition, rank=0), group(True)).method_table.names()
    count = len(measured)
    other = autotune(config, trainer, phases, partition, group(False)).method_table.names()
    assert other == chosen == sent[0]
    assert (len(measured), sent[1]) == (count, {})
    assert {name.split("x")[0] for name in chosen} == {"8", "4", "16"}  # a half of each batch; reals with fakes


@pytest.mark.slow
def test_a_resumed_run_takes_the_methods_of_its_checkpoint_to_the_bit(tiny_config, tmp_path, fastest, monkeypatch):
    def trained(name, images):
        config = tiny_config(
            f"run_dir={tmp_path / name}", "schedule.final_resolution=8", f"schedule.total_images={images}"
        )
        assert train.run(config) == 0
        checkpoint, _ = newest_checkpoint(tmp_path / name)
        return checkpoint.header["state_sha256"], set(checkpoint.header["convolutions"].values())

    fastest("im2col")
    whole = trained("whole", 96)
    assert "unlike the heuristic" in (tmp_path / "whole" / "train.log").read_text()
    trained("stopped", 48)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    fastest("winograd")
    assert trained("stopped", 96) == whole
    assert whole[1] == {"im2col"}
    state, methods = trained("new", 96)
    assert methods == {"winograd"}
    assert state != whole[0]
