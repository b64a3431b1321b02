"""`pggan interpolate`: strips, grids and animations."""

import numpy as np
import pytest
import torch
from PIL import Image

from pggan.cli.main import main
from pggan.config import InterpolateConfig
from pggan.core.validation import validated
from pggan.sampling.interpolate import draw_growing, latents_of_path, perceptual_steps
from pggan.sampling.latents.latents import save_latents, seed_latents
from pggan.sampling.output.images import enlarge, shrink
from tests.composed import composed


def pixels(path):
    return np.asarray(Image.open(path))


def test_a_strip_begins_and_ends_at_its_seeds(run_dir, generator, tmp_path):
    out = tmp_path / "strip.png"
    assert (
        main(["interpolate", f"run={run_dir}", "seeds=[1,5,9]", "frames=5", "zoom=1", f"out={out}", "device=cpu"]) == 0
    )
    picture = pixels(out)
    assert picture.shape == (16, 80, 3)
    ends = generator.render(seed_latents([1, 5, 9], 8))
    for frame, image in ((0, ends[0]), (2, ends[1]), (4, ends[2])):
        assert np.abs(picture[:, frame * 16 : frame * 16 + 16].astype(int) - image).max() <= 1


@pytest.mark.parametrize(
    ("path", "ending", "grid", "size"),
    [
        ("slerp", "png", "3x2", (48, 32)),
        ("lerp", "png", "3x2", (48, 32)),
        ("loop", "webp", "1x2", (16, 32)),
        ("walk", "webp", "1x2", (16, 32)),
    ],
)
def test_every_path_comes_as_picture_or_as_animation(run_dir, tmp_path, path, ending, grid, size):
    out = tmp_path / f"a.{ending}"
    arguments = [
        f"run={run_dir}",
        f"path={path}",
        "frames=6",
        "smoothness=0.5",
        f"grid={grid}",
        "zoom=1",
        f"out={out}",
        "device=cpu",
    ]
    assert main(["interpolate", *arguments]) == 0
    with Image.open(out) as opened:
        assert opened.size == size
        assert getattr(opened, "n_frames", 1) == (1 if ending == "png" else 6)


def test_one_seed_is_enough_for_a_walk_only(run_dir, tmp_path, capsys):
    arguments = ["interpolate", f"run={run_dir}", "seeds=3", f"out={tmp_path / 'a.png'}", "device=cpu"]
    assert main([*arguments, "path=walk"]) == 0
    assert main(arguments) == 2
    assert "at least two" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["run=nowhere"], "no generator"),
        (["path=walk", "smoothness=inf"], "smoothness=inf"),
        (["path=walk", "ease=true"], "no images of ease="),
        (["latents=a.safetensors"], "both say where"),
        (["hold=3", "frames=6"], "hold=3 at 2 images leaves none of frames=6"),
        (["grow_from=5"], "no level for resolution=5"),
        (["grow_from=16", "resolution=8"], "grow_from=16 is more than the 8"),
        (["grid=32x1", "zoom=32", "frames=2"], "frames of 16384x512 pixels are more than the 16383 of such a file"),
    ],
)
def test_slips_of_interpolations_are_refused_and_leave_nothing(run_dir, arguments, hint, capsys, tmp_path):
    out = tmp_path / "new" / "a.webp"
    words = [f"run={run_dir}", "seeds=[1,5]", f"out={out}", "device=cpu", *arguments]
    assert main(["interpolate", *words]) == 2
    assert hint in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.webp"))
    assert not out.parent.exists()


def latents(generator, number, *words):
    config = validated(InterpolateConfig, composed("interpolate", ["run=x", *words]))
    return latents_of_path(config, number, generator, generator.settings())(torch.arange(config.frames))


@pytest.mark.parametrize("path", ["slerp", "loop", "walk"])
def test_path_n_of_a_grid_goes_through_every_seed_plus_a_thousand_n(generator, path):
    words = [f"path={path}", "frames=6", "smoothness=2"]
    here = latents(generator, 2, *words, "seeds=[3,4]")
    assert torch.equal(here, latents(generator, 0, *words, "seeds=[2003,2004]"))
    assert not torch.equal(here, latents(generator, 1, *words, "seeds=[3,4]"))


def test_a_path_goes_through_saved_latents_and_path_n_begins_at_the_nth(generator, tmp_path):
    saved = seed_latents([7, 8, 9], 8)
    save_latents(saved, tmp_path / "a.safetensors", ["a", "b", "c"])
    words = [f"latents={tmp_path / 'a.safetensors'}", "frames=3"]
    torch.testing.assert_close(latents(generator, 0, *words), saved)
    torch.testing.assert_close(latents(generator, 1, *words), saved.roll(-1, 0))


@pytest.mark.parametrize(("path", "frames"), [("slerp", 20), ("loop", 21)])
def test_held_frames_show_the_images_passed_through(generator, path, frames):
    found = latents(generator, 0, "seeds=1,2,3", f"path={path}", f"frames={frames}", "hold=3", "ease=true")
    for key in seed_latents([1, 2, 3], 8):
        assert (found - key).norm(dim=1).lt(1e-5).sum() == 4  # once in passing, and three times more


@pytest.mark.parametrize("path", ["slerp", "loop", "walk"])
def test_at_constant_speed_no_step_is_much_larger_than_the_others(generator, path):
    """As people see it; of a path at equal angles, it is where the image changes fast."""
    frames = 24
    words = ["seeds=1,5,9", f"path={path}", f"frames={frames}"]
    steps = {}
    for speed in ("false", "true"):
        found = latents(generator, 0, *words, f"constant_speed={speed}")
        steps[speed] = perceptual_steps(generator.stream(found, generator.settings()))
    unevenness = {speed: (found.max() / found.median()).item() for speed, found in steps.items()}
    assert unevenness["true"] < unevenness["false"]
    assert unevenness["true"] < 1.5


def test_a_film_grows_from_a_lower_resolution_without_a_jump(generator):
    path = latents_of_path(
        validated(InterpolateConfig, composed("interpolate", ["run=x", "seeds=1,1", "frames=9"])),
        *(0, generator, generator.settings()),
    )
    settings = generator.settings(resolution=16, alpha=1.0)
    frames = np.stack(list(draw_growing(generator, settings, range(9), [path], first=4, frames=9))).astype(int)
    assert frames.shape == (9, 16, 16, 3)
    full = generator.render(seed_latents([1], 8), alpha=1.0)
    for number, factor in ((0, 4), (4, 2), (8, 1)):
        assert np.array_equal(frames[number], enlarge(shrink(full, factor), factor)[0])
    assert np.array_equal(frames[2], np.rint((frames[0] + frames[4]) / 2))
    some = list(draw_growing(generator, settings, [1, 6], [path], first=4, frames=9))
    assert np.array_equal(some, frames[[1, 6]])


def test_without_a_name_the_pictures_of_a_run_are_numbered_and_large_enough(generator, run_dir):
    before = set((run_dir / "samples").glob("interpolation-*"))
    for _ in range(2):
        assert main(["interpolate", f"run={run_dir}", "seeds=1,5", "frames=3", "device=cpu"]) == 0
    made = set((run_dir / "samples").glob("interpolation-*")) - before
    assert len(made) == 2
    assert {pixels(path).shape for path in made} == {(128, 384, 3)}
