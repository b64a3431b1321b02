"""What a trainer does around the step: phases, the reducer, memory, and CUDA graphs as far as a CPU shows them."""

import dataclasses

import pytest
import torch

from pggan.core.errors import StepFailed
from pggan.core.rng import StepRng
from pggan.core.schedule import Schedule
from pggan.distributed.process_group import ProcessGroup
from pggan.losses import Logistic
from pggan.losses.base import Reals
from pggan.networks.layers import ComputeOptions
from pggan.optim.state import new_state, state_sha256
from pggan.training import cuda_graphs
from pggan.training.build import build_trainer
from pggan.training.trainer import WARMUP_STEPS, Trainer
from tests.composed import train_config
from tests.definitions import WGAN_GP, variant

CPU = torch.device("cpu")
ARCHITECTURE = variant(resolution=16, latent_size=8, fmap_base=64, fmap_max=8)
LOGISTIC = Logistic(gamma=1.0, reg_interval=2)
SCHEDULE = Schedule(
    first_resolution=4,
    final_resolution=8,
    stable_images={4: 64},
    fade_images={4: 64},
    batch={4: 8},
    learning_rate_g={4: 0.001},
    learning_rate_d={4: 0.002},
)  # 4x4 up to 64 images, fading up to 128, 8x8 up to 192


def adam_steps(state):
    return max(int(moments["step"]) for moments in state.d.optimizer.state.values())


def take(trainer, phase):
    side = phase.resolution
    reals = Reals(torch.rand(phase.batch, 3, side, side, generator=torch.Generator().manual_seed(0)), None, None)
    return trainer.step(phase, reals, StepRng(0, trainer.state.images, CPU), 0.9)


def trainer_of(loss=WGAN_GP, **settings):
    return Trainer(new_state(ARCHITECTURE, 0, CPU), loss, ComputeOptions(), **settings)


def trained(images, **settings):
    """A trainer after steps up to so many images, and a digest of its state."""
    trainer = trainer_of(**settings)
    while (state := trainer.state).images < images:
        take(trainer, SCHEDULE.at(state.images))
    return trainer, state_sha256(state.state_dict(), state.images, state.phase_index)


def test_moments_are_forgotten_when_a_phase_begins_and_at_no_other_time():
    """A resumed phase keeps its moments: the phase of the last update is part of the state."""
    trainer, counts = trainer_of(), []
    for index in (0, 0, 1, 1, 1):
        take(trainer, SCHEDULE.phases[index])
        counts.append(adam_steps(trainer.state))
        trainer = Trainer(trainer.state, WGAN_GP, ComputeOptions())
    assert counts == [1, 2, 1, 2, 3]


# ---- inputs -----------------------------------------------------------------------------------------------


def inputs_of(images=0, loss=WGAN_GP, **changes):
    """The inputs of a step of a fade, whose images are numbered by their labels."""
    phase = dataclasses.replace(SCHEDULE.phases[1], alpha=0.25, **changes)
    reals = Reals(torch.rand(phase.batch, 3, 8, 8), torch.eye(phase.batch), torch.eye(phase.batch))
    return trainer_of(loss).draw_inputs(phase, reals, StepRng(0, images, CPU), 0.9)


def test_steps_that_differ_in_settings_and_images_only_are_of_one_kind():
    assert inputs_of().spec == inputs_of(8, index=4, learning_rate_d=0.1, learning_rate_g=0.1, start=8, end=16).spec
    for changes in ({"resolution": 16}, {"batch": 16}, {"fading": False}, {"missing_levels": 1}):
        assert inputs_of(**changes).spec != inputs_of().spec
    for start in (0, 8000, 100_001):  # a lazy penalty is due at every so many updates, wherever a phase begins
        due = [bool(inputs_of(start + 8 * number, LOGISTIC).spec.due) for number in range(4)]
        assert due in ([True, False] * 2, [False, True] * 2)
        assert due[0] or start


# ---- memory -----------------------------------------------------------------------------------------------


def fail_beyond(trainer, count, message="CUDA out of memory. Tried to allocate 2 GiB"):
    """Let an operation of D's fail for more than `count` images at a time."""

    def check(module, arguments):
        if len(arguments[0]) > count:
            raise RuntimeError(message)

    trainer.state.d.network.head.dense.register_forward_pre_hook(check)


@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize(("size", "smaller"), [(None, 8), (12, 4), (8, 4), (4, None)])
def test_a_step_for_which_the_memory_does_not_suffice_names_the_next_smaller_size(size, smaller, capture):
    """In whole groups of four images; D sees twice as many at once.  Of the smallest size, CUDA graphs are left out."""
    phase = dataclasses.replace(SCHEDULE.phases[0], batch=16)
    trainer = trainer_of(micro_batch_size=lambda batch: size, capture=capture)
    fail_beyond(trainer, 0)
    with pytest.raises(StepFailed, match=r"at 4x4 with micro-batches of \d+ images") as caught:
        take(trainer, phase)
    smallest = {"cuda_graphs": "off"} if capture else {}
    assert caught.value.compute == (smallest if smaller is None else {"micro_batch_size": smaller})
    assert all(weight.grad is None for weight in trainer.state.d.network.weights)
    assert trainer.state.images == 0


def test_each_of_several_ranks_takes_a_quarter_because_restarts_are_few():
    trainer = trainer_of(indices=lambda batch: torch.arange(batch // 2))
    fail_beyond(trainer, 0)
    with pytest.raises(StepFailed) as caught:
        take(trainer, dataclasses.replace(SCHEDULE.phases[0], batch=32))
    assert caught.value.compute == {"micro_batch_size": 4}


def test_other_errors_of_a_step_are_raised_as_they_are():
    trainer = trainer_of()
    fail_beyond(trainer, 0, "mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        take(trainer, SCHEDULE.phases[0])


# ---- CUDA graphs --------------------------------------------------------------------------------------------


@pytest.fixture
def captures(monkeypatch):
    """In place of `capture`: on replay it does what the function did, on the same tensors."""
    made = []

    def capture(function, pool):
        metrics = {}
        made.append(function)
        return lambda: metrics.update(function()), metrics

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    return made


@pytest.mark.parametrize("loss", [WGAN_GP, LOGISTIC])
def test_replayed_steps_have_the_bits_of_eager_ones_whose_settings_are_tensors(captures, loss):
    """The settings of each replay are its own; each kind of step is captured once per phase, after a few eager ones."""
    _, eager = trained(192, loss=loss, scalars_as_tensors=True)
    trainer, replayed = trained(192, loss=loss, scalars_as_tensors=True, capture=True)
    assert replayed == eager
    assert len(captures) == 3 * loss.reg_interval
    assert len(trainer.captured) == loss.reg_interval  # the memory of earlier phases is free
    captures.clear()
    trained(64 + 8 * WARMUP_STEPS, capture=True)
    assert len(captures) == 1  # of the first phase; the second still warms up


# ---- a trainer by its configuration -------------------------------------------------------------------------


def test_a_trainer_is_the_configured_one():
    def built(*overrides):
        group, settings = ProcessGroup.single_process(CPU), train_config(*overrides).trainer_settings()
        return build_trainer(settings, ARCHITECTURE, SCHEDULE.phases, group)

    compute = ["compute.kernels=reference", "compute.micro_batch_size=4", "precision=bf16"]
    trainer = built(*compute)
    assert trainer.options == ComputeOptions(dtype=torch.bfloat16, reference=True)
    assert trainer.micro_batch_size(8) == 4
    assert (trainer.state.images, trainer.capture, trainer.state.g.scale, trainer.indices(8)) == (0, False, None, None)
    assert built("precision=fp16").state.g.scale is not None
    assert built("elastic=true").micro_batch_size(8) == 4  # of two groups of four
    assert built("augmentation=ada", "loss=logistic").state.d.adaptive_p.target == 0.6
    assert built("augmentation=ada").state.d.adaptive_p.target == pytest.approx(0.766, abs=1e-3)  # of differences
