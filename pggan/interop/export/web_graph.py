"""A generator as one ONNX graph per level, for a browser: no weight is in two files, and no level is drawn in vain.

The graph of the first level takes latents, labels and the truncation, each other one the features of the level below;
all give features, and images of their own.
N batch, C feature maps, R resolution, L labels.
"""

from typing import TYPE_CHECKING

import torch

from pggan.core.architecture import MIN_RESOLUTION
from pggan.interop.export.onnx_graph import Graph, Shapes, add_block, add_images, add_stem, latent_inputs
from pggan.networks.networks import Generator
from pggan.sampling.generate import mean_features

if TYPE_CHECKING:
    from onnx import ModelProto


def build_level(network: Generator, resolution: int) -> "ModelProto":
    """The graph of one level: `features` [N, C, R, R] and `images` [N, channels, R, R] of those below."""
    a, graph = network.architecture, Graph()
    if resolution == MIN_RESOLUTION:
        inputs: Shapes = latent_inputs(network) | {"truncation": [1]}
        features = _truncate(graph, add_stem(graph, network), network)
    else:
        inputs = {"below": ["N", a.width(resolution // 2), resolution // 2, resolution // 2]}
        features = add_block(graph, "below", network, resolution)
    graph.apply("Identity", "features", features)
    images = add_images(graph, "to_rgb", features, network, resolution)
    graph.apply("Identity", "images", images)
    side: list[str | int] = [resolution, resolution]
    outputs: Shapes = {"features": ["N", a.width(resolution), *side], "images": ["N", a.channels, *side]}
    return graph.model(inputs, outputs, {})


def _truncate(graph: Graph, features: str, network: Generator) -> str:
    """Features pulled towards the mean ones of their class, as `draw_batch` does."""
    num_classes = network.architecture.num_classes
    centers = torch.cat([mean_features(network, label) for label in (range(num_classes) if num_classes else [None])])
    if num_classes:
        table = graph.weight("centers", centers.flatten(1))
        shape = graph.weight("center.shape", torch.tensor([-1, *centers.shape[1:]]))
        center = graph.apply("Reshape", "center", graph.apply("MatMul", "center.flat", "labels", table), shape)
    else:
        center = graph.weight("center", centers)
    offset = graph.apply("Mul", "offset", graph.apply("Sub", "from_center", features, center), "truncation")
    return graph.apply("Add", "truncated", center, offset)
