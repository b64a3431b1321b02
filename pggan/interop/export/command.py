"""`pggan export`: a generator for other programs."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from pggan.checkpoints.generator_file import (
    HEADER_KEY,
    PROVENANCE,
    check_provenance,
    describe_generator,
    save_generator,
)
from pggan.config import ExportConfig, ExportFormat
from pggan.core.atomic_io import directory_bytes
from pggan.core.errors import UserError
from pggan.core.next_command import NEXT, next_command
from pggan.interop.export.comparison import BATCHES
from pggan.interop.export.hugging_face import push_to_hub, require_empty, write_folder
from pggan.interop.export.model_card import read_evaluation
from pggan.interop.export.onnx_file import require_onnx, write_onnx
from pggan.interop.export.torch_program import write_torch_program
from pggan.interop.export.web import write_web
from pggan.interop.export.web_runtime import read_runtime
from pggan.sampling.explore import page_directions, page_name
from pggan.sampling.images import check_output
from pggan.sampling.trained_generator import TrainedGenerator, load

FILES = {ExportFormat.onnx: (".onnx", write_onnx), ExportFormat.torch: (".pt2", write_torch_program)}


def run(config: ExportConfig) -> int:
    """Export as `config` says; returns the exit code."""
    if config.format in (ExportFormat.onnx, ExportFormat.web):
        require_onnx()
    stated = provenance(config)
    evaluation = None if config.evaluation is None else read_evaluation(Path(config.evaluation))
    if config.format in (ExportFormat.hf, ExportFormat.web):
        require_empty(Path(config.out), "out")
    generator = at_stage(load(config.run, "cpu", config.checkpoint), config.resolution, config.alpha)
    if config.format is ExportFormat.hf:
        name = config.push or Path(config.out).name
        generator = TrainedGenerator(replace(generator.loaded, **stated))
        write_folder(generator, Path(config.out), name, evaluation)
        print(f"{config.out}: weights, configuration, samples and model card")
        if config.push is not None:
            print(push_to_hub(Path(config.out), config.push, private=config.private))
        print(next_command("sample", "seeds=0-63", run=config.out))
        return 0
    if config.format is ExportFormat.web:
        return export_page(generator, config)
    if config.format is ExportFormat.safetensors:
        save_generator(generator.loaded, out := check_output(config.out, (".safetensors",)))
        print(f"{out}: {generator.resolution}x{generator.resolution}, alpha {generator.alpha:g}")
        print(next_command("sample", "seeds=0-63", run=out))
        return 0
    ending, write = FILES[config.format]
    out = check_output(config.out, (ending,))
    loaded = generator.loaded
    properties = {HEADER_KEY: json.dumps(describe_generator(loaded))}
    difference = write(loaded.network, out, loaded.resolution, loaded.alpha, properties)
    size = f"{loaded.resolution}x{loaded.resolution}, alpha {loaded.alpha:g}"
    print(f"{out}: {size}; at most {difference:.1e} from PyTorch in batches of {' and '.join(map(str, BATCHES))}")
    labels = f" and one-hot labels [N, {generator.num_classes}]" if generator.num_classes else ""
    print(f"{NEXT} in another program, latents [N, {generator.latent_size}] from N(0, 1){labels} give the images")
    return 0


def provenance(config: ExportConfig) -> dict[str, Any]:
    """The licence and the data statement that `config` gives; raises UserError for what no header can hold."""
    try:
        return check_provenance({name: getattr(config, name) for name in PROVENANCE})
    except ValueError as error:
        remedy = "Give a licence by its name on Hugging Face, or license=other and the rest in data_statement=."
        raise UserError(f"{error}.", remedy) from error


def export_page(generator: TrainedGenerator, config: ExportConfig) -> int:
    """Export a page that draws in the browser; returns the exit code."""
    runtime, out = read_runtime(config.runtime), Path(config.out)
    directions = page_directions(generator, config.directions)
    difference = write_web(generator, out, page_name(config.run), directions, runtime)
    size = directory_bytes(out) / 2**20
    print(f"{out}: {size:.1f} MB for any web space; at most {difference:.1e} from PyTorch")
    print(f"{NEXT} python -m http.server --bind 127.0.0.1 --directory {shlex.quote(str(out))}")
    return 0


def at_stage(generator: TrainedGenerator, resolution: int | None, alpha: float | None) -> TrainedGenerator:
    """The generator, which draws at another resolution and alpha by default; raises UserError for impossible ones."""
    settings = generator.settings(resolution=resolution, alpha=alpha)
    stage = replace(generator.loaded, resolution=settings.resolution, alpha=float(settings.alpha))
    return TrainedGenerator(stage)
