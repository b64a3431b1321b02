"""Writes a generator as an ONNX graph, layer by layer instead of by tracing, so that the graph accepts any batch size.

In shapes, N is the batch size, Z the latent size, L the number of labels, C the number of channels, R the resolution.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from pggan.checkpoints.generator_file import HEADER_KEY, LoadedGenerator, describe_generator
from pggan.core.architecture import MIN_RESOLUTION, Rescaling, Stem
from pggan.core.process import __version__
from pggan.networks.networks import Generator
from pggan.ops.convolution import fuse_resampling
from pggan.ops.filters import FACTOR, low_pass_filter
from pggan.ops.fused import EPSILON, LEAKY_SLOPE
from pggan.sampling.latents import mean_features

CENTER = 4  # index of the center in a flattened 3x3 neighbourhood
OPSET = 17  # ONNX operator set of 2022, which all current ONNX runtimes support, also in browsers
IR_VERSION = 8  # version of the ONNX file format that came with operator set 17
TOLERANCE = 1e-4  # allowed difference from PyTorch's pixels in [-1, 1], about 1/80 of an 8-bit step
# Networks with little training amplify rounding errors, so up to 8 times PyTorch's own rounding error is allowed.
ROUNDINGS = 8
BATCHES = (1, 3)  # A graph has to accept any batch size, so images are compared at two batch sizes.
Inputs = dict[str, Tensor]  # tensors by name: `latents` [N, Z], one-hot `labels` [N, L], `truncation` [1]
Shapes = dict[str, list[str | int]]  # shapes by tensor name; a named dimension, such as "N", may have any size


class Graph:
    """Collects the nodes and weights of an ONNX graph."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def __call__(self, operator: str, *inputs: Any, name: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its output; each of `inputs` is a tensor's name or a constant's value."""
        names = [given if isinstance(given, str) else self.constant(given) for given in inputs]
        name = name or f"{operator}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [name], name, **attributes))
        return name

    def constant(self, value: Any) -> str:
        """Add a constant to the graph (a float as float32, a list as int64), and return the constant's name."""
        kind = {float: np.float32, list: np.int64}.get(type(value))
        array = value.detach().numpy() if isinstance(value, Tensor) else np.array(value, kind)
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), f"weight.{len(self.weights)}"))
        return str(self.weights[-1].name)

    def serialized(self, inputs: Shapes, outputs: Shapes, properties: dict[str, str]) -> bytes:
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


def build(generator: LoadedGenerator, *, for_page: bool = False) -> tuple[bytes, float]:
    """Return the ONNX graph of a generator on the CPU, and the largest pixel difference from PyTorch's images.

    The graph's inputs: `latents` [N, Z]; one-hot `labels` [N, L] if G has classes; `truncation` [1] if `for_page`.
    The graph's output: `images` [N, C, R, R] in about [-1, 1], at the generator's resolution and alpha.
    Raises ArithmeticError if the difference is too large; the cause is a bug of pggan, not a user's mistake.
    """
    network, side, alpha = generator.network, generator.resolution, generator.alpha
    a, graph = network.architecture, Graph()
    classes: Shapes = {"labels": ["N", a.num_classes]} if a.num_classes else {}
    inputs: Shapes = {"latents": ["N", a.latent_size], **classes}
    previous = x = stem(graph, network)
    if for_page:
        inputs["truncation"], x = [1], truncated(graph, x, network)
    for level in a.resolutions[1 : a.resolutions.index(side) + 1]:
        layers: Any = network.blocks[str(level)]
        previous, x = x, convolved(graph, convolved(graph, x, layers.up_conv, Rescaling.up, level), layers.conv)
    if side == MIN_RESOLUTION or alpha == 1:
        found = images(graph, x, network, side)
    else:
        new = images(graph, x, network, side, share=alpha)
        old = images(graph, previous, network, side // 2, share=1 - alpha)
        nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        found = graph("Add", graph("Resize", old, "", torch.tensor([1.0, 1, 2, 2]), **nearest), new)
    graph("Identity", found, name="images")
    about = {HEADER_KEY: json.dumps(describe_generator(generator))}
    content = graph.serialized(inputs, {"images": ["N", a.channels, side, side]}, about)
    return content, largest_difference(network, side, alpha, runnable(content))


def runnable(graph: bytes) -> Callable[[Inputs], Tensor]:
    """Return a function that computes images from inputs, by running the graph in ONNX Runtime on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return lambda inputs: torch.from_numpy(session.run(None, {name: inputs[name].numpy() for name in names})[0])


def normalized(graph: Graph, x: str) -> str:
    """Add a pixel norm over feature maps to the graph: x / sqrt(mean(x²) + ε)."""
    mean = graph("ReduceMean", graph("Mul", x, x), axes=[1], keepdims=1)
    return graph("Div", x, graph("Sqrt", graph("Add", mean, EPSILON)))


def activated(graph: Graph, x: str) -> str:
    """Add a leaky ReLU and a pixel norm to the graph."""
    return normalized(graph, graph("LeakyRelu", x, alpha=LEAKY_SLOPE))


def convolved(graph: Graph, x: str, layer: Any, rescaling: Rescaling = Rescaling.same, side: int = 0) -> str:
    """Add the 3x3 convolution `layer`, with its upsampling, blur and activation; `side` is the output's resolution."""
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
    """Add the first layers to the graph, from latents and labels to features [N, C, 4, 4]."""
    layers, width = network.stem, network.stem.width
    x = graph("Concat", "latents", "labels", axis=1) if network.architecture.num_classes else "latents"
    x = graph("MatMul", normalized(graph, x), layers.dense.weight.detach().t() * layers.dense.scale)
    shape = (width, 4, 4) if layers.stem is Stem.unit_bias else (width, 1, 1)
    x = graph("Add", graph("Reshape", x, [-1, width, 4, 4]), layers.dense.bias.detach().view(shape))
    one_norm = layers.stem is Stem.one_norm
    x = graph("LeakyRelu", x, alpha=LEAKY_SLOPE) if one_norm else activated(graph, x)
    return convolved(graph, x, layers.conv)


def images(graph: Graph, x: str, network: Generator, level: int, *, share: float = 1.0) -> str:
    """Add the to-RGB layer of resolution `level` to the graph; the fade-in weight `share` multiplies the RGB images."""
    layer: Any = network.to_rgb[str(level)]
    linear = 1.0 if network.passes else share
    x = graph("Conv", x, layer.weight.detach() * (layer.scale * linear), layer.bias.detach() * linear)
    return graph("Mul", bilateral(graph, x, network, level), share) if network.passes else x


def bilateral(graph: Graph, x: str, network: Generator, side: int) -> str:
    """Add the bilateral filter of Generator's method `images` to the graph, for images [N, C, R, R] with R = `side`."""
    channels = network.architecture.channels
    others = torch.eye(9)[[place for place in range(9) if place != CENTER]]  # [8, 9]
    inside = F.conv2d(torch.ones(1, 1, side, side), others.view(8, 1, 3, 3), padding=1)[0]  # [8, R, R]
    kernels = (others - torch.eye(9)[CENTER]).view(8, 1, 3, 3).repeat(channels, 1, 1, 1)
    for _ in range(network.passes):
        difference = graph("Conv", x, kernels, pads=[1, 1, 1, 1], group=channels)
        difference = graph("Reshape", difference, [-1, channels, 8, side, side])
        distance = graph("ReduceSum", graph("Mul", difference, difference), [1], keepdims=1)  # [N, 1, 8, R, R]
        weight = graph("Mul", graph("Exp", graph("Mul", distance, FACTOR)), inside)
        pull = graph("ReduceSum", graph("Mul", difference, weight), [2], keepdims=0)
        total = graph("Add", graph("ReduceSum", weight, [2], keepdims=0), 1.0)
        x = graph("Add", x, graph("Div", pull, total))
    return x


def truncated(graph: Graph, features: str, network: Generator) -> str:
    """Add the truncation trick to the graph: if its input `truncation` is below 1, features move to the class mean."""
    num_classes = network.architecture.num_classes
    centers = torch.cat([mean_features(network, label) for label in (range(num_classes) if num_classes else [None])])
    center: Any = centers
    if num_classes:
        center = graph("Reshape", graph("MatMul", "labels", centers.flatten(1)), [-1, *centers.shape[1:]])
    return graph("Add", center, graph("Mul", graph("Sub", features, center), "truncation"))


def inputs_of(network: Generator, count: int) -> Inputs:
    """Return inputs for `count` images: random latents, one-hot labels and truncation 1, which has no effect."""
    a, random = network.architecture, torch.Generator().manual_seed(count)
    labels = {"labels": F.one_hot(torch.arange(count) % a.num_classes, a.num_classes).float()} if a.num_classes else {}
    return {"latents": torch.randn(count, a.latent_size, generator=random), "truncation": torch.ones(1), **labels}


def largest_difference(
    network: Generator, resolution: int, alpha: float, exported: Callable[[Inputs], Tensor]
) -> float:
    """Return the largest difference between pixels of `exported`, which runs the ONNX graph, and of PyTorch's network.

    Raises ArithmeticError if the difference exceeds both TOLERANCE and ROUNDINGS * (PyTorch's float32 rounding error).
    """
    differences, allowed, exact = [], TOLERANCE, deepcopy(network).double()
    for count in BATCHES:
        inputs = inputs_of(network, count)
        given = inputs.get("labels")
        wide = inputs["latents"].double(), None if given is None else given.double()
        with torch.no_grad():
            ours, best = network(inputs["latents"], given, resolution, alpha), exact(*wide, resolution, alpha)
        allowed = max(allowed, ROUNDINGS * float((ours - best).abs().max()))
        differences.append((exported(inputs) - ours).abs().max())
    largest = float(torch.stack(differences).max())
    if not largest <= allowed:  # Unlike `largest > allowed`, this condition is true for NaN, too.
        raise ArithmeticError(f"The exported generator's images differ from PyTorch's by too much: {largest:.1e}.")
    return largest
