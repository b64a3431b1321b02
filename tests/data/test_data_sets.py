"""Finding a data set: folders, known sets on small local copies in torchvision's own formats, and drawn faces."""

import os
import pickle
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from pggan.core.errors import UserError
from pggan.data import data_sets
from pggan.data.data_sets import BACKGROUNDS, avatars, open_source
from pggan.data.image_file import load_image, read_header
from tests.data.images import noise, png, prepared, save


def test_hidden_and_other_files_and_linked_folders_are_passed_over(folder, tmp_path):
    save(tmp_path / "elsewhere" / "f.png", 0)
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    save(folder / ".cache" / "g.png", 0)
    save(folder / "._a.png", 0)
    save(folder / "z.PNG", 0)
    (folder / "notes.txt").write_text("not an image")
    names = ["a.png", "b/0.png", "b/1.png", "c/d/e.png", "z.PNG"]
    source = open_source(str(folder))
    assert [entry.name for entry in source.entries] == names
    assert source.others == {".txt": 1, "links to folders (cp -rL copies their files)": 1}


def test_a_folder_that_can_not_be_read_is_named(folder, monkeypatch, request):
    monkeypatch.chdir(folder)
    (folder / "c" / "d").chmod(0)
    request.addfinalizer(lambda: os.seteuid(os.getuid()))
    os.seteuid(os.getuid() or 65534)  # root could read it
    with pytest.raises(UserError, match=r"The folder \./c/d can't be read: Permission denied\.\n.* chmod"):
        open_source(".")


def test_file_names_may_be_any_bytes(tmp_path):
    (tmp_path / "photos").mkdir()
    for number, name in enumerate([b"\xff\xfe.png", "Käse 画.png".encode(), b"new\nline.png", b"bad\xff.png"]):
        content = b"" if name.startswith(b"bad") else png(number)
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path / "photos"), name))).write_bytes(content)
    for _ in range(2):
        pyramid = prepared(tmp_path / "photos", tmp_path / "set")
        assert (pyramid.images, pyramid.source["bad_images"]) == (3, 1)


def test_a_prepared_pyramid_is_no_source(folder, tmp_path):
    pyramid = prepared(folder, tmp_path / "set")
    with pytest.raises(UserError, match="is prepared already") as refused:
        open_source(str(pyramid.path))
    assert refused.value.remedy == f"Train on it: pggan train data.path={pyramid.path}"


# ---- known sets: nothing is downloaded


def test_fashion_mnist(tmp_path):
    raw = tmp_path / "downloads" / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    pixels = np.stack([noise(seed, side=28, channels=1) for seed in range(3)])
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, 3, 28, 28) + pixels.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 3) + bytes([7, 1, 7]))
    source = open_source("torchvision:fashion_mnist", tmp_path)
    pyramid = prepared(source, tmp_path / "set", labels=True)
    assert (pyramid.images, pyramid.channels, pyramid.resolution) == (3, 1, 16)
    assert (pyramid.class_names, pyramid.labels.tolist()) == (["Sneaker", "Trouser"], [0, 1, 0])
    sent = pickle.dumps(source.entries[2])  # as to another process: where to find it, not the set itself
    assert len(sent) < 1000
    data_sets._opened.cache_clear()
    image = load_image(pickle.loads(sent).file, 28, 1, "center")[0]
    np.testing.assert_array_equal(image, pixels[2])


def test_what_is_not_there_is_told_without_a_traceback(tmp_path):
    (tmp_path / "downloads").touch()  # so that there is no place for them
    with pytest.raises(UserError, match="mnist can't be opened"):
        open_source("torchvision:mnist", tmp_path)
    with pytest.raises(UserError, match="no known data set 'cifar11'") as raised:
        open_source("torchvision:cifar11")
    assert "'cifar10'" in raised.value.remedy


# ---- avatars


def draw(destination, *, count=8, resolution=128, workers=1):
    pytest.importorskip("dicebear")
    return prepared(avatars(count, resolution), destination, workers, max_resolution=resolution, channels=3)


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("avatars") / "set")


@pytest.mark.slow
def test_two_drawings_are_equal_byte_by_byte_with_any_number_of_workers(faces, tmp_path):
    again = draw(tmp_path / "set", workers=2)
    for file in faces.path.iterdir():
        assert (again.path / file.name).read_bytes() == file.read_bytes()


def test_faces_differ_have_one_of_the_background_colours_in_every_corner_and_name_the_artist(faces):
    images = faces.read(128, np.arange(8))
    assert len({image.tobytes() for image in images}) == 8
    allowed = {tuple(bytes.fromhex(colour)) for colour in BACKGROUNDS}
    corners = {tuple(image[0, 0].tolist()) for image in images}
    assert corners <= allowed
    assert len(corners) > 1
    assert read_header(avatars(1, 128).entries[0].file).width == 256  # so that lines are averaged
    assert faces.source["credit"]["creator"]["name"] == "Johan Melin"
    assert faces.source["credit"]["license"]["name"] == "CC BY 4.0"


def test_a_package_that_lacks_what_it_needs_is_named_before_every_image_is_called_damaged(monkeypatch, tmp_path):
    pytest.importorskip("resvg_py")
    (tmp_path / "dicebear.py").write_text("import no_such_schema\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "dicebear", raising=False)
    data_sets._style.cache_clear()
    with pytest.raises(UserError, match="do not work: No module named 'no_such_schema'") as raised:
        avatars(1, 32)
    assert "pggan[avatars]" in raised.value.remedy
