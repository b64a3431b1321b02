"""`pggan.load` and what it gives."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import pggan
from pggan.checkpoints.generator_file import LoadedGenerator, save_generator
from pggan.checkpoints.read import checkpoints_of
from pggan.cli.main import main
from pggan.core.errors import UserError
from pggan.data.pyramid import ImagePyramid
from pggan.networks.networks import Generator
from pggan.sampling.trained_generator import TrainedGenerator


def test_a_run_a_checkpoint_and_a_file_give_the_same_generator(run_dir, generator):
    wanted = generator.render(generator.latents([1, 2]))
    for place in (run_dir, str(run_dir), checkpoints_of(run_dir)[-1], run_dir / "generator.safetensors"):
        assert np.array_equal(pggan.load(place, "cpu").render(generator.latents([1, 2])), wanted)


def test_it_says_what_it_is(generator):
    assert (generator.resolution, generator.alpha, generator.images) == (16, 31 / 32, 96)
    assert (generator.resolutions, generator.latent_size, generator.num_classes) == ((4, 8, 16), 8, 3)


def test_in_a_session_of_python_it_is_shown_as_what_it_is(run_dir, generator):
    about = "16x16, alpha 0.96875, 96 images, latents of 8 numbers"
    assert repr(generator) == f"<TrainedGenerator {run_dir / 'generator.safetensors'}: {about}, 3 classes>"
    network = Generator(replace(generator.network.architecture, num_classes=0))
    without_file = TrainedGenerator(LoadedGenerator(network, 16, 31 / 32, 96))
    assert repr(without_file) == f"<TrainedGenerator: {about}>"


@pytest.mark.parametrize("seeds", [[3, 4, 5], "3-5", range(3, 6), np.arange(3, 6), (seed for seed in (3, 4, 5))])
def test_seeds_can_be_written_in_many_ways(generator, seeds):
    assert torch.equal(generator.latents(seeds), generator.latents([3, 4, 5]))


def test_pictures_are_those_of_the_latents(generator):
    pictures = generator.sample([7, 8], resolution=8, truncation=0.5, label=2)
    arrays = generator.render(generator.latents([7, 8]), resolution=8, truncation=0.5, label=2)
    assert [picture.size for picture in pictures] == [(8, 8), (8, 8)]
    assert np.array_equal(np.stack([np.asarray(picture) for picture in pictures]), arrays)


def test_a_class_is_found_by_its_number_and_by_its_name(run_dir, generator, labelled_data, tmp_path):
    names = ImagePyramid(labelled_data).class_names
    assert list(generator.class_names) == names
    latents = generator.latents([7])
    wanted = generator.render(latents, label=2)
    for label in ("2", names[2]):
        assert np.array_equal(generator.render(latents, label=label), wanted)
    with pytest.raises(UserError, match=f"Did you mean '{names[2]}'"):
        generator.render(latents, label=names[2] + "x")
    with pytest.raises(UserError, match="label=3"):
        generator.render(latents, label=3)
    out = tmp_path / "one.png"
    assert main(["sample", f"run={run_dir}", "seeds=7", f"label={names[2]}", f"out={out}", "zoom=1", "device=cpu"]) == 0
    assert np.array_equal(np.asarray(Image.open(out)), wanted[0])


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", 3], ["a", "b", "c" * 300]])
def test_a_file_that_names_its_classes_wrongly_is_refused(generator, tmp_path, names):
    save_generator(replace(generator.loaded, class_names=names), path := tmp_path / "generator.safetensors")
    with pytest.raises(UserError, match="not a valid generator"):
        pggan.load(path)


def test_what_is_not_there_is_said(run_dir, generator):
    with pytest.raises(UserError, match="no generator"):
        pggan.load("nowhere")
    with pytest.raises(UserError, match="device=tpu"):
        pggan.load(run_dir, device="tpu")
    with pytest.raises(UserError, match="seeds=x"):
        generator.sample("x")
    with pytest.raises(UserError, match="without classes"):
        pggan.load("pretrained:avatars64", "cpu").sample(1, label=3)


@pytest.mark.slow
def test_the_package_is_imported_without_torch():
    subprocess.run([sys.executable, "-c", "import sys, pggan; sys.exit('torch' in sys.modules)"], check=True)
