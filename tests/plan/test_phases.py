"""What every phase of a schedule costs."""

from types import SimpleNamespace

import pytest
import torch

from pggan.distributed.process_group import ProcessGroup
from pggan.losses import build_loss
from pggan.networks.numerics import ComputeOptions
from pggan.performance.plan.phases import fitting_kernels, halfway, phase_costs
from pggan.training.fake_step import FakeStep

CPU = torch.device("cpu")


def test_every_phase_has_its_images_and_updates(costs):
    assert [(cost.phase.name, cost.images, cost.phase.batch) for cost in costs] == [
        ("4x4 stable", 32, 8),
        ("8x8 fade", 20, 8),
        ("8x8 stable", 32, 8),
    ]
    assert [cost.updates for cost in costs] == [4, 3, 4]  # 32 are shown, then 56, then 88 of 84


def test_operations_are_the_mean_over_the_interval_of_lazy_penalties(costs):
    for cost in costs:
        flops = cost.count.flops
        plain = flops.generator_forward + flops.discriminator_forward + flops.backward
        assert cost.flops == pytest.approx(plain + flops.penalty / 8)  # logistic: in one update of 8


@pytest.mark.slow
def test_memory_is_that_of_the_fake_step_in_the_worse_phase_of_a_resolution(costs, make_config):
    config = make_config()
    fake = FakeStep(config.model.architecture(8, 3, 0), config.optimizer, CPU, half=False)
    expected = fake.peak_bytes(halfway(costs[1].phase), build_loss(config.loss), ComputeOptions())
    assert costs[1].peak_bytes == costs[2].peak_bytes == expected
    assert halfway(costs[1].phase).alpha == 0.5
    assert halfway(costs[2].phase) == costs[2].phase


@pytest.mark.parametrize(
    ("memory", "micro_batch_size"),
    [(17_800, None), (17_700, 8), (8_800, 4), (100, 4)],  # a pass of n images takes 1,000 n of nine tenths of it
)
def test_a_pass_takes_at_most_nine_tenths_of_the_memory_and_at_least_a_group(memory, micro_batch_size):
    class Fake:
        state = SimpleNamespace(g_ema=SimpleNamespace(architecture=SimpleNamespace(stddev_group=4)))

        def kernels(self, phase, loss, options):
            return SimpleNamespace(peak_bytes=1000 * (options.micro_batch_size or phase.batch))

    phase = SimpleNamespace(batch=16)
    options, kernels = fitting_kernels(Fake(), phase, None, ComputeOptions(), memory)
    assert options.micro_batch_size == micro_batch_size
    assert kernels.peak_bytes == 1000 * (micro_batch_size or 16)


@pytest.mark.slow
def test_a_phase_that_is_not_reached_costs_nothing(make_config, monkeypatch):
    class Counted(FakeStep):
        """Counts every phase as the first."""

        def count(self, phase, loss):
            Counted.result = getattr(Counted, "result", None) or super().count(phase, loss)
            return Counted.result

        def peak_bytes(self, phase, loss, options):
            return 1

    monkeypatch.setattr("pggan.performance.plan.phases.FakeStep", Counted)
    config, group = make_config("schedule.total_images=40"), ProcessGroup.single_process(CPU)
    found = phase_costs(config, config.model.architecture(8, 3, 0), ComputeOptions(), group, lambda text: None)
    assert [(cost.phase.name, cost.images, cost.updates) for cost in found] == [
        ("4x4 stable", 32, 4),
        ("8x8 fade", 8, 1),
    ]
