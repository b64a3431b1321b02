"""The times of phases: measured where that is cheap, and in proportion elsewhere."""

from types import SimpleNamespace

import pytest
import torch

from pggan.checkpoints.read import newest_checkpoint
from pggan.config import TrainConfig
from pggan.core.rng import StepRng
from pggan.core.validation import validated
from pggan.optim.batch_partition import BatchPartition
from pggan.run import train
from pggan.training import timing
from pggan.training.timing import CostModel, measure_phase_times, noise
from pggan.training.trainer import Trainer
from tests.composed import composed

CPU = torch.device("cpu")
ENOUGH = "schedule.total_images=100000"  # for a percent of the run to be seconds


@pytest.fixture
def build(tiny_config, monkeypatch):
    """Configuration, architecture and cost model of a run, on a machine of 2 GFLOP/s."""
    monkeypatch.setattr(timing, "matmul_rate", lambda *_: 2e9)

    def of(*overrides):
        config = tiny_config(*overrides)
        architecture = config.model.architecture(config.schedule.final_resolution, 3, 0)
        return config, architecture, CostModel.of(config, architecture, CPU)

    return of


def phase_times_of(config, architecture, images=0):
    partition = BatchPartition.of(config, (), 1)
    return measure_phase_times(config, architecture, config.schedule.build(), partition, device=CPU, images=images)


def test_the_cost_of_an_update_is_that_of_starts_and_operations(build):
    config, architecture, model = build("loss=logistic", "loss.reg_interval=6")
    operations = 2 * (timing.UPDATE_PASSES + timing.PENALTY_PASSES / 6) * 8 * architecture.multiply_adds(16)
    expected = 3 * timing.START_SECONDS["cpu"] + operations / (2e9 * timing.RATE_SHARE["cpu"])
    assert model.seconds(16, 8) == pytest.approx(expected)
    phase_times = model.phase_times(config.schedule.build(), {})
    assert phase_times.seconds_per_image[-1] == pytest.approx(expected / 8)
    assert not phase_times.measured


def test_on_a_gpu_steps_are_as_on_the_h100_that_was_measured_whether_products_or_copies_take_longer(monkeypatch):
    """Milliseconds of captured steps by resolution, and their batches (docs/performance.md)."""
    measured = {16: (11.7, 128), 32: (20.9, 64), 64: (22.1, 32), 128: (19.6, 16), 256: (17.9, 8), 512: (18.6, 4)}
    measured[1024] = 37.5, 4
    monkeypatch.setattr(timing, "matmul_rate", lambda *_: 718e12)
    monkeypatch.setattr(timing, "copy_rate", lambda *_: 3.006e12)
    config = validated(TrainConfig, composed("train", ["experiment=celebahq_1024", "precision=fp32"]))
    model = CostModel.of(config, config.model.architecture(1024, 3, 0), torch.device("cuda"))
    for side, (milliseconds, batch) in measured.items():
        assert 1000 * model.seconds(side, batch) == pytest.approx(milliseconds, rel=0.1)
    assert model.phase_times(config.schedule.build(), {}).phase_start_seconds == timing.PHASE_START_SECONDS["cuda"]


def test_resolutions_that_were_not_measured_are_scaled_from_the_highest_that_was(build):
    config, _, model = build()
    schedule, costs = config.schedule.build(), {side: model.seconds(side, 8) for side in (4, 8, 16)}
    phase_times = model.phase_times(schedule, {4: 7 * costs[4], 8: 3 * costs[8]})
    expected = [7 * costs[4], 3 * costs[8], 3 * costs[8], 3 * costs[16], 3 * costs[16]]
    assert phase_times.seconds_per_image == pytest.approx([each / 8 for each in expected])
    assert phase_times.measured
    assert phase_times.seconds(schedule, 16, 40) == pytest.approx((16 * expected[0] + 8 * expected[1]) / 8)


@pytest.fixture
def timed(monkeypatch):
    """The phases that are measured, each step taking `seconds` of a clock of its own."""
    found, now = [], [0.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def of(seconds):
        def single_device_timer(config, architecture, phases, device, method_table):
            def measure(phase, *_):
                found.append(phase)
                now[0] += 8 * seconds[phase.resolution]
                return seconds[phase.resolution]

            return SimpleNamespace(seconds=measure, need=lambda step, steps: 8 * step)

        monkeypatch.setattr(timing, "single_device_timer", single_device_timer)
        return found

    return of


def test_all_resolutions_are_measured_where_that_takes_a_moment(build, timed):
    config, architecture, _ = build(ENOUGH)
    found = timed({4: 0.01, 8: 0.03, 16: 0.02})
    phase_times = phase_times_of(config, architecture)
    assert [(phase.resolution, phase.fading) for phase in found] == [(4, False), (8, False), (16, False)]
    assert phase_times.seconds_per_image == pytest.approx([each / 8 for each in (0.01, 0.03, 0.03, 0.02, 0.02)])


def test_what_would_take_more_than_seconds_is_not_measured(build, timed):
    config, architecture, model = build(ENOUGH)
    scale = timing.MAX_SECONDS / 8 / model.seconds(16, 8)  # the third alone would fill the time
    found = timed({4: scale * model.seconds(4, 8), 8: scale * model.seconds(8, 8)})
    phase_times = phase_times_of(config, architecture)
    assert [phase.resolution for phase in found] == [4, 8]
    assert phase_times.seconds_per_image[-1] == pytest.approx(scale * model.seconds(16, 8) / 8)


def test_a_short_run_and_a_compiled_one_begin_at_once(build, timed):
    found = timed({})
    for overrides in ([], [ENOUGH, "compute.compile=true", "compute.penalty=jvp"]):
        config, architecture, model = build(*overrides)
        assert phase_times_of(config, architecture) == model.phase_times(config.schedule.build(), {})
    assert not found


def test_a_resumed_run_measures_what_is_left(build, timed):
    config, architecture, _ = build(ENOUGH)
    found = timed({8: 0.03, 16: 0.02})
    assert phase_times_of(config, architecture, images=90).measured
    assert [phase.resolution for phase in found] == [8, 16]


@pytest.mark.parametrize(
    ("overrides", "interval"), [([], 1), (["elastic=true"], 1), (["loss=logistic", "loss.reg_interval=4"], 4)]
)
def test_real_updates_are_timed_with_and_without_penalties(tiny_config, monkeypatch, overrides, interval):
    """By a clock that stands still but for them: those with penalties take 3 s, the others 2 s."""
    now, step = [0.0], Trainer.step

    def slow_step(self, phase, reals, rng, ema_decay):
        now[0] += 2.0 if rng.images // phase.batch % interval else 3.0
        return step(self, phase, reals, rng, ema_decay)

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(Trainer, "step", slow_step)
    config = tiny_config("schedule.final_resolution=8", *overrides)
    architecture, phase = config.model.architecture(8, 3, 2), config.schedule.build().phases[0]
    timer = timing.single_device_timer(config, architecture, [phase], CPU)
    assert timer.seconds(phase, 1, 0.0) == {1: 3.0, 4: (3.0 + 3 * 2.0) / 4}[interval]
    assert timer.need(1.0, 2) == {1: 4, 4: 8}[interval]  # two steps of each kind after two to warm up


def test_noise_has_the_shape_of_the_images_and_a_class_where_there_are_some(tiny_config):
    config = tiny_config()
    for num_classes in (0, 3):
        architecture, phase = config.model.architecture(16, 3, num_classes), config.schedule.build().at(100)
        reals = noise(architecture, CPU)(phase, StepRng(0, 0, CPU))
        assert reals.images.shape == (8, 3, 16, 16)
        assert -1 <= reals.images.min() < -0.9 < 0.9 < reals.images.max() <= 1
        assert num_classes == 0 or reals.labels.sum(1).tolist() == [1.0] * 8


@pytest.mark.slow
def test_measuring_the_pace_changes_no_bit_of_a_run(finished_run, tiny_config, tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(timing, "MAX_SHARE", 1e6)  # of a run of a second
    single_device_timer = timing.single_device_timer
    monkeypatch.setattr(
        timing, "single_device_timer", lambda *asked: measured.append(asked) or single_device_timer(*asked)
    )
    assert train.run(tiny_config(f"run_dir={tmp_path / 'run'}")) == 0
    assert len(measured) == 1
    states = [newest_checkpoint(path)[0].header["state_sha256"] for path in (finished_run, tmp_path / "run")]
    assert states[0] == states[1]
