"""NumPy files as images, as CelebA-HQ was published."""

from pathlib import Path

import numpy as np
import pytest

from pggan.data import image_file
from pggan.data.image_file import ImageSpec
from pggan.data.planning import Options
from pggan.data.prepare import prepare
from pggan.data.source import disk_file
from tests.data.images import everything, noise, png


def load_image(path, target):
    return image_file.load_image(disk_file(path, path.parent), target)


@pytest.mark.parametrize(
    "array",
    [
        noise(5),
        noise(5).transpose(2, 0, 1),
        noise(5).transpose(2, 0, 1)[None],
        (noise(5).astype(np.uint16) * 257),
        noise(5) / 255,
        np.asfortranarray(noise(5)),
    ],
    ids=["bytes", "channels first", "one of a batch", "16 bits", "floats", "columns first"],
)
def test_numpy_files_are_images(tmp_path, array):
    np.save(tmp_path / "imgHQ00000.npy", array)
    np.testing.assert_array_equal(load_image(tmp_path / "imgHQ00000.npy", ImageSpec(16, 3, "center")), noise(5))


def test_grey_and_transparent_numpy_files_are_converted(tmp_path):
    np.save(tmp_path / "grey.npy", noise(1)[:, :, 0])
    grey = load_image(tmp_path / "grey.npy", ImageSpec(16, 3, "center"))
    np.testing.assert_array_equal(grey, np.repeat(noise(1)[:, :, :1], 3, axis=2))
    np.save(tmp_path / "clear.npy", np.zeros((16, 16, 4), np.uint8))
    assert (load_image(tmp_path / "clear.npy", ImageSpec(16, 3, "center")) == 255).all()


def test_a_celeba_hq_folder_and_an_ffhq_folder_are_prepared_as_they_are(tmp_path):
    celeba, ffhq = tmp_path / "celeba-hq", tmp_path / "ffhq"
    celeba.mkdir()
    for number in range(3):
        np.save(celeba / f"imgHQ{number:05d}.npy", noise(number, 32).transpose(2, 0, 1)[None])
        path = ffhq / "images1024x1024" / f"{number // 2 * 1000:05d}" / f"{number:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number, side=32))
    (ffhq / "LICENSE.txt").write_text("CC BY-NC-SA")
    first, second = (prepare(source, Path(f"{source}-set"), Options()) for source in (celeba, ffhq))
    np.testing.assert_array_equal(everything(first), everything(second))
