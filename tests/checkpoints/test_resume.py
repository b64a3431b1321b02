"""Where a run starts, which changes are refused then, and which networks another run's weights fit."""

from dataclasses import replace

import pytest
import torch

from pggan.checkpoints.read import newest_checkpoint
from pggan.checkpoints.resume import find_resume_point, load_weights, taken_over
from pggan.core.architecture import Resampling, Stem
from pggan.core.errors import UserError
from pggan.networks.networks import Discriminator, Generator, initialize

# Other values of fields in which two runs' networks may differ.
SAME_KIND = {"resolution": 32, "channels": 1, "num_classes": 3, "bilateral": 4, "stem": Stem.unit_bias}


@pytest.fixture(scope="module")
def checkpoint(finished_run):
    found, _ = newest_checkpoint(finished_run)
    return found


@pytest.mark.parametrize("place", ["", "generator.safetensors"])
def test_weights_of_networks_of_another_kind_are_refused_with_what_differs(finished_run, checkpoint, place):
    for field, value in (("fmap_max", 4), ("resampling", Resampling.unfused)):
        ours, before = replace(checkpoint.architecture, **{field: value}), getattr(checkpoint.architecture, field)
        with pytest.raises(UserError) as caught:
            load_weights(str(finished_run / place), ours)
        assert caught.value.problem.endswith(f" fit the networks of this run ({field}: {before} -> {value}).")
        assert f"model.{field}={getattr(before, 'value', before)}" in caught.value.remedy


def test_weights_of_networks_that_differ_in_anything_else_are_taken(finished_run, checkpoint):
    found, _ = load_weights(str(finished_run), replace(checkpoint.architecture, **SAME_KIND))
    assert set(found) == {"generator", "discriminator", "generator_ema"}
    alone, stem = load_weights(str(finished_run / "generator.safetensors"), checkpoint.architecture)
    assert set(alone) == {"generator", "generator_ema"}  # G begins as its average, too
    assert stem is Stem.official


def adapted(kind, architecture, **changes):
    """A network, and a network of another architecture with its weights."""
    theirs, ours = kind(architecture), kind(replace(architecture, **changes))
    initialize(theirs, 0, "theirs")
    initialize(ours, 1, "ours")
    own, values = ours.state_dict(), theirs.state_dict()
    ours.load_state_dict({name: taken_over(name, own[name], values[name]) for name in own})
    return theirs, ours


@pytest.mark.parametrize(("channels", "others"), [(3, 1), (1, 3)])
def test_networks_for_grey_and_for_colour_take_over_each_other(checkpoint, channels, others):
    architecture = replace(checkpoint.architecture, channels=channels)
    grey = torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    theirs, ours = adapted(Discriminator, architecture, channels=others)
    scores = [network(grey.expand(-1, count, -1, -1), 16)[0] for network, count in ((theirs, channels), (ours, others))]
    torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-4)
    theirs, ours = adapted(Generator, architecture, channels=others)
    latents = torch.randn(2, architecture.latent_size, generator=torch.Generator().manual_seed(1))
    drawn = [network(latents, None, 16).mean(1) for network in (theirs, ours)]
    torch.testing.assert_close(*drawn, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("before", [0, 5])
def test_other_classes_keep_the_score_and_the_part_for_latents(checkpoint, before):
    architecture = replace(checkpoint.architecture, num_classes=before)
    theirs, ours = adapted(Discriminator, architecture, num_classes=3)
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(theirs(images, 16)[0], ours(images, 16)[0])
    theirs, ours = adapted(Generator, architecture, num_classes=3)
    size = checkpoint.architecture.latent_size
    assert torch.equal(ours.stem.dense.weight[:, :size], theirs.stem.dense.weight[:, :size])
    assert taken_over("blocks.8.conv.weight", torch.zeros(2, 2), torch.zeros(3, 2)) is None


def test_a_run_goes_on_at_its_newest_checkpoint_alone(run_dir):
    folder = run_dir / "checkpoints"
    for resume in ("auto", run_dir, folder / "000000160"):
        assert find_resume_point(str(resume), run_dir)[0].images == 160
    refused = {folder / f"{images:09d}": f"{images} is not the newest checkpoint" for images in (64, 128)}
    for resume, problem in (refused | {"never": "resume=never does not allow"}).items():
        with pytest.raises(UserError, match=problem):
            find_resume_point(str(resume), run_dir)
