"""What tests of data start from: images of noise, folders and archives of them, and damaged indexes."""

import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from pggan.data.data_sets import open_source
from pggan.data.prepare import Options, prepare

FILES = {"b/1.png": 0, "a.png": 1, "c/d/e.png": 2, "b/0.png": 3}  # with the seeds of their images


def noise(seed, side=16, channels=3):
    """An image [side, side, channels]."""
    return np.random.default_rng(seed).integers(0, 256, (side, side, channels), np.uint8)


EXPECTED = np.stack([noise(seed) for seed in (1, 3, 0, 2)])  # of FILES: a, b/0, b/1, c/d/e


def random_images(count, resolution=16, channels=3, seed=0):
    """Images [count, resolution, resolution, channels]."""
    return np.random.default_rng(seed).integers(0, 256, (count, resolution, resolution, channels), np.uint8)


def png(seed, **options):
    content = io.BytesIO()
    Image.fromarray(noise(seed, **options).squeeze()).save(content, "PNG")
    return content.getvalue()


def save(path, seed, **options):
    """Write an image of noise as a PNG file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(seed, **options))


def cut(path):
    """Keep half of a file's bytes: its header tells nothing then, its pixels do."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def prepared(source, destination, workers=1, **options):
    """The pyramid at `destination`, made of a path or a source in this process."""
    source = open_source(str(source)) if isinstance(source, Path) else source
    return prepare(source, destination, Options(**options), workers)


def write_tar(path, files):
    mode = {".gz": "w:gz", ".tgz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as archive:
        for name, content in files:
            member = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_zip(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files:
            archive.writestr(name, content)
    return path


def everything(pyramid):
    """All images of a pyramid, at its highest resolution."""
    return pyramid.read(pyramid.resolution, np.arange(pyramid.images))


def edit_index(dataset, **changes):
    index = json.loads((dataset / "index.json").read_text())
    index.update(changes)
    (dataset / "index.json").write_text(json.dumps(index))
