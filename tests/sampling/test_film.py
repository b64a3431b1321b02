"""Films as files: frames in their order, at their rate, drawn one at a time."""

import sys
import weakref
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image

from pggan.core.errors import UserError
from pggan.sampling.output import film as films
from pggan.sampling.output import webp
from pggan.sampling.output.film import ANIMATED, VIDEO, Film, automatic_zoom, require_encoder, require_size
from pggan.sampling.output.film_file import save_film
from pggan.sampling.output.gif import SAMPLED_FRAMES

PICTURES = [ending for ending in ANIMATED if ending not in VIDEO]


def film_of(frames, fps=20):
    return Film(len(frames), fps, lambda numbers: (frames[number] for number in numbers))


def read_video(path):
    av = pytest.importorskip("av")
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return (
            stream.average_rate,
            stream.codec_context.name,
            [f.to_ndarray(format="rgb24") for f in container.decode(0)],
        )


def gradients(count, height, width):
    """Smooth frames that differ, as generated images do."""
    x, y = np.linspace(0, 200, width), np.linspace(0, 50, height)[:, None]
    return [
        np.stack([x + y, x * 0 + 200 - 4 * y, 3 * n + y + 0 * x], 2).clip(0, 255).astype(np.uint8) for n in range(count)
    ]


@pytest.mark.parametrize("ending", [*PICTURES, ".WEBP"])
@pytest.mark.parametrize("channels", [1, 3])
def test_an_animation_has_its_frames_in_order_at_its_rate_for_ever(tmp_path, ending, channels):
    frames = [np.full((8, 6, channels), value, np.uint8) for value in (0, 100, 150, 200)]
    path = tmp_path / f"a{ending}"
    save_film(film_of(frames, fps=30), path)
    with Image.open(path) as opened:
        assert opened.n_frames == 4
        assert opened.size == (6, 8)
        assert opened.info["loop"] == 0
        shown = []
        for number, frame in enumerate(frames):
            opened.seek(number)
            opened.load()
            shown.append(opened.info["duration"])
            assert np.array_equal(np.asarray(opened.convert("RGB")), np.broadcast_to(frame, (8, 6, 3)))
    assert sum(shown) == pytest.approx(4000 / 30, abs=5)  # hundredths of seconds are the coarsest unit
    assert [path.name for path in tmp_path.iterdir()] == [path.name]


def test_lossless_animations_hold_every_bit_of_noise(tmp_path):
    frames = list(np.random.default_rng(0).integers(0, 256, (3, 16, 24, 3), dtype=np.uint8))
    for ending in (".webp", ".apng"):
        save_film(film_of(frames), tmp_path / f"a{ending}")
        with Image.open(tmp_path / f"a{ending}") as opened:
            for number, frame in enumerate(frames):
                opened.seek(number)
                assert np.array_equal(np.asarray(opened.convert("RGB")), frame)


def test_a_gif_has_one_palette_and_stores_what_changes(tmp_path):
    still = gradients(1, 64, 64)[0]
    moving = [still.copy() for _ in range(10)]
    for number, frame in enumerate(moving):
        frame[:8, 4 * number : 4 * number + 8] = 255
    save_film(film_of(moving), tmp_path / "a.gif")
    save_film(film_of(moving[:1]), tmp_path / "one.gif")
    size, one = ((tmp_path / name).stat().st_size for name in ("a.gif", "one.gif"))
    assert size < 2 * one  # ten frames of their own, with palettes of their own, would take ten times as much
    with Image.open(tmp_path / "a.gif") as opened:
        for number, frame in enumerate(moving):
            opened.seek(number)
            error = np.abs(np.asarray(opened.convert("RGB")).astype(int) - frame)
            assert error.mean() < 4  # of 255 colours


@pytest.mark.parametrize("ending", VIDEO)
@pytest.mark.parametrize("size", [(32, 48), (33, 47)])
def test_a_video_shows_its_frames_almost_without_loss(tmp_path, ending, size):
    pytest.importorskip("av")
    frames = gradients(6, *size)
    save_film(film_of(frames, fps=25), tmp_path / f"a{ending}")
    rate, codec, found = read_video(tmp_path / f"a{ending}")
    assert rate == Fraction(25)
    assert codec == {".mp4": "h264", ".webm": "vp9"}[ending]
    assert len(found) == 6
    for frame, shown in zip(frames, found, strict=True):
        height, width = size
        assert shown.shape == (height + height % 2, width + width % 2, 3)
        square = np.square(shown[:height, :width].astype(float) - frame).mean()
        assert 10 * np.log10(255**2 / square) > 35  # dB


@pytest.mark.parametrize("ending", ANIMATED)
def test_frames_are_drawn_one_at_a_time(tmp_path, ending):
    """Those of a long film are gone when they are encoded: a few at a time are alive, however many there are."""
    if ending in VIDEO:
        pytest.importorskip("av")
    alive, most = set(), 0

    def draw(numbers):
        nonlocal most
        for number in numbers:
            frame = np.full((16, 16, 3), number % 251, np.uint8)
            key = object()
            alive.add(key)
            weakref.finalize(frame, alive.discard, key)
            most = max(most, len(alive))
            yield frame

    save_film(Film(200, 30, draw), tmp_path / f"a{ending}")
    assert most <= SAMPLED_FRAMES if ending == ".gif" else most <= 4


@pytest.mark.parametrize("ending", PICTURES)
def test_what_is_encoded_is_on_disk_while_later_frames_are_drawn(tmp_path, ending):
    random, sizes = np.random.default_rng(0), []

    def draw(numbers):
        for _ in numbers:
            sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
            yield random.integers(0, 256, (32, 32, 3), dtype=np.uint8)

    save_film(Film(200, 30, draw), tmp_path / f"a{ending}")
    assert sizes[-1] > 0.9 * (tmp_path / f"a{ending}").stat().st_size  # the rest is in the file's buffer


def test_a_webp_stores_the_rectangle_that_changes(tmp_path):
    """Anywhere, of one pixel, of none, and with transparency."""
    random = np.random.default_rng(0)
    frames = [random.integers(0, 256, (33, 21, 4), dtype=np.uint8)]
    for top, bottom, left, right in ((0, 33, 0, 21), (32, 33, 20, 21), (3, 6, 5, 20), (0, 0, 0, 0), (1, 2, 1, 2)):
        frames.append(frames[-1].copy())
        frames[-1][top:bottom, left:right] = random.integers(0, 256, (bottom - top, right - left, 4))
    save_film(film_of(frames), tmp_path / "a.webp")
    save_film(film_of(frames[:2]), tmp_path / "two.webp")
    with Image.open(tmp_path / "a.webp") as opened:
        assert opened.n_frames == len(frames)
        for number, frame in enumerate(frames):
            opened.seek(number)
            shown = np.asarray(opened)
            seen = frame[:, :, 3:] > 0  # the colour of what is fully transparent is free
            assert np.array_equal(shown * seen, frame * seen)
    size, two = ((tmp_path / name).stat().st_size for name in ("a.webp", "two.webp"))
    assert size < 1.5 * two


def test_a_webp_beyond_its_largest_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(webp, "MAX_BYTES", 5000)
    frames = list(np.random.default_rng(0).integers(0, 256, (9, 32, 32, 3), dtype=np.uint8))
    with pytest.raises(UserError, match="4 GiB"):
        save_film(film_of(frames), tmp_path / "a.webp")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", VIDEO)
def test_a_video_without_its_library_is_refused_with_the_remedy(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(films, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="PyAV") as refused:
        require_encoder(tmp_path / f"a{ending}")
    assert "pggan[video]" in refused.value.remedy
    require_encoder(tmp_path / "a.webp")


def test_pictures_and_sizes_are_known_before_anything_is_drawn(tmp_path):
    require_size(tmp_path / "a.webp", 16_383, 4)
    with pytest.raises(UserError, match="16384x4 pixels are more than the 16383"):
        require_size(tmp_path / "a.webp", 16_384, 4)
    assert "av" not in vars(sys.modules["pggan.sampling.output.video"])  # imported when a video is written


@pytest.mark.parametrize(("size", "factor"), [((32, 32), 16), ((128, 64), 4), ((300, 20), 1), ((1024, 1024), 1)])
def test_small_films_are_enlarged_to_what_is_worth_looking_at(size, factor):
    assert automatic_zoom(*size) == factor


@pytest.mark.parametrize("fps", [1, 24, 30, 60, 1000])
def test_rounded_durations_add_up(fps):
    durations = Film(7 * fps, fps, lambda numbers: iter(())).durations(100)
    assert sum(durations) == 700
    assert max(durations) - min(durations) <= 1
