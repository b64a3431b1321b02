"""`pggan interpolate`: strips, grids and animations."""

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from pggan.cli.main import main
from pggan.sampling.commands import visible_steps
from pggan.sampling.generate import seed_latents
from pggan.sampling.latents import path_through, save_vectors, steady_walk


def test_a_strip_begins_and_ends_at_its_seeds(run_dir, generator, tmp_path):
    out = tmp_path / "strip.png"
    arguments = ["seeds=[1,5,9]", "frames=5", "zoom=1", f"out={out}", "device=cpu"]
    assert main(["interpolate", f"run={run_dir}", *arguments]) == 0
    picture = np.asarray(Image.open(out))
    assert picture.shape == (16, 80, 3)
    ends = generator.render(seed_latents([1, 5, 9], 8))
    for frame, image in ((0, ends[0]), (2, ends[1]), (4, ends[2])):
        assert np.abs(picture[:, frame * 16 : frame * 16 + 16].astype(int) - image).max() <= 1


@pytest.mark.parametrize(
    ("path", "ending", "grid", "size"),
    [
        ("lerp", "png", "3x2", (48, 32)),
        ("loop", "webp", "1x2", (16, 32)),
        ("walk", "gif", "1x2", (16, 32)),
    ],
)
def test_every_path_comes_as_picture_or_as_animation(run_dir, tmp_path, path, ending, grid, size):
    out = tmp_path / f"a.{ending}"
    arguments = [f"path={path}", "frames=6", f"grid={grid}", "zoom=1", f"out={out}", "device=cpu"]
    assert main(["interpolate", f"run={run_dir}", *arguments]) == 0
    with Image.open(out) as opened:
        assert opened.size == size
        assert getattr(opened, "n_frames", 1) <= (1 if ending == "png" else 6)  # a walk hardly moves in six frames


def test_path_n_of_a_film_goes_through_every_seed_plus_a_thousand_n(run_dir, tmp_path):
    words = ["interpolate", f"run={run_dir}", "path=loop", "frames=2", "zoom=1", "device=cpu"]
    assert main([*words, "seeds=3,4", "grid=2x1", f"out={tmp_path / 'grid.webp'}"]) == 0
    assert main([*words, "seeds=1003,1004", f"out={tmp_path / 'second.webp'}"]) == 0
    both, second = (np.asarray(Image.open(tmp_path / name).convert("RGB")) for name in ("grid.webp", "second.webp"))
    assert np.array_equal(both[:, 16:], second)
    assert not np.array_equal(both[:, :16], second)


def test_a_path_goes_through_saved_latents_and_path_n_begins_at_the_nth(generator, tmp_path):
    saved = seed_latents([7, 8, 9], 8)
    save_vectors("latents", saved, tmp_path / "a.safetensors", {})
    for number in (0, 1):
        keyframes, _ = generator.keyframes(None, str(tmp_path / "a.safetensors"), number)
        torch.testing.assert_close(keyframes, saved.roll(-number, 0))


@pytest.mark.parametrize("kind", ["slerp", "loop", "walk"])
def test_at_constant_speed_no_step_is_much_larger_than_the_others(generator, kind):
    """As people see it; of a path at equal angles, it is where the image changes fast."""
    measure, unevenness = partial(visible_steps, generator, generator.settings()), []
    for steps in (None, measure):
        if kind == "walk":
            latents = steady_walk(1, 8, 24, steps)
        else:
            latents = path_through(seed_latents([1, 5, 9], 8), kind, 24, steps)
        found = measure(latents)
        unevenness.append((found.max() / found.median()).item())
    assert unevenness[1] < unevenness[0]
    assert unevenness[1] < 1.5


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["seeds=3"], "at least two"),
        (["path=walk", "seeds=null", "latents=a.safetensors"], "no images of latents="),
        (["latents=a.safetensors"], "both say what"),
    ],
)
def test_slips_of_interpolations_are_refused_and_leave_nothing(run_dir, arguments, hint, capsys, tmp_path):
    out = tmp_path / "new" / "a.webp"
    words = [f"run={run_dir}", "seeds=[1,5]", f"out={out}", "device=cpu", *arguments]
    assert main(["interpolate", *words]) == 2
    assert hint in capsys.readouterr().err
    assert not out.parent.exists()
