"""What a trainer is composed of, for every choice in the configuration."""

import dataclasses

import pytest
import torch

from pggan.config import ComputeConfig, ModelConfig, TrainerConfig
from pggan.config.compute import Precision, Switch
from pggan.core.errors import UserError
from pggan.distributed.process_group import ProcessGroup, RankInfo
from pggan.optim.reducer import AllReduce, GradientReducer
from pggan.training import trainer_factory
from pggan.training.build import agreed_precision, build_trainer
from tests.training.short_run import ARCHITECTURE, CPU, SCHEDULE


def config_of(**changes):
    sizes = {
        name: getattr(ARCHITECTURE, name) for name in ModelConfig.__dataclass_fields__ if hasattr(ARCHITECTURE, name)
    }
    loss = {"name": "logistic", "gamma": 1.0, "reg_interval": 1}
    return TrainerConfig(**{"model": ModelConfig(**sizes), "loss": loss, "precision": Precision.fp32, **changes})


def built(config, group=None, **options):
    group = group or ProcessGroup.single_process(CPU)
    return build_trainer(config, ARCHITECTURE, SCHEDULE.phases, group, **options)


def two_ranks(rank=0):
    """A group that reaches nobody: nothing is sent before the first step."""
    return ProcessGroup(RankInfo(rank, 2, rank, 2), CPU, None, None)


def test_a_trainer_of_one_process_has_the_whole_batch_and_a_new_state():
    trainer = built(config_of(seed=3))
    assert trainer.indices(8) is None
    assert type(trainer.reducer) is GradientReducer
    assert (trainer.state.images, trainer.state.phase_index) == (0, -1)
    assert trainer.micro_batch_sizes == {}
    assert (trainer.graphs, trainer.dry_runs, trainer.scalars_as_tensors) == (None, None, False)  # of CUDA
    weight, other = (built(config_of(seed=seed)).state.g.network.weights[0] for seed in (3, 4))
    assert torch.equal(weight, trainer.state.g.network.weights[0])
    assert not torch.equal(weight, other)


def test_a_trainer_of_several_ranks_has_its_part_of_every_batch():
    trainer = built(config_of(gradients={"name": "bf16"}), two_ranks(1))
    assert trainer.indices(8).tolist() == [1, 3, 5, 7]  # the second of two groups of minibatch stddev
    assert isinstance(trainer.reducer, AllReduce)
    assert trainer.reducer.dtype is torch.bfloat16


@pytest.mark.parametrize("precision", Precision)
def test_losses_are_scaled_in_float16_alone(precision):
    if precision is Precision.tf32:
        with pytest.raises(UserError, match="does not exist on cpu"):
            built(config_of(precision=precision))
    else:
        trainer = built(config_of(precision=precision), check_memory=False)
        assert (trainer.state.g.scale is not None) == (precision is Precision.fp16)


@pytest.mark.parametrize("reset", [True, False])
def test_the_optimizer_is_the_configured_one(reset):
    config = dataclasses.replace(config_of().optimizer, beta1=0.5, reset_at_phase=reset)
    trainer = built(config_of(optimizer=config), check_memory=False)
    assert trainer.reset_at_phase == reset
    optimizer = trainer.state.d.optimizer
    assert (optimizer.beta1, optimizer.beta2) == (0.5, 0.99)


def test_elastic_passes_are_chunks():
    trainer = built(config_of(elastic=True))
    assert trainer.micro_batch_sizes == {(4, 8): 4, (8, 8): 4}  # two groups of four in at most four chunks
    assert not trainer.allow_smaller_micro_batches


def test_compiled_steps_have_a_dry_run_wherever_they_are_taken():
    trainer = built(config_of(compute=ComputeConfig(compile=True)), check_memory=False)
    assert trainer.dry_runs is not None
    assert trainer.compiled_passes is not None
    assert trainer.options.compiled


def test_steps_are_captured_but_for_those_with_sparse_updates(monkeypatch):
    """These are all-gathered between two parts of a step, by collectives that wait."""
    monkeypatch.setattr(trainer_factory, "captures_graphs", lambda *_: True)
    dgc, alone = {"name": "dgc", "ratio": 0.1, "warmup_images": 0}, ProcessGroup.single_process(CPU)
    for gradients, group, captured in (({"name": "bf16"}, two_ranks(), True), (dgc, alone, True), (dgc, None, False)):
        trainer = built(config_of(gradients=gradients), group or two_ranks())
        assert (trainer.graphs is not None) == captured


def test_what_the_device_can_not_do_and_batches_that_can_not_be_shared_are_refused():
    with pytest.raises(UserError, match=r"compute\.cuda_graphs=on"):
        built(config_of(compute=ComputeConfig(cuda_graphs=Switch.on)))
    with pytest.raises(UserError, match="2 groups of 4 images"):
        built(config_of(), ProcessGroup(RankInfo(0, 3, 0, 3), CPU, None, None))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (["bf16", "bf16"], "bf16"),
        (["bf16", "fp16"], "fp16"),
        (["fp16", "bf16"], "fp16"),
        (["fp32", "fp32"], "fp32"),
    ],
)
def test_ranks_of_different_gpus_have_one_precision(monkeypatch, found, expected):
    group = two_ranks()
    monkeypatch.setattr(group, "all_gather_object", lambda value: found)
    assert agreed_precision(Precision.auto, group) is Precision(expected)
