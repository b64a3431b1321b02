"""`pggan sample`, `interpolate`, `project`, `directions` and `timelapse`: what they write, and what they refuse."""

import sys
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from pggan.cli.main import main
from pggan.sampling.files import film_of
from pggan.sampling.generate import seed_latents
from pggan.sampling.images import FOLDER, enlarge, grid, grids_in
from pggan.sampling.latents import (
    load_direction,
    load_vectors,
    move,
    on_sphere,
    path_through,
    principal_directions,
    save_vectors,
)
from pggan.sampling.projection import read_target


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB"))


def frames_of(path):
    with Image.open(path) as film:
        return [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(film)]


def off(shown, expected):
    """How far a film, which loses what people don't see, is from what was drawn: a mean over all pixels."""
    return np.abs(np.asarray(shown, int) - expected).mean()


@pytest.fixture
def draw(run_dir):
    """Run a command on the run; it must succeed."""

    def command(*words):
        assert main([words[0], f"run={run_dir}", "device=cpu", *words[1:]]) == 0

    return command


def test_sample_writes_a_grid_of_the_seeds_in_order(draw, generator, tmp_path, capsys):
    out = tmp_path / "new" / "faces.png"
    draw("sample", "seeds=[3,1,4]", "grid=2x2", f"out={out}", "zoom=2")
    assert "3 images at 16x16" in capsys.readouterr().out
    expected = generator.render(seed_latents([3, 1, 4], 8)).repeat(2, 1).repeat(2, 2)
    rows = [np.concatenate(expected[:2], 1), np.concatenate([expected[2], np.zeros_like(expected[2])], 1)]
    assert np.array_equal(pixels(out), np.concatenate(rows))


def test_sample_writes_one_file_per_seed_into_a_directory(draw, generator, tmp_path):
    draw("sample", "seeds=7-9", "label=2", f"out={tmp_path / 'faces'}")
    assert sorted(path.name for path in (tmp_path / "faces").iterdir()) == [f"seed-00000{n}.png" for n in (7, 8, 9)]
    expected = generator.render(seed_latents([8], 8), label=2)[0]
    assert np.array_equal(pixels(tmp_path / "faces" / "seed-000008.png"), expected)


def test_without_a_place_each_sheet_is_a_new_file_in_the_run(draw, run_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        draw("sample", "seeds=1,2")
        assert pixels(run_dir / "samples" / f"sample-00{number}.png").shape == (128, 256, 3)
    assert list(tmp_path.iterdir()) == []


def test_files_of_latents_are_drawn_at_several_strengths_of_a_direction(draw, generator, tmp_path):
    latents, directions = seed_latents([5, 6], 8), principal_directions(generator.network, 3, 0)
    for number in (0, 1):
        save_vectors("latents", latents[number : number + 1], tmp_path / f"{number}.safetensors", {})
    save_vectors("directions", directions, tmp_path / "d.safetensors", {})
    files = f"{tmp_path / '0.safetensors'},{tmp_path / '1.safetensors'}"
    words = [f"latents={files}", f"direction={tmp_path / 'd.safetensors'}:1", "strength=-2,0,2", "zoom=1"]
    draw("sample", *words, f"out={tmp_path / 'a.png'}")
    rows = [
        np.concatenate([generator.render(move(latents[row : row + 1], directions[0], by))[0] for by in (-2, 0, 2)], 1)
        for row in (0, 1)
    ]
    assert np.array_equal(pixels(tmp_path / "a.png"), np.concatenate(rows))
    draw("sample", *words, f"out={tmp_path / 'files'}")
    assert np.array_equal(pixels(tmp_path / "files" / "latent-000001-2.png"), rows[1][:, :16])


def test_a_strip_begins_and_ends_at_its_seeds(draw, generator, tmp_path):
    draw("interpolate", "seeds=[1,5,9]", "frames=5", "zoom=1", f"out={tmp_path / 'strip.png'}")
    picture = pixels(tmp_path / "strip.png")
    assert picture.shape == (16, 80, 3)
    for frame, image in zip((0, 2, 4), generator.render(seed_latents([1, 5, 9], 8)), strict=True):
        assert np.abs(picture[:, frame * 16 : frame * 16 + 16].astype(int) - image).max() <= 1


@pytest.mark.parametrize(
    ("path", "ending", "grid", "size"),
    [("lerp", "png", "3x2", (48, 32)), ("loop", "webp", "1x2", (16, 32)), ("walk", "gif", "1x2", (16, 32))],
)
def test_every_path_comes_as_picture_or_as_animation(draw, tmp_path, path, ending, grid, size):
    draw("interpolate", f"path={path}", "frames=6", f"grid={grid}", "zoom=1", f"out={tmp_path / f'a.{ending}'}")
    with Image.open(tmp_path / f"a.{ending}") as opened:
        assert opened.size == size
        assert getattr(opened, "n_frames", 1) == (1 if ending == "png" else 6)


def test_path_n_of_a_film_goes_through_every_seed_plus_a_thousand_n_or_begins_at_the_nth_latent(draw, tmp_path):
    save_vectors("latents", seed_latents([3, 4], 8), tmp_path / "a.safetensors", {})
    save_vectors("latents", seed_latents([4, 3], 8), tmp_path / "b.safetensors", {})
    names = [f"latents={tmp_path / name}.safetensors" for name in "ab"]
    for given, of_the_second in (("seeds=3,4", "seeds=1003,1004"), names):
        words = ["interpolate", "path=loop", "frames=2", "zoom=8"]
        draw(*words, given, "grid=2x1", f"out={tmp_path / 'grid.webp'}")
        draw(*words, of_the_second, f"out={tmp_path / 'second.webp'}")
        both, second = pixels(tmp_path / "grid.webp"), pixels(tmp_path / "second.webp")
        assert off(both[:, 128:], second) < 2 < off(both[:, :128], second)


def test_a_film_has_the_frames_of_its_path_at_constant_speed(draw, generator, tmp_path):
    """As people see it, no step is much larger than the others; of a path at equal times, some are."""
    draw("interpolate", "seeds=1,5,9", "frames=24", "zoom=8", f"out={tmp_path / 'a.webp'}")
    measure, unevenness = partial(generator.visible_steps, generator.settings()), []
    for distances in (None, measure):
        path = path_through(seed_latents([1, 5, 9], 8), "slerp", 24, distances)
        steps = measure(path)
        unevenness.append((steps.max() / steps.median()).item())
    assert unevenness[1] < min(unevenness[0], 1.5)
    assert off(frames_of(tmp_path / "a.webp"), enlarge(generator.render(path), 8)) < 6


def test_project_writes_what_other_commands_read(draw, generator, tmp_path, capsys):
    pictures = [tmp_path / "a.png", tmp_path / "b.png"]
    for seed, path in enumerate(pictures):
        generator.sample([seed])[0].resize((40, 32)).save(path)
    images, out = ",".join(map(str, pictures)), tmp_path / "found"
    draw("project", f"image={images}", f"out={out}", "steps=3")
    assert "PSNR" in capsys.readouterr().out
    assert b"/compositeWithTrained" in (out / "projection.png").read_bytes()
    assert load_vectors("latents", out / "latents.safetensors", 8).shape == (2, 8)
    picture = pixels(out / "projection.png")
    zoom = picture.shape[1] // 32  # of an image and its reconstruction, in two rows with captions
    assert np.array_equal(picture[16 * zoom + 16 : -16 : zoom, : 16 * zoom : zoom], read_target(pictures[1], 16, 3))


@pytest.mark.parametrize("mode", ["L", "RGBA", "PA", "I", "I;16", "F", "CMYK", "YCbCr", "HSV"])
def test_a_pil_picture_of_any_mode_is_read_upright(mode):
    picture = Image.new("L", (4, 4), "white")
    picture.paste("black", (0, 0, 4, 2))
    picture = picture.convert("I").point(lambda grey: grey * 257) if "I" in mode else picture
    picture = picture.convert(mode)
    picture.getexif()[274] = 6  # EXIF's Orientation: the top is on the right
    assert read_target(picture, 4, 1)[0, :, 0].tolist() == [255, 255, 0, 0]


def test_a_generated_image_is_found_again(generator):
    target = generator.sample([1500])[0]  # none of the candidates
    found = generator.project(target, steps=100)
    assert found.psnr >= 30
    assert found.psnr == pytest.approx(20 * np.log10(255 / np.sqrt(np.square(found.image - np.float64(target)).mean())))
    assert np.array_equal(generator.render(found.latent[None])[0], found.image)
    assert torch.allclose(found.latent[None], on_sphere(found.latent[None]))


def test_directions_are_written_with_a_sheet_of_them(draw, generator, tmp_path):
    out = tmp_path / "found" / "d.safetensors"
    draw("directions", "seeds=7,8", "count=2", f"out={out}")
    direction = load_direction(f"{out}:2", 8)
    assert float(direction.norm()) == pytest.approx(1)
    picture = pixels(out.with_suffix(".png"))
    side = picture.shape[1] // 7
    row = picture[-(side + 16) : -16 : side // 16, :: side // 16]  # the last of direction 2: seed 8
    assert np.array_equal(row[:, -16:], generator.render(move(generator.latents(8), direction, 3.0))[0])


def test_a_timelapse_shows_images_evenly_and_grows_from_4x4_to_the_end_at_one_size(run_dir, generator, tmp_path):
    grids = grids_in(run_dir / "samples" / FOLDER)
    counts, last = [facts.images for facts in grids.values()], [*grids.values()][-1]
    assert counts == sorted(counts)
    found = list(film_of(grids, 20))
    for frame, time in zip(found, np.linspace(counts[0], counts[-1], 20), strict=True):
        stored = pixels([path for path, facts in grids.items() if facts.images <= time][-1])
        factor = 512 // len(stored)
        assert frame.shape == (512 + 32, 512, 3)
        assert np.array_equal(frame[:512:factor, :512:factor], stored)
    assert np.array_equal(found[0][:512], enlarge(found[0][None, :512:32, ::32], 32)[0])  # pixels of 4x4
    drawn = [generator.render(generator.latents([n]), alpha=last.alpha, label=n % 3)[0] for n in range(16)]
    # The run draws in batches, whose last bit can differ from images that are drawn one by one.
    assert np.abs(found[-1][:512].astype(int) - grid(enlarge(np.stack(drawn), 8), 4)).max() <= 1
    assert len({frame[512:].tobytes() for frame in found}) > 5  # the stamp changes
    assert main(["timelapse", f"run={run_dir}", "seconds=2", "fps=10", f"out={tmp_path / 'a.webp'}"]) == 0
    with Image.open(tmp_path / "a.webp") as film:
        assert sum(frame.info["duration"] for frame in ImageSequence.Iterator(film) if frame.load()) == 2000
        assert off(film.convert("RGB"), found[-1]) < 6


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("sample seeds=x", "seeds="),
        (f"sample out={__file__}/a.png", "a.png can't be written: Not a directory"),
        ("sample out=/proc/faces.png", "/proc/faces.png can't be written"),
        ("sample out=faces.tiff", "does not end in"),
        ("sample resolution=64", "4, 8, 16"),
        ("sample zoom=100000", "lower zoom="),
        ("sample seeds=0-15 grid=8x1", "at least 16 cells"),
        ("interpolate grid=4x2", "at least 9 cells"),
        ("sample direction=d.safetensors:3", "from 1 to 2"),
        ("interpolate seeds=3", "at least two"),
        ("interpolate out=new/a.mp4", "pggan[video]"),
        ("interpolate path=walk latents=a.safetensors", "random walk"),
        ("project image=missing.png", "No such file"),
        ("project image=text.png", "not a PNG, JPEG, WebP or AVIF"),
        ("project image=small.png", "smaller than 16x16"),
        ("directions method=weights", "Leave it out"),
        ("directions out=d.png", ".safetensors"),
        ("timelapse run=nowhere", "no grids"),
        ("timelapse fps=0", "fps=0"),
    ],
)
def test_slips_are_refused_with_advice_and_leave_nothing(run_dir, words, hint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "av", None)
    if "project" in words:
        (tmp_path / "text.png").write_text("a photo")
        Image.new("RGB", (8, 8)).save(tmp_path / "small.png")
    save_vectors("directions", torch.eye(2, 8), tmp_path / "d.safetensors", {})
    before = sorted(tmp_path.iterdir())
    command, *arguments = words.split()
    given = [f"run={run_dir}", f"out=new/a.{'webp' if command == 'timelapse' else 'png'}"]
    assert main([command, *given, *arguments]) == 2
    assert hint in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
