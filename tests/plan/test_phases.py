"""What every phase of a schedule costs."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pggan.distributed.process_group import ProcessGroup
from pggan.performance.plan.phases import fitting_kernels, halfway, phase_costs
from pggan.training.step_cost import StepCostEstimator
from pggan.training.trainer_factory import TrainerFactory

CPU = torch.device("cpu")


def test_every_phase_has_its_images_and_updates(costs):
    assert [(cost.phase.name, cost.images, cost.phase.batch) for cost in costs] == [
        ("4x4 stable", 32, 8),
        ("8x8 fade", 20, 8),
        ("8x8 stable", 32, 8),
    ]
    assert [cost.steps for cost in costs] == [4, 3, 4]  # 32 are shown, then 56, then 88 of 84


def test_operations_are_the_mean_over_the_interval_of_lazy_penalties(costs):
    for cost in costs:
        flops = cost.count.flops
        plain = flops.generator_forward + flops.discriminator_forward + flops.backward
        assert cost.flops == pytest.approx(plain + flops.penalty / 8)  # logistic: in one step of 8


@pytest.mark.slow
def test_memory_is_that_of_the_fake_step_in_the_worse_phase_of_a_resolution(costs, make_config):
    config = make_config()
    estimator = StepCostEstimator(config.model.architecture(8, 3, 0), TrainerFactory.of(config, CPU, 1), CPU)
    expected = estimator.peak_bytes(halfway(costs[1].phase))
    assert costs[1].peak_bytes == costs[2].peak_bytes == expected
    assert halfway(costs[1].phase).alpha == 0.5
    assert halfway(costs[2].phase) == costs[2].phase


@pytest.mark.parametrize(
    ("usable", "micro_batch_size"),
    [(16_000, None), (15_999, 8), (7_999, 4), (100, 4)],  # a pass of n images takes 1,000 n
)
def test_a_pass_takes_at_most_the_usable_memory_and_at_least_a_group(usable, micro_batch_size):
    class Fake:
        state = SimpleNamespace(g_ema=SimpleNamespace(architecture=SimpleNamespace(stddev_group=4)))

        def kernels(self, phase, size):
            return SimpleNamespace(peak_bytes=1000 * (size or phase.batch))

    phase = SimpleNamespace(batch=16)
    size, kernels = fitting_kernels(Fake(), phase, usable, None)
    assert size == micro_batch_size
    assert kernels.peak_bytes == 1000 * (micro_batch_size or 16)


@pytest.mark.slow
def test_augmentation_is_part_of_every_cost(make_config):
    def cost(*overrides):
        config, device = make_config("schedule.final_resolution=4", *overrides), torch.device("meta")
        group, factory = ProcessGroup.single_process(device), TrainerFactory.of(config, device, 1)
        architecture = config.model.architecture(4, 3, 0)
        (found,) = phase_costs(config, architecture, factory, group, lambda text: None, memory=2**34)
        return found

    plain, augmented = cost(), cost("augmentation=ada")
    assert sum(augmented.kernels.with_penalties.values()) > sum(plain.kernels.with_penalties.values())
    assert sum(augmented.kernels.without.values()) > sum(plain.kernels.without.values())
    assert augmented.peak_bytes > plain.peak_bytes


def test_passes_leave_room_for_captures_where_steps_are_captured(make_config, monkeypatch):
    """A step of one image needs 1,000 bytes of nine tenths of the memory, or 1.4 times as many if it is captured."""

    class Fake:
        def __init__(self, architecture, factory, device):
            self.state = SimpleNamespace(g_ema=SimpleNamespace(architecture=architecture))

        def count(self, phase):
            return SimpleNamespace(flops=SimpleNamespace(mean=lambda interval: 1.0))

        def kernels(self, phase, size):
            return SimpleNamespace(peak_bytes=1000 * (size or phase.batch))

    monkeypatch.setattr("pggan.performance.plan.phases.StepCostEstimator", Fake)
    config, group = make_config(), ProcessGroup.single_process(torch.device("meta"))
    factory, architecture = TrainerFactory.of(config, CPU, 1), config.model.architecture(8, 3, 0)
    for capture, memory, size in ((False, 8900, None), (True, 8900, 4), (True, 12500, None)):
        given = replace(factory, capture=capture)
        found = phase_costs(config, architecture, given, group, lambda text: None, memory=memory)
        assert {cost.micro_batch_size for cost in found} == {size}


@pytest.mark.slow
def test_a_phase_that_is_not_reached_costs_nothing(make_config, monkeypatch):
    class Counted(StepCostEstimator):
        """Counts every phase as the first."""

        def count(self, phase):
            Counted.result = getattr(Counted, "result", None) or super().count(phase)
            return Counted.result

        def peak_bytes(self, phase, micro_batch_size):
            return 1

    monkeypatch.setattr("pggan.performance.plan.phases.StepCostEstimator", Counted)
    config, group = make_config("schedule.total_images=40"), ProcessGroup.single_process(CPU)
    factory = TrainerFactory.of(config, CPU, 1)
    found = phase_costs(config, config.model.architecture(8, 3, 0), factory, group, lambda text: None)
    assert [(cost.phase.name, cost.images, cost.steps) for cost in found] == [
        ("4x4 stable", 32, 4),
        ("8x8 fade", 8, 1),
    ]
