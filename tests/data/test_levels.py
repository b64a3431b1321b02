"""The lower levels against their definition: the exact mean of blocks of the top level, rounded half up."""

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pggan.data.levels import block_sums, rounded_mean
from pggan.data.writer import write_pyramid


def test_a_lower_level_is_the_rounded_mean_of_blocks_of_the_top_level(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)
    pyramid = write_pyramid(tmp_path / "set", images, {})
    for resolution in (4, 8, 16):
        side = 16 // resolution
        expected = np.empty((3, resolution, resolution, 3), np.uint8)
        for number, y, x, channel in np.ndindex(*expected.shape):
            block = images[number, y * side : (y + 1) * side, x * side : (x + 1) * side, channel]
            expected[number, y, x, channel] = math.floor(sum(map(int, block.flat)) / side**2 + 0.5)
        np.testing.assert_array_equal(pyramid.read(resolution, np.arange(3)), expected)


def test_half_rounds_up_and_only_once_over_all_levels(tmp_path):
    image = np.zeros((16, 16, 1), np.uint8)
    image[:4, :4] = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]])[..., None]
    pyramid = write_pyramid(tmp_path / "set", image[None], {})
    assert pyramid.read(4, np.array([0]))[0, 0, 0, 0] == 1  # the mean is 8/16
    image[3, 1] = 0  # now 7/16, although level 8 rounds to 1, 0, 1, 1
    assert write_pyramid(tmp_path / "less", image[None], {}).read(4, np.array([0]))[0, 0, 0, 0] == 0


@given(st.integers(1, 2**16), st.floats(0, 1))
def test_a_rounded_mean_is_exact_for_every_sum(count, fraction):
    total = round(fraction * 255 * count)
    expected = math.floor(Fraction(total, count) + Fraction(1, 2))
    assert rounded_mean(np.array([total], np.uint32), count)[0] == expected


def test_block_sums_of_white_do_not_overflow():
    white = np.full((1024, 1024, 1), 255, np.uint8)
    assert (block_sums(white, 4) == 255 * 256**2).all()
    assert (rounded_mean(block_sums(white, 4), 256**2) == 255).all()
