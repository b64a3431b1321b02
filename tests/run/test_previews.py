"""Grids of a run: how many images, and which."""

from types import SimpleNamespace

import pytest

from pggan.run.previews import MAX_GRID, grid_shape


@pytest.mark.parametrize(
    ("grid", "resolution", "shape"),
    [
        ("8x4", 4, (8, 4)),  # drawn at 128
        ("8x4", 256, (8, 4)),
        ("8x4", 512, (4, 4)),
        ("8x4", 1024, (2, 2)),
        ("3x2", 1024, (2, 2)),
        ("1x9", 1024, (1, 4)),
        ("8x4", 4096, (1, 1)),
    ],
)
def test_grids_have_fewer_images_where_these_are_large(grid, resolution, shape):
    assert grid_shape(SimpleNamespace(grid=grid), resolution, 4096) == shape
    columns, rows = shape
    assert columns * rows * max(resolution, 128) ** 2 <= max(MAX_GRID, resolution**2)
