"""What one factory makes is trained with, counted and checked."""

import pytest

from pggan.augmentation.ada import Ada
from pggan.core.errors import UserError
from pggan.distributed.process_group import ProcessGroup
from pggan.run.open_run import check
from pggan.training.build import build_trainer
from pggan.training.step_cost import StepCostEstimator
from pggan.training.trainer_factory import TrainerFactory
from tests.training.short_run import CPU

ALONE = ProcessGroup.single_process(CPU)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_counted_steps_are_those_of_the_trainer(tiny_config, precision):
    config = tiny_config("loss=logistic", "augmentation=ada", f"precision={precision}", "compute.micro_batch_size=4")
    architecture = config.model.architecture(8, 3, 0)
    trainer = build_trainer(config, architecture, [], ALONE, check_memory=False)
    fake = StepCostEstimator(architecture, TrainerFactory.of(config, CPU, 1), CPU)
    counted = fake.factory
    assert (trainer.loss, trainer.options) == (counted.loss, counted.options)
    assert trainer.augmentation == counted.augmentation
    assert isinstance(trainer.augmentation, Ada)
    assert (fake.state.g.scale is None) == (trainer.state.g.scale is None) == (precision == "fp32")
    assert fake.state.d.adaptive_p.target == trainer.state.d.adaptive_p.target


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["precision=tf32"], "does not exist on cpu"),
        (["compute.cuda_graphs=on"], "there are none on cpu"),
        (["compute.compile=true", "augmentation=ada"], "does not work with augmentation=ada"),
    ],
)
def test_what_a_trainer_can_not_be_made_of_is_refused_before_anything_is_opened(tiny_config, overrides, problem):
    with pytest.raises(UserError, match=problem):
        check(tiny_config(*overrides), ALONE)
