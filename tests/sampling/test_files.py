"""Pictures, sheets and films as files: their pixels, frames in their order, at their rate."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from pggan.core.errors import UserError
from pggan.sampling.files import CAPTION_HEIGHT, PAPER, save_film, save_picture, sheet
from pggan.sampling.images import enlarge, shrink, to_bytes


def test_minus_one_is_black_plus_one_is_white_and_the_rest_is_rounded_and_clipped():
    values = torch.tensor([-3.0, -1.0, 0.0, 1.0, 3.0, -1 + 2 * 7.4 / 255, -1 + 2 * 7.6 / 255])
    assert to_bytes(values.reshape(1, 1, 1, -1)).tolist() == [[[[0], [0], [128], [255], [255], [7], [8]]]]


def test_enlarging_repeats_pixels_and_shrinking_averages_boxes_and_rounds():
    image = np.arange(4, dtype=np.uint8).reshape(1, 2, 2, 1)
    assert enlarge(image, 2)[0, :, :, 0].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]
    image = np.array([[0, 1, 10, 20], [1, 1, 30, 41]], np.uint8).reshape(1, 2, 4, 1)
    assert shrink(image, 2)[0, :, :, 0].tolist() == [[1, 25]]  # 0.75, and 25.25


def test_a_sheet_goes_row_by_row_with_captions_and_leaves_missing_tiles_black():
    images = [np.full((4, 4, 3), value, np.uint8) for value in (10, 20, 30)]
    picture, height = sheet(images, 2, 8, ["one", "two", "three"]), 32 + CAPTION_HEIGHT
    assert picture.shape == (2 * height, 64, 3)
    assert picture[[0, 0, height, height], [0, 32, 0, 32], 0].tolist() == [10, 20, 30, 0]
    assert PAPER in picture[32:height]
    assert (picture[32:height] < PAPER).any()  # ink


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_picture_is_stored_exactly_and_in_a_jpeg_nearly(tmp_path, channels):
    picture = np.random.default_rng(0).integers(1, 256, (1, 4, 6, channels), dtype=np.uint8)
    picture = enlarge(picture, 8)[0]  # even blocks, as a JPEG stores them
    endings = {".png": 0, ".webp": 0} | ({".JPG": 3} if channels < 4 else {})
    for ending, most in endings.items():
        save_picture(picture, tmp_path / f"a{ending}")
        with Image.open(tmp_path / f"a{ending}") as opened:
            shown = np.asarray(opened.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels]), int).reshape(picture.shape)
        assert np.abs(shown - picture).max() <= most
    assert sorted(path.suffix for path in tmp_path.iterdir()) == sorted(endings)


def test_what_a_file_can_not_hold_is_refused(tmp_path):
    for name, shape in {"a.jpeg": (2, 2, 4), "b.jpg": (1, 65_501, 1), "c.webp": (1, 16_384, 3)}.items():
        with pytest.raises(UserError, match=f"{name} can't hold these images"):
            save_picture(np.zeros(shape, np.uint8), tmp_path / name)
    with pytest.raises(UserError, match=r"d\.webp can't hold these images"):
        save_film([np.zeros((1, 16_384, 3), np.uint8)] * 2, 2, 30, tmp_path / "d.webp")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(("name", "fps"), [("a.gif", 51), ("a.webp", 91)])
def test_a_film_that_browsers_would_show_slowly_or_memory_can_not_hold_is_refused(tmp_path, name, fps):
    frames = np.zeros((2, 8, 8, 3), np.uint8)
    with pytest.raises(UserError, match="fps"):
        save_film(frames, 2, fps, tmp_path / name)
    with pytest.raises(UserError, match="frames"):
        save_film(frames, 2**25, fps - 1, tmp_path / name)
    save_film(frames, 2, fps - 1, tmp_path / name)


@pytest.mark.parametrize(("ending", "channels"), [(".webp", 1), (".webp", 3), (".gif", 3)])
def test_an_animation_has_its_frames_in_order_at_its_rate_for_ever(tmp_path, ending, channels):
    frames = np.empty((5, 8, 6, channels), np.uint8)
    frames[:] = np.array([0, 100, 150, 150, 200], np.uint8)[:, None, None, None]
    save_film(frames, 5, 30, tmp_path / f"a{ending}")
    with Image.open(tmp_path / f"a{ending}") as opened:
        assert (opened.size, opened.info["loop"]) == ((6, 8), 0)
        shown, durations = [], []
        for frame in ImageSequence.Iterator(opened):
            shown.append(np.asarray(frame.convert("RGB")))
            durations.append(frame.info["duration"])
    wanted = frames if len(shown) == 5 else frames[[0, 1, 2, 4]]  # equal ones may be shown as one, for longer
    assert np.abs(np.array(shown, int) - wanted).max() <= (0 if ending == ".gif" else 2)
    assert sum(durations) == pytest.approx(5000 / 30, abs=5)  # hundredths of seconds are the coarsest unit
    assert [path.name for path in tmp_path.iterdir()] == [f"a{ending}"]


def test_what_rests_in_a_gif_does_not_flicker(tmp_path):
    """Though it has more colours than a GIF."""
    frames = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3), np.uint8).repeat(2, 0)
    frames[1, :16] = 0
    save_film(frames, 2, 25, tmp_path / "a.gif")
    with Image.open(tmp_path / "a.gif") as opened:
        first, second = (np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(opened))
    assert np.array_equal(first[16:], second[16:])


def test_a_video_shows_its_frames_almost_without_loss(tmp_path):
    av = pytest.importorskip("av")
    x, y = np.linspace(0, 200, 48) + np.zeros((34, 1)), np.linspace(0, 50, 34)[:, None] + np.zeros(48)
    frames = [np.stack([x + y, 200 - 4 * y, 3 * n + y], 2).clip(0, 255).astype(np.uint8) for n in range(6)]
    save_film(frames, 6, 25, tmp_path / "a.mp4")
    with av.open(str(tmp_path / "a.mp4")) as container:
        stream = container.streams.video[0]
        found = [frame.to_ndarray(format="rgb24") for frame in container.decode(0)]
        assert (stream.average_rate, stream.codec_context.name, len(found)) == (Fraction(25), "h264", 6)
    for frame, shown in zip(frames, found, strict=True):
        square = np.square(shown.astype(float) - frame).mean()
        assert 10 * np.log10(255**2 / square) > 35  # dB
