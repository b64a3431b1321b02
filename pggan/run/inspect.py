"""`pggan inspect`: what a run, a checkpoint or a data set holds, as a table or as JSON."""

import json
from pathlib import Path
from typing import Any

from numpy import arange, bincount, concatenate, uint8, zeros
from rich.console import Console
from rich.table import Column, Table
from torch import device

from pggan.checkpoints.generator_file import load_generator
from pggan.checkpoints.header import architecture_to_plain
from pggan.checkpoints.read import best_of, checkpoints_of, meta_networks, resolve_checkpoint
from pggan.config import InspectConfig
from pggan.core.atomic_io import file_sha256
from pggan.core.errors import UserError
from pggan.data.format.pyramid import ImagePyramid
from pggan.networks.networks import count_parameters
from pggan.sampling.output.images import Pixels, check_output, enlarge, grid, save_png

SHEET_IMAGES = 48
SHEET_COLUMNS = 8
SHEET_TILE = 128  # pixels


def run(config: InspectConfig) -> int:
    """Print what `run=` or `data=` holds; returns the exit code."""
    if (config.run is None) == (config.data is None):
        raise UserError("inspect looks at one thing at a time.", "Give run=DIRECTORY or data=DIRECTORY.")
    if config.run is None:
        facts = facts_of_data(config)
    else:
        facts = facts_of_generator(config.run) if Path(config.run).is_file() else facts_of_run(Path(config.run))
    if config.json:
        print(json.dumps(facts, indent=1))
        return 0
    table = Table(Column(), Column(overflow="fold"), show_header=False)
    for name, value in facts.items():
        table.add_row(name, json.dumps(value) if isinstance(value, dict) else str(value))
    Console().print(table)
    return 0


def facts_of_run(path: Path) -> dict[str, Any]:
    """What the newest valid checkpoint of the run at `path`, or the checkpoint at `path`, holds."""
    checkpoint, _ = resolve_checkpoint(path, "run")
    best = best_of(checkpoints_of(path))
    header, (generator, discriminator) = checkpoint.header, meta_networks(checkpoint.architecture)
    return {
        **{key: header[key] for key in ("images", "resolution", "alpha", "phase")},
        "parameters": {"generator": count_parameters(generator), "discriminator": count_parameters(discriminator)},
        "state_sha256": header["state_sha256"],
        "checkpoint": str(checkpoint.directory),
        **({} if best is None else {"best_checkpoint": str(best)}),
        "architecture": header["architecture"],
    }


def facts_of_generator(path: str) -> dict[str, Any]:
    """What a generator file holds."""
    generator = load_generator(path, device("cpu"))
    return {
        "images": generator.images,
        "resolution": generator.resolution,
        "alpha": generator.alpha,
        "parameters": {"generator": count_parameters(generator.network)},
        "file_sha256": file_sha256(Path(path)),
        "architecture": architecture_to_plain(generator.network.architecture),
    }


def facts_of_data(config: InspectConfig) -> dict[str, Any]:
    """What a pyramid holds; writes its contact sheet and compares checksums where `config` asks for it."""
    pyramid = ImagePyramid(Path(str(config.data)))
    if config.verify:
        pyramid.verify()
    if config.sheet is not None:
        save_png(data_sheet(pyramid), check_output(config.sheet, (".png",), "sheet"))
    names, labels = pyramid.class_names, pyramid.labels
    counts = None if names is None or labels is None else dict(zip(names, bincount(labels).tolist(), strict=False))
    return {
        "images": pyramid.images,
        "channels": pyramid.channels,
        "resolution": pyramid.resolution,
        "resolutions": list(pyramid.resolutions),
        "level_bytes": {str(level): pyramid.level_bytes(level) for level in pyramid.resolutions},
        "classes": names,
        "class_images": counts,
        "bytes": sum(file.stat().st_size for file in pyramid.path.iterdir()),
        "source": pyramid.source,
        "fingerprint": pyramid.fingerprint,
        "checksums": "all right" if config.verify else "not compared (verify=true does)",
        "sheet": config.sheet,
    }


def data_sheet(pyramid: ImagePyramid) -> Pixels:
    """A contact sheet: images evenly spread over the set, and in the last row one of them at every level of a tile."""
    tile = min(pyramid.resolution, SHEET_TILE)
    count = min(SHEET_IMAGES, pyramid.images)
    shown = arange(count) * pyramid.images // count
    images = zeros((-(-count // SHEET_COLUMNS) * SHEET_COLUMNS, tile, tile, pyramid.channels), uint8)
    images[:count] = pyramid.read(tile, shown)
    levels = [level for level in pyramid.resolutions if level <= tile][-SHEET_COLUMNS:]
    enlarged = [enlarge(pyramid.read(level, shown[:1]), tile // level) for level in levels]
    return grid(concatenate([images, *enlarged]), SHEET_COLUMNS)
