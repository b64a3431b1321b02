"""The Inception of the quality table, read from a package of a few layers that the test writes."""

import base64
import json
import shutil
import tarfile

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks.quality import nsfwjs

CONVOLUTION = {"kernel_size": [1, 7], "strides": [1, 1], "padding": "same"}
POOLING = {"pool_size": [3, 3], "strides": [1, 1], "padding": "same"}
LAYERS = [
    ("input", "InputLayer", [], {}),
    ("wide", "Conv2D", ["input"], CONVOLUTION),
    ("strided", "Conv2D", ["wide"], {"kernel_size": [3, 3], "strides": [2, 2], "padding": "valid"}),
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
MINIMUM = {name: 0.5 if name == "norm/moving_variance" else -0.25 for name in SHAPES}
SCALE = 0.002


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js to read the package")
def test_layers_and_weights_of_the_package_are_those_of_keras(tmp_path):
    random = np.random.default_rng(0)
    stored = {name: random.integers(0, 256, shape, np.uint8) for name, shape in SHAPES.items()}
    listed = [
        {"name": name, "shape": shape, "quantization": {"scale": SCALE, "min": MINIMUM[name], "dtype": "uint8"}}
        for name, shape in SHAPES.items()
    ]
    layers = [
        {"name": name, "class_name": kind, "inbound_nodes": [[[one, 0, 0, {}] for one in inputs]] * bool(inputs)}
        | {"config": config}
        for name, kind, inputs, config in LAYERS
    ]
    model = {"modelTopology": {"model_config": {"config": {"layers": layers}}}}
    model["weightsManifest"] = [{"paths": ["shard1of2", "shard2of2"], "weights": listed}]
    content = b"".join(values.tobytes() for values in stored.values())
    files = {"model": model, "shard1of2": content[:30], "shard2of2": content[30:]}
    with tarfile.open(tmp_path / "package.tgz", "w:gz") as package:
        for name, value in files.items():
            text = json.dumps(base64.b64encode(value).decode() if isinstance(value, bytes) else value)
            (tmp_path / name).write_text(f"module.exports={text}")
            package.add(tmp_path / name, f"{nsfwjs.FOLDER}/{name}.min.js")
    images = torch.randint(0, 256, (2, 3, nsfwjs.SIDE, nsfwjs.SIDE), dtype=torch.uint8)
    found = nsfwjs.network_of(tmp_path / "package.tgz")(images)

    weights = {name: torch.from_numpy(stored[name] * SCALE + MINIMUM[name]) for name in SHAPES}
    wide = F.conv2d(images / 255.0, weights["wide/kernel"].permute(3, 2, 0, 1).float(), padding=(0, 3)).double()
    strided = F.conv2d(wide, weights["strided/kernel"].permute(3, 2, 0, 1), stride=2)
    mean, variance, beta = (
        weights[f"norm/{name}"].view(1, 4, 1, 1) for name in ("moving_mean", "moving_variance", "beta")
    )
    norm = (strided - mean) / (variance + 0.001).sqrt() + beta
    largest = F.max_pool2d(norm.clamp(min=0), 3, 2)
    inside = F.avg_pool2d(torch.ones_like(largest), 3, 1, 1)  # Keras takes means of what is in the image
    expected = torch.cat([largest, F.avg_pool2d(largest, 3, 1, 1) / inside], 1).mean((2, 3))
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
