"""A generator's images: stages, truncation, classes, and one face per seed."""

import numpy as np
import pytest
import torch

from pggan.core.errors import UserError
from pggan.sampling.generate import generate, render, render_settings
from pggan.sampling.latents import seed_latents


@pytest.mark.slow
def test_the_newest_stage_is_drawn_unless_another_is_asked_for(generator):
    assert (render_settings(generator).resolution, render_settings(generator).alpha) == (16, 31 / 32)
    assert (render_settings(generator, resolution=16).resolution, render_settings(generator, resolution=16).alpha) == (
        16,
        31 / 32,
    )
    assert (render_settings(generator, resolution=8).resolution, render_settings(generator, resolution=8).alpha) == (
        8,
        1.0,
    )
    assert render_settings(generator, alpha=0.25).alpha == 0.25


@pytest.mark.parametrize("wrong", [{"resolution": 32}, {"resolution": 5}, {"alpha": 1.5}, {"label": 3}, {"label": -1}])
def test_a_stage_that_is_not_there_is_refused(generator, wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        render_settings(generator, **wrong)


def test_a_seed_gives_the_same_face_in_any_company(generator):
    alone = render(generator, seed_latents([5], 8), render_settings(generator))
    together = render(generator, seed_latents([1, 2, 3, 5, 8], 8), render_settings(generator))
    assert np.array_equal(alone[0], together[3])


def test_every_level_and_alpha_can_be_drawn(generator):
    latents = seed_latents([0, 1], 8)
    for resolution in (4, 8, 16):
        for alpha in (0.0, 0.5, 1.0):
            images = render(generator, latents, render_settings(generator, resolution=resolution, alpha=alpha))
            assert images.shape == (2, resolution, resolution, 3)
    lower = render(generator, latents, render_settings(generator, resolution=8))
    faded_out = render(generator, latents, render_settings(generator, resolution=16, alpha=0.0))
    assert np.array_equal(faded_out, lower.repeat(2, 1).repeat(2, 2))


def test_truncation_draws_faces_together(generator):
    latents = seed_latents(list(range(8)), 8)
    spread = [
        render(generator, latents, render_settings(generator, truncation=t)).astype(float).std(0).mean()
        for t in (0.0, 0.5, 1.0)
    ]
    assert spread[0] == 0
    assert spread[0] < spread[1] < spread[2]


def test_classes_differ(generator):
    latents = seed_latents([0], 8)
    images = [render(generator, latents, render_settings(generator, label=label)) for label in (0, 1, 2)]
    assert not np.array_equal(images[0], images[1])
    assert np.array_equal(images[0], render(generator, latents, render_settings(generator)))


def test_a_batch_has_the_faces_that_are_drawn_one_at_a_time(generator):
    """To one grey level: the arithmetic of a batch may round differently."""
    latents, classes = seed_latents([0, 1, 2, 3, 4], 8), torch.tensor([0, 1, 2, 0, 1])
    together = generate(generator.network, latents, classes, 16, 0.5, batch_size=3)
    for number, label in enumerate(classes.tolist()):
        settings = render_settings(generator, alpha=0.5, label=label)
        alone = render(generator, latents[number : number + 1], settings)
        assert np.abs(together[number].astype(int) - alone[0]).max() <= 1


def test_truncation_goes_to_the_average_face_of_the_class(generator):
    """With 0, every seed has the face of the mean first features of many seeds of its class."""
    network, latents = generator.network, seed_latents(list(range(1024)), 8)
    for label in (0, 2):
        found = render(generator, latents[:1], render_settings(generator, truncation=0.0, label=label))
        one_hot = torch.nn.functional.one_hot(torch.full((1024,), label), 3).float()
        with torch.no_grad():
            mean = network.features(latents, one_hot).mean(0, keepdim=True)
            wanted = network.grow(mean, 16, generator.alpha)[0].permute(1, 2, 0).numpy() * 127.5 + 127.5
        assert np.abs(found[0] - wanted.clip(0, 255)).max() <= 0.51  # rounded
