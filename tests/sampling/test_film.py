"""Films as files: frames in their order, at their rate."""

import sys
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image, ImageSequence

from pggan.core.errors import UserError
from pggan.sampling.files import save_film


def read_video(path):
    av = pytest.importorskip("av")
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(0)]
        return stream.average_rate, stream.codec_context.name, frames


def gradients(count, height, width):
    """Smooth frames that differ, as generated images do."""
    x, y = np.linspace(0, 200, width), np.linspace(0, 50, height)[:, None]
    return [
        np.stack([x + y, x * 0 + 200 - 4 * y, 3 * n + y + 0 * x], 2).clip(0, 255).astype(np.uint8) for n in range(count)
    ]


@pytest.mark.parametrize("ending", [".webp", ".gif"])
@pytest.mark.parametrize("channels", [1, 3])
def test_an_animation_has_its_frames_in_order_at_its_rate_for_ever(tmp_path, ending, channels):
    frames = [np.full((8, 6, channels), value, np.uint8) for value in (0, 100, 150, 150, 200)]
    path = tmp_path / f"a{ending}"
    save_film(frames, 5, 30, path)
    with Image.open(path) as opened:
        assert (opened.size, opened.info["loop"]) == ((6, 8), 0)
        shown, durations = [], []
        for frame in ImageSequence.Iterator(opened):
            shown.append(np.asarray(frame.convert("RGB")))
            durations.append(frame.info["duration"])
    wanted = frames if len(shown) == 5 else [*frames[:3], frames[4]]  # equal ones may be shown as one, for longer
    assert np.array_equal(shown, [np.broadcast_to(frame, (8, 6, 3)) for frame in wanted])
    assert sum(durations) == pytest.approx(5000 / 30, abs=5)  # hundredths of seconds are the coarsest unit
    assert [path.name for path in tmp_path.iterdir()] == [path.name]


def test_a_webp_holds_every_bit_of_noise(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (3, 16, 24, 3), dtype=np.uint8)
    save_film(frames, 3, 30, tmp_path / "a.webp")
    with Image.open(tmp_path / "a.webp") as opened:
        assert np.array_equal([np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(opened)], frames)


def test_a_gif_has_one_palette_and_stores_what_changes(tmp_path):
    still = gradients(1, 64, 64)[0]
    moving = [still.copy() for _ in range(10)]
    for number, frame in enumerate(moving):
        frame[:8, 4 * number : 4 * number + 8] = 255
    save_film(moving, 10, 20, tmp_path / "a.gif")
    save_film(moving[:1], 1, 20, tmp_path / "one.gif")
    size, one = ((tmp_path / name).stat().st_size for name in ("a.gif", "one.gif"))
    assert size < 4 * one  # ten frames of their own, with palettes of their own, would take ten times as much
    with Image.open(tmp_path / "a.gif") as opened:
        for frame, shown in zip(moving, ImageSequence.Iterator(opened), strict=True):
            assert np.abs(np.asarray(shown.convert("RGB")).astype(int) - frame).mean() < 4  # of 255 colours


@pytest.mark.parametrize("size", [(33, 47)])
def test_a_video_shows_its_frames_almost_without_loss(tmp_path, size):
    pytest.importorskip("av")
    frames = gradients(6, *size)
    save_film(frames, 6, 25, tmp_path / "a.mp4")
    rate, codec, found = read_video(tmp_path / "a.mp4")
    assert (rate, codec, len(found)) == (Fraction(25), "h264", 6)
    for frame, shown in zip(frames, found, strict=True):
        height, width = size
        assert shown.shape == (height + height % 2, width + width % 2, 3)
        square = np.square(shown[:height, :width].astype(float) - frame).mean()
        assert 10 * np.log10(255**2 / square) > 35  # dB


def test_a_video_without_its_library_is_refused_before_anything_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UserError, match="PyAV") as refused:
        save_film(iter([]), 1, 30, tmp_path / "a.mp4")
    assert "pggan[video]" in refused.value.remedy
