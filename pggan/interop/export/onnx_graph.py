"""A generator as an ONNX graph of plain operators, with all constants folded into its weights.

Built layer by layer instead of traced: the graph then has no traces of training (scales at run time, in-place
operations), its batch is free, and no second exporter has to be installed.  `onnx_file.py` compares it with the
network before anything is kept.
N batch, Z latent size, L labels, C feature maps, R resolution.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.architecture import MIN_RESOLUTION, Rescaling, Stem
from pggan.core.version import __version__
from pggan.networks.layers import Equalized
from pggan.networks.networks import Generator
from pggan.ops.bilateral import FACTOR
from pggan.ops.convolution import fuse_resampling
from pggan.ops.elementwise import EPSILON, LEAKY_SLOPE, low_pass_filter

if TYPE_CHECKING:
    from onnx import ModelProto

CENTER = 4  # of the nine places of a 3x3 neighbourhood
OPSET = 17  # of 2022: each runtime of today has it, those of browsers too
IR_VERSION = 8  # the file format that belongs to this opset
Shapes = dict[str, list[str | int]]  # of values by their names; a text stands for any number


class Graph:
    """Nodes and weights that are collected one after the other; values go by their names."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.weight("epsilon", np.array(EPSILON, np.float32))

    def weight(self, name: str, value: Tensor | np.ndarray[Any, Any]) -> str:
        """A constant."""
        from onnx import numpy_helper

        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def apply(self, operator: str, name: str, *inputs: str, **attributes: Any) -> str:
        """The result, called `name`, of an operator."""
        from onnx import helper

        self.nodes.append(helper.make_node(operator, list(inputs), [name], name, **attributes))
        return name

    def normalize(self, name: str, x: str) -> str:
        """The quotient x / sqrt(mean(x²) + ε), the mean over features."""
        square = self.apply("Mul", f"{name}.square", x, x)
        mean = self.apply("ReduceMean", f"{name}.mean", square, axes=[1], keepdims=1)
        root = self.apply("Sqrt", f"{name}.root", self.apply("Add", f"{name}.sum", mean, "epsilon"))
        return self.apply("Div", f"{name}.norm", x, root)

    def activate(self, name: str, x: str) -> str:
        """Pixel norm of the leaky ReLU."""
        return self.normalize(name, self.apply("LeakyRelu", f"{name}.activation", x, alpha=LEAKY_SLOPE))

    def convolution(
        self,
        name: str,
        x: str,
        layer: Equalized,
        rescaling: Rescaling = Rescaling.same,
        *,
        side: int = 0,
    ) -> str:
        """A 3x3 convolution and its activation; upsampling is fused with it, which computes the same function.

        Args: side: of the result, for layers that smooth it.
        """
        kernel = self.weight(f"{name}.weight", fuse_resampling(layer.weight.detach(), rescaling, layer.scale))
        bias = self.weight(f"{name}.bias", layer.bias)
        if rescaling is Rescaling.up:
            y = self.apply("ConvTranspose", name, x, kernel, bias, strides=[2, 2], pads=[1, 1, 1, 1])
        else:
            y = self.apply("Conv", name, x, kernel, bias, pads=[1, 1, 1, 1])
        if layer.blur:
            y = self.blur(f"{name}.blur", y, len(layer.bias), side)
        return self.activate(name, y)

    def blur(self, name: str, x: str, maps: int, side: int) -> str:
        """The low-pass filter, on `maps` feature maps."""
        kernel, share = low_pass_filter(side, torch.float32, torch.device("cpu"))
        kernel = kernel.expand(maps, 1, 3, 3)
        y = self.apply("Conv", name, x, self.weight(f"{name}.weight", kernel), pads=[1, 1, 1, 1], group=maps)
        return self.apply("Mul", f"{name}.whole", y, self.weight(f"{name}.share", share))

    def to_rgb(self, name: str, x: str, layer: Equalized, share: float) -> str:
        """A 1x1 convolution to images, times `share`: a blend needs no more than a sum then."""
        kernel = self.weight(f"{name}.weight", layer.weight.detach() * (layer.scale * share))
        return self.apply("Conv", name, x, kernel, self.weight(f"{name}.bias", layer.bias.detach() * share))

    def bilateral(self, name: str, x: str, network: Generator, side: int) -> str:
        """The bilateral filter of `Generator.images`, on images [N, C, R, R]; R = `side`."""
        channels = network.architecture.channels
        others = torch.eye(9)[[place for place in range(9) if place != CENTER]]  # [8, 9]
        inside = F.conv2d(torch.ones(1, 1, side, side), others.view(8, 1, 3, 3), padding=1)[0]  # [8, R, R]
        kernels = (others - torch.eye(9)[CENTER]).view(8, 1, 3, 3).repeat(channels, 1, 1, 1)
        weights: dict[str, Tensor | np.ndarray[Any, Any]] = {
            "kernels": kernels,
            "inside": inside,
            "factor": np.array(FACTOR, np.float32),
            "one": np.array(1, np.float32),
            "shape": np.array([-1, channels, 8, side, side]),
            "channels": np.array([1]),
            "neighbours": np.array([2]),
        }
        w = {key: self.weight(f"{name}.{key}", value) for key, value in weights.items()}
        for number in range(network.architecture.bilateral):
            step = f"{name}.{number}"
            difference = self.apply("Conv", f"{step}.conv", x, w["kernels"], pads=[1, 1, 1, 1], group=channels)
            difference = self.apply("Reshape", f"{step}.difference", difference, w["shape"])
            square = self.apply("Mul", f"{step}.square", difference, difference)
            distance = self.apply("ReduceSum", f"{step}.distance", square, w["channels"], keepdims=1)  # [N, 1, 8, R, R]
            weight = self.apply("Exp", f"{step}.exp", self.apply("Mul", f"{step}.exponent", distance, w["factor"]))
            weight = self.apply("Mul", f"{step}.weight", weight, w["inside"])
            weighted = self.apply("Mul", f"{step}.weighted", difference, weight)
            pull = self.apply("ReduceSum", f"{step}.pull", weighted, w["neighbours"], keepdims=0)
            total = self.apply("ReduceSum", f"{step}.weights", weight, w["neighbours"], keepdims=0)
            pull = self.apply("Div", f"{step}.mean", pull, self.apply("Add", f"{step}.total", total, w["one"]))
            x = self.apply("Add", f"{step}.filtered", x, pull)
        return x

    def model(self, inputs: Shapes, outputs: Shapes, properties: dict[str, str]) -> "ModelProto":
        """All of it as a model with these inputs and outputs, whose metadata are `properties`."""
        from onnx import TensorProto, helper

        first, last = (
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in some.items()]
            for some in (inputs, outputs)
        )
        model = helper.make_model(
            helper.make_graph(self.nodes, "generator", first, last, self.weights),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="pggan",
            producer_version=__version__,
        )
        helper.set_model_props(model, properties)
        return model


def build_onnx(network: Generator, resolution: int, alpha: float, properties: dict[str, str]) -> "ModelProto":
    """The generator at a resolution and alpha: latents [N, Z], and labels [N, L] where there are any, to images.

    Images [N, C, R, R] are in about [-1, 1].  `properties` become the metadata of the model.
    """
    graph = Graph()
    images = _images(graph, add_stem(graph, network), network, resolution, alpha)
    graph.apply("Identity", "images", images)
    outputs: Shapes = {"images": ["N", network.architecture.channels, resolution, resolution]}
    return graph.model(latent_inputs(network), outputs, properties)


def latent_inputs(network: Generator) -> Shapes:
    """Names and shapes of the inputs: latents, and labels where there are any."""
    a = network.architecture
    inputs: Shapes = {"latents": ["N", a.latent_size]}
    return inputs | {"labels": ["N", a.num_classes]} if a.num_classes else inputs


def add_stem(graph: Graph, network: Generator) -> str:
    """Latents and labels to 4x4 features."""
    stem, width = network.stem, network.stem.width
    x = "latents"
    if network.architecture.num_classes:
        x = graph.apply("Concat", "inputs", "latents", "labels", axis=1)
    x = graph.normalize("inputs", x)
    kernel = graph.weight("stem.dense.weight", stem.dense.weight.detach().t() * stem.dense.scale)
    x = graph.apply("MatMul", "stem.dense", x, kernel)
    x = graph.apply("Reshape", "stem.maps", x, graph.weight("stem.shape", np.array([-1, width, 4, 4])))
    shape = (width, 4, 4) if stem.stem is Stem.unit_bias else (width, 1, 1)
    x = graph.apply("Add", "stem.biased", x, graph.weight("stem.dense.bias", stem.dense.bias.detach().view(shape)))
    if stem.stem is Stem.one_norm:
        x = graph.apply("LeakyRelu", "stem.dense.activation", x, alpha=LEAKY_SLOPE)
    else:
        x = graph.activate("stem.dense", x)
    return graph.convolution("stem.conv", x, stem.conv)


def add_block(graph: Graph, x: str, network: Generator, level: int) -> str:
    """Features of the level below to those of `level`."""
    block = network.blocks[str(level)]
    x = graph.convolution(
        f"blocks.{level}.up_conv",
        x,
        block.up_conv,  # type: ignore[arg-type]
        Rescaling.up,
        side=level,
    )
    return graph.convolution(f"blocks.{level}.conv", x, block.conv)  # type: ignore[arg-type]


def add_images(graph: Graph, name: str, x: str, network: Generator, level: int, *, share: float = 1.0) -> str:
    """Features of `level` to images, times `share`."""
    layer, filters = network.to_rgb[str(level)], network.architecture.bilateral
    x = graph.to_rgb(name, x, layer, 1.0 if filters else share)  # type: ignore[arg-type]
    if not filters:
        return x
    x = graph.bilateral(f"{name}.bilateral", x, network, level)
    return graph.apply("Mul", f"{name}.part", x, graph.weight(f"{name}.share", torch.tensor(share)))


def _images(graph: Graph, features: str, network: Generator, resolution: int, alpha: float) -> str:
    """4x4 features to images, as `Generator.grow` does."""
    x = previous = features
    for level in network.architecture.resolutions[1:]:
        if level <= resolution:
            previous, x = x, add_block(graph, x, network, level)
    if resolution == MIN_RESOLUTION or alpha == 1:
        return add_images(graph, "to_rgb", x, network, resolution)
    new = add_images(graph, "to_rgb.new", x, network, resolution, share=alpha)
    old = add_images(graph, "to_rgb.old", previous, network, resolution // 2, share=1 - alpha)
    scales = graph.weight("scales", np.array([1, 1, 2, 2], np.float32))
    nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return graph.apply("Add", "blend", graph.apply("Resize", "upsampled", old, "", scales, **nearest), new)
