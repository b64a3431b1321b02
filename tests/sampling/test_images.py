"""Bytes and pixels, asserted."""

import numpy as np
import pytest
import torch
from PIL import Image

from pggan.core.errors import UserError
from pggan.sampling.files import CAPTION_HEIGHT, PAPER, check_output, save_picture, sheet
from pggan.sampling.images import enlarge, save_png, shrink, to_bytes


def test_minus_one_is_black_plus_one_is_white_and_the_rest_is_rounded_and_clipped():
    values = torch.tensor([-3.0, -1.0, 0.0, 1.0, 3.0, -1 + 2 * 7.4 / 255, -1 + 2 * 7.6 / 255])
    pixels = to_bytes(values.reshape(1, 1, 1, -1))
    assert pixels.tolist() == [[[[0], [0], [128], [255], [255], [7], [8]]]]


def test_a_sheet_goes_row_by_row_with_captions_and_leaves_missing_tiles_grey():
    images = [np.full((4, 4, 3), value, np.uint8) for value in (10, 20, 30)]
    picture, height = sheet(images, 2, 2, 32, ["one", "two", "three"]), 32 + CAPTION_HEIGHT
    assert picture.shape == (2 * height, 64, 3)
    assert picture[[0, 0, height, height], [0, 32, 0, 32], 0].tolist() == [10, 20, 30, PAPER]
    assert (picture[32:height] != PAPER).any()
    assert sheet(images, 3, 1, 8).shape == (8, 24, 3)


def test_enlarging_repeats_pixels_and_shrinking_averages_boxes_and_rounds():
    image = np.arange(4, dtype=np.uint8).reshape(1, 2, 2, 1)
    assert enlarge(image, 2)[0, :, :, 0].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]
    image = np.array([[0, 1, 10, 20], [1, 1, 30, 41]], np.uint8).reshape(1, 2, 4, 1)
    assert shrink(image, 2)[0, :, :, 0].tolist() == [[1, 25]]  # 0.75, and 25.25
    assert np.array_equal(shrink(enlarge(image, 3), 3), image)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (4, "RGBA")])
def test_a_png_holds_the_pixels(tmp_path, channels, mode):
    picture = np.random.default_rng(0).integers(0, 256, (5, 7, channels), dtype=np.uint8)
    save_png(picture, tmp_path / "a.png")
    opened = Image.open(tmp_path / "a.png")
    assert opened.mode == mode
    shown = np.asarray(opened).reshape(5, 7, -1)
    assert np.array_equal(shown, picture[:, :, : shown.shape[2]])
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_jpeg_has_the_picture_nearly_and_a_webp_exactly(tmp_path, channels):
    """Even blocks of 8x8 are stored as their mean, in steps of a quarter; Y, Cb and Cr are rounded to integers.

    So blue, Y + 1.772 Cb, is off by less than (0.5 + 0.125) x 2.772 + 0.5 for its own rounding.
    """
    picture = np.random.default_rng(0).integers(0, 256, (4, 6, channels), dtype=np.uint8)
    large = enlarge(picture[None], 8)[0]
    save_picture(large, tmp_path / "a.JPG")
    with Image.open(tmp_path / "a.JPG", formats=["JPEG"]) as opened:
        shown = np.asarray(opened, np.float64).reshape(4, 8, 6, 8, channels).mean((1, 3))
    assert np.abs(shown - picture).max() < 2.3
    save_picture(large, tmp_path / "a.webp")
    with Image.open(tmp_path / "a.webp") as opened:
        assert np.array_equal(np.asarray(opened.convert("RGB")), np.broadcast_to(large, (32, 48, 3)))


def test_what_a_file_can_not_hold_is_refused(tmp_path):
    for name, shape in {"a.jpeg": (2, 2, 4), "b.jpg": (1, 65_501, 1), "c.webp": (1, 16_384, 3)}.items():
        with pytest.raises(UserError, match=f"{name} can't hold these images"):
            save_picture(np.zeros(shape, np.uint8), tmp_path / name)
    with pytest.raises(UserError, match="ending"):
        check_output("faces.tiff", (".png",))
    assert [*tmp_path.iterdir()] == []
