"""A generator's images: stages, truncation, classes, one face per seed; and `pggan.load`, which gives them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import pggan
from pggan.checkpoints.read import checkpoints_of
from pggan.core.errors import UserError
from pggan.data.pyramid import ImagePyramid
from pggan.sampling.generate import PARALLEL_SIDE, draw_seeds, seed_latents
from pggan.sampling.latents import load_vectors

NOTEBOOK = Path(__file__).parents[2] / "docs" / "latents.ipynb"


def test_a_run_a_checkpoint_and_a_file_give_the_same_generator(run_dir, generator):
    wanted = generator.render(generator.latents([1, 2]))
    for place in (run_dir, str(run_dir), checkpoints_of(run_dir)[-1], run_dir / "generator.safetensors"):
        assert np.array_equal(pggan.load(place, "cpu").render(generator.latents([1, 2])), wanted)
    assert (generator.resolution, generator.alpha, generator.images) == (16, 31 / 32, 96)
    assert (generator.resolutions, generator.latent_size, generator.num_classes) == ((4, 8, 16), 8, 3)


def test_a_class_is_found_by_its_number_and_by_its_name(generator, labelled_data):
    names = ImagePyramid(labelled_data).class_names
    assert list(generator.class_names) == names
    latents = generator.latents([7])
    wanted = generator.render(latents, label=2)
    for label in ("2", names[2]):
        assert np.array_equal(generator.render(latents, label=label), wanted)
    assert not np.array_equal(generator.render(latents, label=0), wanted)
    with pytest.raises(UserError, match=f"Did you mean '{names[2]}'"):
        generator.render(latents, label=names[2] + "x")


def test_the_newest_stage_is_drawn_unless_another_is_asked_for_and_a_level_faded_out_is_the_level_below(generator):
    for asked, stage in (({}, (16, 31 / 32)), ({"resolution": 8}, (8, 1.0)), ({"alpha": 0.25}, (16, 0.25))):
        settings = generator.settings(**asked)
        assert (settings.resolution, settings.alpha) == stage
    (picture,) = generator.sample("7", resolution=8, truncation=0.5, label=2)
    pixels = generator.render(generator.latents([7]), resolution=8, truncation=0.5, label=2)
    assert np.array_equal(np.asarray(picture), pixels[0])
    lower = generator.render(generator.latents("0,1"), resolution=8)
    upper = generator.render(generator.latents("0,1"), resolution=16, alpha=0.0)
    assert np.array_equal(upper, lower.repeat(2, 1).repeat(2, 2))


def test_what_is_not_there_is_said(run_dir, generator):
    with pytest.raises(UserError, match="nowhere does not exist"):
        pggan.load("nowhere")
    with pytest.raises(UserError, match="device=tpu"):
        pggan.load(run_dir, device="tpu")
    with pytest.raises(UserError, match="no class"):
        pggan.load("pretrained:avatars64", "cpu").sample(1, label=3)
    for wrong in ({"resolution": 32}, {"alpha": 1.5}, {"label": 3}, {"label": -1}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            generator.settings(**wrong)


def test_a_seed_gives_the_same_face_in_any_company_on_any_number_of_threads(generator):
    latents, before = seed_latents([1, 2, 3, 5, 8], 8), torch.get_num_threads()
    found = [generator.render(latents[3:4])]
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.append(generator.render(latents)[3:4])
        assert torch.get_num_threads() == threads  # as before, whatever the threads that draw are set to
    torch.set_num_threads(before)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    assert generator.resolution <= PARALLEL_SIDE


def test_images_are_drawn_as_they_are_asked_for(generator):
    """Of a long path, only a few are drawn ahead."""
    latents = seed_latents([0, 1, 2], 8).repeat(10_000, 1)
    images = generator.stream(latents, generator.settings())
    first = [next(images) for _ in range(3)]
    images.close()
    assert np.array_equal(np.stack(first), generator.render(latents[:3]))


def test_the_first_seeds_are_drawn_with_the_classes_in_turn(generator):
    """To one grey level, as a batch may round differently; another class would show."""
    drawn = draw_seeds(generator.network, 9, 16, 0.5)  # more than are drawn at a time
    assert (drawn.dtype, drawn.shape) == (np.uint8, (9, 16, 16, 3))
    for seed, label in enumerate([0, 1, 2] * 3):
        faces = [generator.render(seed_latents([seed], 8), alpha=0.5, label=each)[0] for each in range(3)]
        distances = [np.abs(drawn[seed].astype(int) - face).max() for face in faces]
        assert distances[label] <= 1 < min(distances[:label] + distances[label + 1 :])


def test_truncation_goes_to_the_average_face_of_the_class(generator):
    """With 0, every seed has the face of the mean first features of many seeds of its class; with 0.5, half the way."""
    network, latents = generator.network, seed_latents(list(range(1024)), 8)
    for label, truncation in ((0, 0.0), (2, 0.0), (2, 0.5)):
        found = generator.render(latents[:1], truncation=truncation, label=label)
        one_hot = torch.nn.functional.one_hot(torch.full((1024,), label), 3).float()
        with torch.no_grad():
            features = network.features(latents, one_hot)
            mean = torch.lerp(features.mean(0, keepdim=True), features[:1], truncation)
            wanted = network.grow(mean, 16, generator.alpha)[0].permute(1, 2, 0).numpy() * 127.5 + 127.5
        assert np.abs(found[0] - wanted.clip(0, 255)).max() <= 0.51  # rounded


@pytest.mark.slow
def test_the_cells_of_the_notebook_run_in_their_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code" and not cell["source"][0].startswith("%pip"):
            exec("".join(cell["source"]), names)
            assert cell["outputs"]  # stored with its pictures
    assert names["found"].psnr > 20
    assert load_vectors("latents", tmp_path / "found.safetensors", 64).shape == (1, 64)
