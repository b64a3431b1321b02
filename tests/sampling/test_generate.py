"""A generator's images: stages, truncation, classes, and one face per seed."""

from itertools import count

import numpy as np
import pytest
import torch

from pggan.core.errors import UserError
from pggan.sampling.generate import PARALLEL_SIDE, RenderSettings, draw_in_batches, draw_seeds
from pggan.sampling.latents.latents import seed_latents


@pytest.mark.parametrize(
    ("asked", "resolution", "alpha"),
    [({}, 16, 31 / 32), ({"resolution": 16}, 16, 31 / 32), ({"resolution": 8}, 8, 1.0), ({"alpha": 0.25}, 16, 0.25)],
)
def test_the_newest_stage_is_drawn_unless_another_is_asked_for(generator, asked, resolution, alpha):
    settings = generator.settings(**asked)
    assert (settings.resolution, settings.alpha) == (resolution, alpha)


@pytest.mark.parametrize("wrong", [{"resolution": 32}, {"resolution": 5}, {"alpha": 1.5}, {"label": 3}, {"label": -1}])
def test_a_stage_that_is_not_there_is_refused(generator, wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        generator.settings(**wrong)


def test_a_seed_gives_the_same_face_in_any_company(generator):
    alone = generator.render(seed_latents([5], 8))
    together = generator.render(seed_latents([1, 2, 3, 5, 8], 8))
    assert np.array_equal(alone[0], together[3])


def test_an_image_does_not_depend_on_the_number_of_threads(generator):
    latents, before = seed_latents(list(range(9)), 8), torch.get_num_threads()
    found = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.append(generator.render(latents))
        assert torch.get_num_threads() == threads  # as before, whatever the threads that draw are set to
    torch.set_num_threads(before)
    assert np.array_equal(*found)
    assert generator.resolution <= PARALLEL_SIDE


def test_images_are_drawn_as_they_are_asked_for(generator):
    """Of an endless path, only a few are drawn ahead."""
    taken = []

    def endless():
        for seed in count():
            taken.append(seed)
            yield seed_latents([seed], 8)[0]

    images = generator.stream(endless(), generator.settings())
    first = [next(images) for _ in range(3)]
    images.close()
    assert np.array_equal(np.stack(first), generator.render(seed_latents([0, 1, 2], 8)))
    assert len(taken) < 3 + 2 * torch.get_num_threads() + 2


def test_every_level_and_alpha_can_be_drawn(generator):
    latents = seed_latents([0, 1], 8)
    for resolution in (4, 8, 16):
        for alpha in (0.0, 0.5, 1.0):
            images = generator.render(latents, resolution=resolution, alpha=alpha)
            assert images.shape == (2, resolution, resolution, 3)
    lower = generator.render(latents, resolution=8)
    faded_out = generator.render(latents, resolution=16, alpha=0.0)
    assert np.array_equal(faded_out, lower.repeat(2, 1).repeat(2, 2))


def test_truncation_draws_faces_together(generator):
    latents = seed_latents(list(range(8)), 8)
    spread = [generator.render(latents, truncation=t).astype(float).std(0).mean() for t in (0.0, 0.5, 1.0)]
    assert spread[0] == 0
    assert spread[0] < spread[1] < spread[2]


def test_classes_differ(generator):
    latents = seed_latents([0], 8)
    images = [generator.render(latents, label=label) for label in (0, 1, 2)]
    assert not np.array_equal(images[0], images[1])
    assert np.array_equal(images[0], generator.render(latents))


def test_a_batch_has_the_faces_that_are_drawn_one_at_a_time(generator):
    """To one grey level: the arithmetic of a batch may round differently."""
    latents, classes = seed_latents([0, 1, 2, 3, 4], 8), torch.tensor([0, 1, 2, 0, 1])
    together = draw_in_batches(generator.network, latents, classes, RenderSettings(16, 0.5), 3)
    for number, label in enumerate(classes.tolist()):
        alone = generator.render(latents[number : number + 1], alpha=0.5, label=label)
        assert np.abs(together[number].astype(int) - alone[0]).max() <= 1


def test_the_first_seeds_are_drawn_with_the_classes_in_turn(generator):
    """To one grey level, as above; the seeds' own classes are so far apart that another one would show."""
    drawn = draw_seeds(generator.network, 5, 16, 0.5, batch_size=2)
    assert (drawn.dtype, drawn.shape) == (np.uint8, (5, 16, 16, 3))
    for seed, label in enumerate([0, 1, 2, 0, 1]):
        faces = [generator.render(seed_latents([seed], 8), alpha=0.5, label=each)[0] for each in range(3)]
        distances = [np.abs(drawn[seed].astype(int) - face).max() for face in faces]
        assert distances[label] <= 1 < min(distances[:label] + distances[label + 1 :])


def test_truncation_goes_to_the_average_face_of_the_class(generator):
    """With 0, every seed has the face of the mean first features of many seeds of its class."""
    network, latents = generator.network, seed_latents(list(range(1024)), 8)
    for label in (0, 2):
        found = generator.render(latents[:1], truncation=0.0, label=label)
        one_hot = torch.nn.functional.one_hot(torch.full((1024,), label), 3).float()
        with torch.no_grad():
            mean = network.features(latents, one_hot).mean(0, keepdim=True)
            wanted = network.grow(mean, latents[:1], 16, generator.alpha)[0].permute(1, 2, 0).numpy() * 127.5 + 127.5
        assert np.abs(found[0] - wanted.clip(0, 255)).max() <= 0.51  # rounded
