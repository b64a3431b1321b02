"""A generator as an ONNX file, kept only if onnxruntime draws what the network draws."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pggan.core.atomic_io import atomic_write
from pggan.core.errors import UserError
from pggan.interop.export.comparison import Inputs, largest_difference
from pggan.networks.networks import Generator


def require_onnx() -> None:
    """Raise UserError unless the libraries for ONNX are installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise UserError(
            "This format needs onnx and onnxruntime.", 'Install them: pip install "pggan[export]".'
        ) from error


def write_onnx(network: Generator, path: Path, resolution: int, alpha: float, properties: dict[str, str]) -> float:
    """Write `network`, on the CPU, as ONNX; returns the largest difference of its images to the network's.

    Raises UserError without the libraries, DifferenceError when the images differ, OSError; then nothing is kept.
    """
    require_onnx()
    import onnx

    from pggan.interop.export.onnx_graph import build_onnx

    model = build_onnx(network, resolution, alpha, properties)
    onnx.checker.check_model(model, full_check=True)
    with atomic_write(path) as temporary:
        temporary.write_bytes(model.SerializeToString())
        return largest_difference(network, resolution, alpha, _Session(temporary))


class _Session:
    """Images by onnxruntime on the CPU."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def __call__(self, inputs: Inputs) -> Tensor:
        names = [value.name for value in self.session.get_inputs()]
        feed = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
        return torch.from_numpy(self.session.run(["images"], feed)[0])
