"""`pggan export`: a generator for other programs: safetensors, ONNX, a Hugging Face folder, a page for browsers."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pggan.checkpoints.generator_file import (
    HEADER_KEY,
    PROVENANCE,
    check_provenance,
    describe_generator,
    save_generator,
)
from pggan.config.commands import ExportConfig, ExportFormat
from pggan.core.atomic_io import atomic_write
from pggan.core.errors import UserError
from pggan.core.text import NEXT, next_command
from pggan.interop.comparison import Inputs, largest_difference
from pggan.sampling.files import check_output
from pggan.sampling.trained_generator import TrainedGenerator, load


def run(config: ExportConfig) -> int:
    """Export as `config` says; returns the exit code."""
    if config.format in (ExportFormat.onnx, ExportFormat.web):
        require_onnx()
    given = load(config.run, "cpu", config.checkpoint)
    settings = given.settings(resolution=config.resolution, alpha=config.alpha)
    generator = TrainedGenerator(replace(given.loaded, resolution=settings.resolution, alpha=float(settings.alpha)))
    size = f"{generator.resolution}x{generator.resolution}, alpha {generator.alpha:g}"
    match config.format:
        case ExportFormat.safetensors:
            save_generator(generator.loaded, out := check_output(config.out, (".safetensors",)))
            print(f"{out}: {size}")
            print(next_command("sample", "seeds=0-63", run=out))
        case ExportFormat.onnx:
            out = check_output(config.out, (".onnx",))
            difference = write_onnx(generator, out)
            print(f"{out}: {size}; at most {difference:.1e} from PyTorch")
            labels = f" and one-hot labels [N, {generator.num_classes}]" if generator.num_classes else ""
            latents = f"latents [N, {generator.latent_size}] from N(0, 1){labels}"
            print(f"{NEXT} in another program, {latents} give the images")
        case ExportFormat.hf:
            from pggan.interop.hugging_face import write_folder

            stated = provenance({name: getattr(config, name) for name in PROVENANCE})
            write_folder(TrainedGenerator(replace(generator.loaded, **stated)), Path(config.out), config.evaluation)
            print(f"{config.out}: weights, configuration, samples and model card")
            print(f"{NEXT} hf upload USER/NAME {shlex.quote(config.out)}")
        case ExportFormat.web:
            from pggan.interop.web import write_web

            difference = write_web(generator, Path(config.out), config.run, config.directions, config.runtime)
            megabytes = sum(file.stat().st_size for file in Path(config.out).rglob("*")) / 2**20
            print(f"{config.out}: {megabytes:.1f} MB for any web space; at most {difference:.1e} from PyTorch")
            print(f"{NEXT} python -m http.server --bind 127.0.0.1 --directory {shlex.quote(config.out)}")
    return 0


def provenance(given: dict[str, Any]) -> dict[str, Any]:
    """The `given` licence and data statement; raises UserError for what no header can hold."""
    try:
        return check_provenance(given)
    except ValueError as error:
        remedy = "Give a licence by its name on Hugging Face, or license=other and the rest in data_statement=."
        raise UserError(f"{error}.", remedy) from error


def require_onnx() -> None:
    """Raise UserError unless the libraries for ONNX are installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        remedy = 'Install them: pip install "pggan[export]".'
        raise UserError("This format needs onnx and onnxruntime.", remedy) from error


def write_onnx(generator: TrainedGenerator, path: Path) -> float:
    """Write a generator, on the CPU, as ONNX; returns the largest difference of its images to the network's.

    Raises DifferenceError when the images differ, OSError; then nothing is kept.
    """
    from pggan.interop.onnx_graph import build_onnx, session_of

    loaded = generator.loaded
    properties = {HEADER_KEY: json.dumps(describe_generator(loaded))}
    content = build_onnx(loaded.network, loaded.resolution, loaded.alpha, properties)
    session = session_of(content)
    names = [value.name for value in session.get_inputs()]

    def exported(inputs: Inputs) -> Tensor:
        feed = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
        return torch.from_numpy(session.run(["images"], feed)[0])

    difference = largest_difference(loaded.network, loaded.resolution, loaded.alpha, exported)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    return difference
