"""Known sets in torchvision's own formats, on small local copies; nothing is downloaded."""

import gc
import hashlib
import pickle
import struct

import numpy as np
import pytest
from PIL import Image

from pggan.core.errors import UserError
from pggan.data import torchvision_sets
from pggan.data.image_file import ImageSpec, load_image
from pggan.data.sources import open_sources
from pggan.data.torchvision_sets import NamedSet, NamedSource, named_set
from tests.data.images import everything, noise, prepared


@pytest.fixture
def datasets():
    return pytest.importorskip("torchvision.datasets")


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def wanted(root, split="train"):
    return NamedSet(root, split, download=False)


def test_cifar10(datasets, tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels = np.stack([noise(seed, side=32) for seed in range(4)])
    entry = {"data": pixels.transpose(0, 3, 1, 2).reshape(4, -1), "labels": [3, 0, 3, 9]}
    names = {"label_names": [f"kind{number}" for number in range(10)]}
    for name, content in (("data_batch_1", entry), ("batches.meta", names)):
        (folder / name).write_bytes(pickle.dumps(content))
    kind = datasets.CIFAR10
    monkeypatch.setattr(kind, "train_list", [["data_batch_1", md5(folder / "data_batch_1")]])
    monkeypatch.setattr(kind, "test_list", [])
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5(folder / "batches.meta")})
    pyramid = prepared(open_sources("torchvision:CIFAR10", wanted(tmp_path)), tmp_path / "set", labels=True)
    np.testing.assert_array_equal(everything(pyramid), pixels)
    assert pyramid.class_names == ["kind0", "kind3", "kind9"]
    assert pyramid.labels.tolist() == [1, 0, 1, 2]
    assert pyramid.source["kind"] == "torchvision"


@pytest.mark.parametrize(
    ("name", "folder", "classes"),
    [("mnist", "MNIST", ["1 - one", "7 - seven"]), ("fashion-mnist", "FashionMNIST", ["Sneaker", "Trouser"])],
)
def test_mnist_and_fashion_mnist(datasets, tmp_path, name, folder, classes):
    raw = tmp_path / folder / "raw"
    raw.mkdir(parents=True)
    pixels = np.stack([noise(seed, side=28, channels=1) for seed in range(3)])
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, 3, 28, 28) + pixels.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 3) + bytes([7, 1, 7]))
    source = open_sources(name, wanted(tmp_path))
    pyramid = prepared(source, tmp_path / "set", labels=True)
    assert (pyramid.images, pyramid.channels, pyramid.resolution) == (3, 1, 16)
    assert (pyramid.class_names, [pyramid.class_names[label] for label in pyramid.labels]) == (
        classes,
        [source.entries()[number].label for number in range(3)],
    )
    sent = pickle.dumps(source.entries()[2])  # as to another process: where to find it, not the set itself
    assert len(sent) < 1000
    torchvision_sets._opened.cache_clear()
    image = load_image(pickle.loads(sent).file, ImageSpec(28, 1, "center"))
    np.testing.assert_array_equal(image, pixels[2])


def test_celeba(datasets, tmp_path, monkeypatch):
    base = tmp_path / "celeba"
    (base / "img_align_celeba").mkdir(parents=True)
    names = [f"{number:06d}.png" for number in range(1, 4)]
    for seed, name in enumerate(names[:2]):
        Image.fromarray(noise(seed)).save(base / "img_align_celeba" / name)
    tables = {
        "list_eval_partition.txt": [f"{name} 0" for name in names],
        "identity_CelebA.txt": [f"{name} {person}" for name, person in zip(names, (5, 12, 5), strict=True)],
        "list_bbox_celeba.txt": ["3", "image_id x y w h", *(f"{name} 1 2 3 4" for name in names)],
        "list_landmarks_align_celeba.txt": ["3", "lx ly", *(f"{name} " + "1 " * 9 + "1" for name in names)],
        "list_attr_celeba.txt": ["3", "Bald Smiling", *(f"{name} -1 1" for name in names)],
    }
    for file, lines in tables.items():
        (base / file).write_text("\n".join(lines) + "\n")
    files = [("", md5(base / file), file) for file in tables]
    monkeypatch.setattr(datasets.CelebA, "file_list", files)
    pyramid = prepared(open_sources("celeba", wanted(tmp_path)), tmp_path / "set", labels=True)
    np.testing.assert_array_equal(everything(pyramid), np.stack([noise(0), noise(1)]))
    assert pyramid.class_names == ["5", "12"]  # the third picture is missing


@pytest.mark.filterwarnings("ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_lsun(datasets, tmp_path, monkeypatch):
    lmdb = pytest.importorskip("lmdb")
    path = tmp_path / "church_outdoor_train_lmdb"
    path.mkdir()
    with lmdb.open(str(path), map_size=2**20) as database, database.begin(write=True) as transaction:
        for seed in range(3):
            Image.fromarray(noise(seed, side=64)).save(tmp_path / "image.webp", lossless=True)
            transaction.put(f"{seed}".encode(), (tmp_path / "image.webp").read_bytes())
    # What torchvision would unpickle from the working directory, were it allowed to.
    letters = "".join(letter for letter in str(path) if letter.isascii() and letter.isalpha())
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"_cache_{letters}").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    before = {entry.name for entry in tmp_path.iterdir()}
    source = open_sources("lsun", wanted(tmp_path, "church_outdoor_train"))
    pyramid = prepared(source, tmp_path / "set", labels=True)
    assert (pyramid.images, pyramid.class_names) == (3, ["church_outdoor_train"])
    np.testing.assert_array_equal(everything(pyramid), np.stack([noise(seed, side=64) for seed in range(3)]))
    assert {entry.name for entry in tmp_path.iterdir()} - before == {"set"}
    gc.collect()  # torchvision leaves a file open, which is told when it is forgotten


def test_what_is_not_there_is_told_without_a_traceback(datasets, tmp_path):
    for name in ("cifar10", "mnist", "celeba", "lsun"):
        with pytest.raises(UserError, match=f"{name} can't be opened"):
            NamedSource(name, wanted(tmp_path))


def test_names_are_known_whatever_their_spelling(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert named_set("torchvision:Fashion-MNIST") == "fashion_mnist"
    assert named_set("photos") is None
    assert named_set("cifar10") == "cifar10"
    (tmp_path / "cifar10").mkdir()
    assert named_set("cifar10") is None  # a folder of that name
    assert named_set("torchvision:cifar10") == "cifar10"
    with pytest.raises(UserError, match="no known data set 'cifar11'") as raised:
        named_set("torchvision:cifar11")
    assert "'cifar10'" in raised.value.remedy
