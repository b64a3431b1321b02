"""A generator as ONNX graphs of plain operators, with all constants folded into its weights.

Built layer by layer instead of traced: the graph then has no traces of training (scales at run time, in-place
operations), its batch is free, and no second exporter has to be installed.
N batch, Z latent size, L labels, C feature maps, R resolution.
"""

from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from pggan.core.architecture import MIN_RESOLUTION, Rescaling, Stem
from pggan.core.process import __version__
from pggan.networks.networks import Generator
from pggan.ops.convolution import fuse_resampling
from pggan.ops.elementwise import EPSILON, LEAKY_SLOPE
from pggan.ops.filters import FACTOR, low_pass_filter
from pggan.sampling.generate import mean_features

CENTER = 4  # of the nine places of a 3x3 neighbourhood
OPSET = 17  # of 2022: each runtime of today has it, in browsers, too
IR_VERSION = 8  # the file format that belongs to this opset
Shapes = dict[str, list[str | int]]  # of values by their names; a text stands for any number


class Graph:
    """Nodes and weights that are collected one after the other; results go by their names."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def __call__(self, operator: str, *inputs: Any, name: str = "", **attributes: Any) -> str:
        """The result of an operator; inputs are names of results, or constants: tensors, lists or numbers."""
        names = [given if isinstance(given, str) else self.constant(given) for given in inputs]
        name = name or f"{operator}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [name], name, **attributes))
        return name

    def constant(self, value: Any) -> str:
        """The name of a constant: numbers are float32, lists are int64."""
        kind = {float: np.float32, list: np.int64}.get(type(value))
        array = value.detach().numpy() if isinstance(value, Tensor) else np.array(value, kind)
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), f"weight.{len(self.weights)}"))
        return str(self.weights[-1].name)

    def serialized(self, inputs: Shapes, outputs: Shapes, properties: dict[str, str]) -> bytes:
        """The model with these inputs and outputs, whose metadata are `properties`."""
        first, last = (
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in some.items()]
            for some in (inputs, outputs)
        )
        graph = helper.make_graph(self.nodes, "generator", first, last, self.weights)
        about = {"producer_name": "pggan", "producer_version": __version__, "ir_version": IR_VERSION}
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], **about)
        helper.set_model_props(model, properties)
        onnx.checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString())


def build_onnx(network: Generator, resolution: int, alpha: float, properties: dict[str, str]) -> bytes:
    """The generator at a resolution and alpha: latents [N, Z], and labels [N, L] where there are any, to images.

    Images [N, C, R, R] are in about [-1, 1].  `properties` become the metadata of the model.
    """
    graph = Graph()
    x = previous = stem(graph, network)
    for level in network.architecture.resolutions[1:]:
        if level <= resolution:
            previous, x = x, block(graph, x, network, level)
    if resolution == MIN_RESOLUTION or alpha == 1:
        found = images(graph, x, network, resolution)
    else:
        new = images(graph, x, network, resolution, share=alpha)
        old = images(graph, previous, network, resolution // 2, share=1 - alpha)
        nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        scales = torch.tensor([1.0, 1, 2, 2])
        found = graph("Add", graph("Resize", old, "", scales, **nearest), new)
    graph("Identity", found, name="images")
    outputs: Shapes = {"images": ["N", network.architecture.channels, resolution, resolution]}
    return graph.serialized(latent_inputs(network), outputs, properties)


def build_level(network: Generator, resolution: int) -> bytes:
    """One level for a browser, so that no weight is in two files, and no level is drawn in vain.

    The graph of the first level takes latents, labels and the truncation, each other one the features `below`; all give
    `features` [N, C, R, R], and `images` [N, channels, R, R] of their own.
    """
    a, graph = network.architecture, Graph()
    if resolution == MIN_RESOLUTION:
        inputs: Shapes = latent_inputs(network) | {"truncation": [1]}
        features = truncated(graph, stem(graph, network), network)
    else:
        inputs = {"below": ["N", a.width(resolution // 2), resolution // 2, resolution // 2]}
        features = block(graph, "below", network, resolution)
    graph("Identity", features, name="features")
    graph("Identity", images(graph, features, network, resolution), name="images")
    side: list[str | int] = [resolution, resolution]
    outputs: Shapes = {"features": ["N", a.width(resolution), *side], "images": ["N", a.channels, *side]}
    return graph.serialized(inputs, outputs, {})


def session_of(content: bytes) -> Any:
    """The model for onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def latent_inputs(network: Generator) -> Shapes:
    """Names and shapes of the inputs: latents, and labels where there are any."""
    a = network.architecture
    inputs: Shapes = {"latents": ["N", a.latent_size]}
    return inputs | {"labels": ["N", a.num_classes]} if a.num_classes else inputs


def normalized(graph: Graph, x: str) -> str:
    """The quotient x / sqrt(mean(x²) + ε), the mean over features."""
    mean = graph("ReduceMean", graph("Mul", x, x), axes=[1], keepdims=1)
    return graph("Div", x, graph("Sqrt", graph("Add", mean, EPSILON)))


def activated(graph: Graph, x: str) -> str:
    """Pixel norm of the leaky ReLU."""
    return normalized(graph, graph("LeakyRelu", x, alpha=LEAKY_SLOPE))


def convolved(graph: Graph, x: str, layer: Any, rescaling: Rescaling = Rescaling.same, side: int = 0) -> str:
    """A 3x3 convolution and its activation; upsampling is fused with it, which computes the same function.

    Args: side: of the result, for layers that smooth it.
    """
    kernel, pads = fuse_resampling(layer.weight.detach(), rescaling, layer.scale), [1, 1, 1, 1]
    if rescaling is Rescaling.up:
        x = graph("ConvTranspose", x, kernel, layer.bias, strides=[2, 2], pads=pads)
    else:
        x = graph("Conv", x, kernel, layer.bias, pads=pads)
    if layer.blur:
        low_pass, share = low_pass_filter(side, torch.float32, torch.device("cpu"))
        maps = len(layer.bias)
        x = graph("Mul", graph("Conv", x, low_pass.expand(maps, 1, 3, 3), pads=pads, group=maps), share)
    return activated(graph, x)


def stem(graph: Graph, network: Generator) -> str:
    """Latents and labels to 4x4 features."""
    layers, width = network.stem, network.stem.width
    x = graph("Concat", "latents", "labels", axis=1) if network.architecture.num_classes else "latents"
    x = graph("MatMul", normalized(graph, x), layers.dense.weight.detach().t() * layers.dense.scale)
    shape = (width, 4, 4) if layers.stem is Stem.unit_bias else (width, 1, 1)
    x = graph("Add", graph("Reshape", x, [-1, width, 4, 4]), layers.dense.bias.detach().view(shape))
    one_norm = layers.stem is Stem.one_norm
    x = graph("LeakyRelu", x, alpha=LEAKY_SLOPE) if one_norm else activated(graph, x)
    return convolved(graph, x, layers.conv)


def block(graph: Graph, x: str, network: Generator, level: int) -> str:
    """Features of the level below to features of `level`."""
    layers: Any = network.blocks[str(level)]
    return convolved(graph, convolved(graph, x, layers.up_conv, Rescaling.up, level), layers.conv)


def images(graph: Graph, x: str, network: Generator, level: int, *, share: float = 1.0) -> str:
    """Features of `level` to images, times `share`: a blend needs no more than a sum then."""
    layer: Any = network.to_rgb[str(level)]
    filters = network.architecture.bilateral
    linear = 1.0 if filters else share
    x = graph("Conv", x, layer.weight.detach() * (layer.scale * linear), layer.bias.detach() * linear)
    return graph("Mul", bilateral(graph, x, network, level), share) if filters else x


def bilateral(graph: Graph, x: str, network: Generator, side: int) -> str:
    """The bilateral filter of `Generator.images`, on images [N, C, R, R]; R = `side`."""
    channels = network.architecture.channels
    others = torch.eye(9)[[place for place in range(9) if place != CENTER]]  # [8, 9]
    inside = F.conv2d(torch.ones(1, 1, side, side), others.view(8, 1, 3, 3), padding=1)[0]  # [8, R, R]
    kernels = (others - torch.eye(9)[CENTER]).view(8, 1, 3, 3).repeat(channels, 1, 1, 1)
    for _ in range(network.architecture.bilateral):
        difference = graph("Conv", x, kernels, pads=[1, 1, 1, 1], group=channels)
        difference = graph("Reshape", difference, [-1, channels, 8, side, side])
        distance = graph("ReduceSum", graph("Mul", difference, difference), [1], keepdims=1)  # [N, 1, 8, R, R]
        weight = graph("Mul", graph("Exp", graph("Mul", distance, FACTOR)), inside)
        pull = graph("ReduceSum", graph("Mul", difference, weight), [2], keepdims=0)
        total = graph("Add", graph("ReduceSum", weight, [2], keepdims=0), 1.0)
        x = graph("Add", x, graph("Div", pull, total))
    return x


def truncated(graph: Graph, features: str, network: Generator) -> str:
    """Features pulled towards the mean ones of their class, as `draw_batch` does."""
    num_classes = network.architecture.num_classes
    centers = torch.cat([mean_features(network, label) for label in (range(num_classes) if num_classes else [None])])
    center: Any = centers
    if num_classes:
        center = graph("Reshape", graph("MatMul", "labels", centers.flatten(1)), [-1, *centers.shape[1:]])
    return graph("Add", center, graph("Mul", graph("Sub", features, center), "truncation"))
