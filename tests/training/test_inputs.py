"""The inputs of a step: what is due, what is drawn, and in which parts."""

import dataclasses

import pytest
import torch

from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses import Logistic
from pggan.losses.base import Reals
from pggan.networks.layers import ComputeOptions
from pggan.training.inputs import draw_inputs, scalars_to_tensors, split_into_micro_batches
from tests.definitions import WGAN_GP

CPU = torch.device("cpu")
PHASE = Phase(3, 8, True, 0.25, 0, 1000, 8, 0.001, 0.002, 1)


def inputs_of(phase=PHASE, loss=WGAN_GP, images=0, indices=None, labels=None, **more):
    count = phase.batch if indices is None else len(indices)
    reals = Reals(torch.arange(count * 3.0).view(count, 3, 1, 1).expand(-1, -1, 8, 8), labels, labels)
    rng = StepRng(0, images, CPU)
    more |= {"latent_size": 2, "options": ComputeOptions(), "indices": indices}
    return draw_inputs(phase, reals, loss, rng, 0.9, **more)


def test_one_function_serves_all_steps_that_differ_in_settings_and_images_only():
    other = dataclasses.replace(PHASE, index=4, alpha=0.5, learning_rate_d=0.1, learning_rate_g=0.1, start=8, end=16)
    assert inputs_of().spec == inputs_of(other, images=8).spec
    for changes in ({"resolution": 16}, {"batch": 16}, {"fading": False}, {"missing_levels": 0}):
        assert inputs_of(dataclasses.replace(PHASE, **changes)).spec != inputs_of().spec


def test_a_part_of_the_batch_has_the_random_numbers_that_its_images_have_in_the_whole():
    whole, part = inputs_of(), inputs_of(indices=torch.tensor([6, 1]))
    for name in ("latents_d", "latents_g", "mix"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[[6, 1]])
    assert part.spec == whole.spec
    logistic = inputs_of(loss=Logistic(gamma=1.0, reg_interval=1))
    assert logistic.mix is None  # it has no penalty at interpolated images


def test_settings_are_those_of_the_phase_and_become_float32_tensors():
    """But alpha stays a constant where no layers fade in: a tensor of 1 would compute layers that are not in use."""
    assert scalars_to_tensors(inputs_of(dataclasses.replace(PHASE, fading=False, alpha=1.0))).alpha == 1.0
    inputs = scalars_to_tensors(inputs_of())
    settings = inputs.alpha, inputs.learning_rate_d, inputs.learning_rate_g, inputs.ema_decay
    assert {setting.dtype for setting in settings} == {torch.float32}
    assert [setting.item() for setting in settings] == pytest.approx([0.25, 0.002, 0.001, 0.9])
    again = scalars_to_tensors(inputs)
    assert all(one is other for one, other in zip(again, inputs, strict=True))


@pytest.mark.parametrize(("size", "parts"), [(None, [8]), (8, [8]), (100, [8]), (4, [4, 4]), (5, [4, 4]), (1, [2] * 4)])
def test_micro_batches_are_whole_groups_of_minibatch_stddev_of_at_most_the_size(size, parts):
    """Of 8 images in groups of 2, group g is made of images g and g + 4; a group is the least."""
    inputs = inputs_of(micro_batch_size=size, labels=torch.eye(8))
    found = split_into_micro_batches(inputs, stddev_group=2)
    assert [len(part.latents_d) for part in found] == parts
    positions = [part.reals.labels.argmax(1) for part in found]
    assert sorted(torch.cat(positions).tolist()) == list(range(8))
    for part, at in zip(found, positions, strict=True):
        half = len(at) // 2
        assert torch.equal(at[half:], at[:half] + 4)
        for name in ("latents_d", "latents_g", "mix"):
            assert torch.equal(getattr(part, name), getattr(inputs, name)[at])
        assert torch.equal(part.reals.images, inputs.reals.images[at])
        assert torch.equal(part.reals.fake_labels, inputs.reals.fake_labels[at])
