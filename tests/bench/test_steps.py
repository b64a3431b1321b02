"""Variants of the step take turns, and each step is waited for."""

import dataclasses
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pggan.config import BenchConfig, Precision, default_trainer
from pggan.core.rng import StepRng
from pggan.core.validation import validated
from pggan.networks.layers import ComputeOptions
from pggan.performance.bench.steps import QUEUED_UPDATES, Steps, estimated_hours, phase_of
from pggan.performance.bench.variants import TrainerVariant, Variant
from pggan.training.device_rates import Rates
from pggan.training.step_cost import StepCost, StepCostEstimator
from pggan.training.trainer_factory import TrainerFactory
from tests.composed import composed
from tests.definitions import ADAM, WGAN_GP

CPU = torch.device("cpu")
FACTORY = TrainerFactory(WGAN_GP, ADAM)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def config():
    return validated(BenchConfig, composed("bench", ["model.fmap_max=8", "stages=8", "batch=4", "device=cpu"]))


@pytest.fixture(scope="module")
def make_steps(config):
    """`Steps` of the given variants alone."""
    steps = Steps(config, CPU, 3, print)

    def with_variants(*variants, loss=WGAN_GP):
        steps.loss, steps.variants = loss, {str(number): one for number, one in enumerate(variants)}
        return steps

    return with_variants


@pytest.fixture
def captured_variant(config, monkeypatch):
    """A variant that captures its steps, and lists its notices."""
    monkeypatch.setattr("pggan.training.trainer_factory.captures_graphs", lambda *_: True)

    def make(notices):
        trainer = replace(default_trainer(), model=config.model, loss=config.loss, precision=Precision.fp32)
        return TrainerVariant(trainer, config.model.architecture(8, 3, 0), CPU, notices.append)

    return make


def test_captured_steps_are_timed_from_the_second_replay_on(make_steps, captured_variant, monkeypatch):
    done = []

    def capture(function, _):
        done.append("captured")
        return lambda: done.append("replayed"), function()

    monkeypatch.setattr("pggan.training.cuda_graphs.capture", capture)
    seconds = make_steps(captured_variant([])).measure(phase_of(8, 4), steps=2, warmup=0)
    assert done == ["captured", "replayed", "replayed", "replayed"]  # the first replay is not timed
    assert list(seconds) == ["0"]


def test_a_failed_capture_is_reported_kept_for_its_stage_and_tried_again_at_the_next(
    make_steps, captured_variant, monkeypatch
):
    def refuse(function, _):
        raise RuntimeError("no such thing\nsecond line")

    monkeypatch.setattr("pggan.training.cuda_graphs.capture", refuse)
    notices = []
    steps = make_steps(captured_variant(notices))
    for _ in range(2):
        seconds = steps.measure(phase_of(8, 4), steps=1, warmup=0)
        row = steps.row(phase_of(8, 4), seconds, {"0": StepCost(1, 1, 1, 1)}, {"0": Rates(1e9, 1e9)})
        assert row["notices"] == row["variants"]["0"]["notices"] == notices[-1:]
    assert len(notices) == 2
    assert all(notice.endswith("without CUDA graphs: no such thing") for notice in notices)


class Recorder(Variant):
    """Takes no step, but notes when it should, and how float32 numbers are multiplied then."""

    layout = torch.contiguous_format

    def __init__(self, precision, told):
        super().__init__(precision, FACTORY, CPU)
        self.told = told

    def begin(self, phase):
        self.told.append("begin")

    def step(self, phase, reals, rng):
        self.told.append((self.precision, rng.images))


def test_variants_take_turns_and_every_round_has_one_update_with_penalties(make_steps, monkeypatch):
    told = []
    monkeypatch.setattr("pggan.performance.bench.steps.set_float32", lambda device, precision: told.append(precision))
    full, short = Precision.fp32, Precision.tf32
    lazy = dataclasses.replace(WGAN_GP, reg_interval=2)
    steps = make_steps(Recorder(full, told), Recorder(short, told), loss=lazy)
    steps.measure(phase_of(8, 4), steps=1, warmup=1)
    turns = [[full, (full, n), (full, n + 4), short, (short, n), (short, n + 4)] for n in (0, 8)]
    assert told == ["begin", "begin", *turns[0], *turns[1]]


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_a_round_is_timed_until_the_device_has_finished_it(make_steps, monkeypatch, kind):
    """The clock stands still except while the device is waited for."""
    now = [0.0]
    device = torch.device(kind)

    def wait(*_):
        now[0] += 3.0

    monkeypatch.setattr(torch.cuda if kind == "cuda" else torch.mps, "synchronize", wait)
    monkeypatch.setattr("pggan.performance.bench.steps.time.perf_counter", lambda: now[0])
    steps = make_steps(variant := Recorder(Precision.fp32, []))
    monkeypatch.setattr(steps, "device", device)
    monkeypatch.setattr(
        "pggan.performance.bench.steps.StepRng", lambda seed, images, device: StepRng(seed, images, CPU)
    )
    assert steps._timed(variant, phase_of(8, 4), torch.zeros(4, 3, 8, 8), 0) == 3.0 / QUEUED_UPDATES


def test_a_gpu_is_waited_for_once_in_ten_updates_or_more_and_every_round_has_as_many_penalties(make_steps, monkeypatch):
    waits, told = [], []
    monkeypatch.setattr("pggan.performance.bench.steps.synchronize", waits.append)
    monkeypatch.setattr(
        "pggan.performance.bench.steps.StepRng", lambda seed, images, device: StepRng(seed, images, CPU)
    )
    monkeypatch.setattr("pggan.performance.bench.steps.set_float32", lambda device, precision: None)
    lazy = dataclasses.replace(WGAN_GP, reg_interval=4)
    steps = make_steps(variant := Recorder(Precision.fp32, told), loss=lazy)
    monkeypatch.setattr(steps, "device", torch.device("cuda"))
    monkeypatch.setattr(Recorder, "counted", lambda variant: nullcontext())
    for number in range(2):
        steps._timed(variant, phase_of(8, 4), torch.zeros(4, 3, 8, 8), number)
    assert [images for _, images in told] == list(range(0, 2 * 12 * 4, 4))
    assert len(waits) == 2 * 2  # before and after a round


def test_the_cost_of_a_way_to_calculate_is_counted_once_however_many_variants_take_it(make_steps, monkeypatch):
    counted = []
    monkeypatch.setattr(
        StepCostEstimator, "cost", lambda self, phase: counted.append(self.factory) or StepCost(1, 2, 3, 4)
    )
    full, short = Recorder(Precision.fp32, []), Recorder(Precision.bf16, [])
    short.factory = dataclasses.replace(FACTORY, options=ComputeOptions(dtype=torch.bfloat16))
    costs = make_steps(full, short, Recorder(Precision.fp32, [])).costs(phase_of(8, 4))
    assert sorted(counted, key=str) == sorted({full.factory, short.factory}, key=str)
    assert costs == dict.fromkeys("012", StepCost(1, 2, 3, 4))


def test_only_one_function_waits_for_devices():
    """A place of its own would forget one kind of device; what waits for CUDA alone is named here."""
    waiting = {}
    for folder in ("pggan", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            count = len(re.findall(r"torch\.(?:cuda|mps|xpu|accelerator)\.synchronize\(", path.read_text()))
            if count:
                waiting[path.relative_to(ROOT).as_posix()] = count
    assert waiting.pop("pggan/core/devices.py") == 2
    assert waiting == {"pggan/training/cuda_graphs.py": 1}  # before a capture


def test_hours_are_projected_for_a_schedule_whose_resolutions_were_all_measured(tiny_config):
    schedule = tiny_config("schedule.total_images=150").schedule.build()  # 4 and 8 up to 96 images, then 16
    rows = [{"resolution": side, "images_per_second": side / 4} for side in (4, 8, 16)]
    assert estimated_hours(schedule, rows) == pytest.approx((32 / 1 + 64 / 2 + 54 / 4) / 3600)
    assert estimated_hours(schedule, rows[:2]) is None
