from pathlib import Path

import pytest

from tests.data.images import FILES, png, random_images
from tests.pyramids import write_pyramid


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of images, some in folders of their own."""
    for name, seed in FILES.items():
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(seed))
    return tmp_path / "photos"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Five prepared images of 16x16."""
    write_pyramid(tmp_path / "set", random_images(5), {"kind": "test"})
    return tmp_path / "set"
