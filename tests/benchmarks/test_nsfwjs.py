"""The second extractor of the table: layers as Keras defines them, weights as the package has them."""

import base64
import json
import shutil
import tarfile
from hashlib import sha256

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks.quality import nsfwjs
from pggan.core.errors import UserError

CONVOLUTION = {"kernel_size": [3, 3], "strides": [1, 1], "padding": "same"}
POOLING = {"pool_size": [3, 3], "strides": [1, 1], "padding": "same"}
TOPOLOGY = [
    ("input", "InputLayer", [], {}),
    ("wide", "Conv2D", ["input"], CONVOLUTION | {"kernel_size": [1, 7]}),
    ("strided", "Conv2D", ["wide"], CONVOLUTION | {"strides": [2, 2], "padding": "valid"}),
    ("norm", "BatchNormalization", ["strided"], {"epsilon": 0.001}),
    ("relu", "Activation", ["norm"], {"activation": "relu"}),
    ("largest", "MaxPooling2D", ["relu"], POOLING | {"strides": [2, 2], "padding": "valid"}),
    ("near", "AveragePooling2D", ["largest"], POOLING),
    ("both", "Concatenate", ["largest", "near"], {"axis": 3}),
    ("all", "AveragePooling2D", ["both"], {"pool_size": [8, 8], "strides": [8, 8], "padding": "valid"}),
    ("sorted", "Dense", ["all"], {}),
]
SHAPES = {
    "norm/beta": (4,),
    "norm/moving_mean": (4,),
    "norm/moving_variance": (4,),
    "wide/kernel": (1, 7, 3, 2),
    "strided/kernel": (3, 3, 2, 4),
}


def layers():
    """TOPOLOGY as Keras writes it."""
    return [
        {"name": name, "class_name": kind, "inbound_nodes": [[[one, 0, 0, {}] for one in inputs]] * bool(inputs)}
        | {"config": config}
        for name, kind, inputs, config in TOPOLOGY
    ]


@pytest.fixture
def weights():
    """A list of weights, and their bytes."""
    shift = {"norm/moving_variance": 0.5}
    listed = [
        {
            "name": name,
            "shape": list(shape),
            "dtype": "float32",
            "quantization": {"min": shift.get(name, -0.25), "scale": 0.002, "dtype": "uint8"},
        }
        for name, shape in SHAPES.items()
    ]
    size = sum(int(np.prod(shape)) for shape in SHAPES.values())
    return listed, np.random.default_rng(0).integers(0, 256, size, np.uint8).tobytes()


def expected(images, weights):
    """The features of TOPOLOGY, by PyTorch's functions in float64."""
    double = {name: value.double() for name, value in nsfwjs.unpacked(*weights).items()}
    wide = F.conv2d(images, double["wide/kernel"].permute(3, 2, 0, 1), padding=(0, 3))
    strided = F.conv2d(wide, double["strided/kernel"].permute(3, 2, 0, 1), stride=2)
    shape = (1, 4, 1, 1)
    centred = strided - double["norm/moving_mean"].view(shape)
    norm = centred / (double["norm/moving_variance"].view(shape) + 0.001).sqrt() + double["norm/beta"].view(shape)
    largest = F.max_pool2d(norm.clamp(min=0), 3, 2)
    ones = torch.ones_like(largest)  # Keras takes means of what is in the image
    near = F.avg_pool2d(largest, 3, 1, 1) / F.avg_pool2d(ones, 3, 1, 1)
    return torch.cat([largest, near], 1).mean((2, 3))


def test_weights_are_scaled_and_shifted_one_after_the_other(weights):
    listed, content = weights
    found = nsfwjs.unpacked(listed, content)
    assert {name: tuple(value.shape) for name, value in found.items()} == SHAPES
    values = np.frombuffer(content, np.uint8).astype(np.float64)
    np.testing.assert_allclose(found["norm/moving_mean"], values[4:8] * 0.002 - 0.25, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found["norm/moving_variance"], values[8:12] * 0.002 + 0.5, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="bytes of weights"):
        nsfwjs.unpacked(listed, content + b"\0")


def test_layers_are_those_of_keras(weights):
    network = nsfwjs.KerasNetwork(nsfwjs.layers_until_pooled(layers()), nsfwjs.unpacked(*weights))
    images = torch.rand(2, 3, 21, 19, dtype=torch.float64)
    torch.testing.assert_close(network.double()(images), expected(images, weights))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js to read the package")
def test_the_package_is_read(tmp_path, monkeypatch, weights):
    listed, content = weights
    model = {"modelTopology": {"model_config": {"config": {"layers": layers()}}}}
    model["weightsManifest"] = [{"paths": ["group1-shard1of2", "group1-shard2of2"], "weights": listed}]
    files = {"model": json.dumps(model)}
    for part, some in (("group1-shard1of2", content[:30]), ("group1-shard2of2", content[30:])):
        files[part] = json.dumps(base64.b64encode(some).decode())
    path = tmp_path / "pggan" / nsfwjs.ARCHIVE
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as package:
        for name, value in files.items():
            (tmp_path / name).write_text(f"module.exports={value}")
            package.add(tmp_path / name, f"{nsfwjs.FOLDER}/{name}.min.js")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"is not that of nsfwjs@4\.3\.0"):
        nsfwjs.inception()
    monkeypatch.setattr(nsfwjs, "SHA256", sha256(path.read_bytes()).hexdigest())
    images = torch.randint(0, 256, (2, 3, nsfwjs.SIDE, nsfwjs.SIDE), dtype=torch.uint8)
    torch.testing.assert_close(
        nsfwjs.inception()(images).double(), expected(images.double() / 255, weights), rtol=1e-4, atol=1e-5
    )


def test_what_cannot_be_fetched_is_said_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"npm could not get nsfwjs@4\.3\.0") as raised:
        nsfwjs.inception()
    assert "npm pack nsfwjs@4.3.0" in raised.value.remedy
