"""A generator as a page that draws in the visitor's browser: a folder of static files for any web space."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pggan.core.atomic_io import atomic_directory
from pggan.interop.export.comparison import Inputs, largest_difference
from pggan.interop.export.onnx_file import require_onnx
from pggan.interop.export.web_graph import build_level
from pggan.sampling.explore import describe_page, page_files, to_file
from pggan.sampling.trained_generator import TrainedGenerator


def write_web(
    generator: TrainedGenerator, folder: Path, name: str, directions: Tensor, runtime: dict[str, bytes]
) -> float:
    """Write the page of a generator on the CPU, called `name`; returns the largest difference of its images.

    Args: directions: those of the sliders [K, Z]; runtime: the files of `read_runtime`.
    Levels above the one that was trained are left out.
    Raises UserError without the libraries, DifferenceError when the images differ, OSError; then nothing is kept.
    """
    require_onnx()
    levels = [resolution for resolution in generator.resolutions if resolution <= generator.resolution]
    graphs = {level: build_level(generator.network, level).SerializeToString() for level in levels}
    model = describe_page(generator, name, "browser", []) | {"resolutions": levels}
    files = page_files() | runtime | {f"level-{level}.onnx": graph for level, graph in graphs.items()}
    files |= {"model.json": json.dumps(model).encode(), "directions.bin": to_file(directions)}
    with atomic_directory(folder) as temporary:
        for file, content in files.items():
            (temporary / file).write_bytes(content)
        return max(
            largest_difference(generator.network, level, 1.0, _Chain([graphs[one] for one in levels if one <= level]))
            for level in levels
        )


class _Chain:
    """Images by onnxruntime, level after level."""

    def __init__(self, graphs: list[bytes]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.sessions: list[Any] = [
            onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"]) for graph in graphs
        ]

    def __call__(self, inputs: Inputs) -> Tensor:
        values = {"truncation": torch.ones(1).numpy()}
        values |= {name: value.numpy() for name, value in zip(("latents", "labels"), inputs, strict=False)}
        for session in self.sessions:
            feed = {given.name: values[given.name] for given in session.get_inputs()}
            values["below"], values["images"] = session.run(["features", "images"], feed)
        return torch.from_numpy(values["images"])
