"""The commands `pggan inspect` and `pggan timelapse`; both start fast, because they import no torch."""

import json
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

from numpy import arange, bincount
from rich.console import Console
from rich.table import Column, Table

from pggan.checkpoints.generator_file import (
    path_of_run,
    read_generator_header,
    refusing_generators,
    stated_in,
    stored_tensors,
)
from pggan.checkpoints.read import Checkpoint, best_of, checkpoints_of, resolve_checkpoint
from pggan.config.commands import InspectConfig, TimelapseConfig
from pggan.core.atomic_io import file_sha256
from pggan.core.errors import UserError
from pggan.core.text import next_command
from pggan.data.pyramid import ImagePyramid
from pggan.run.summary import reached
from pggan.sampling.files import ANIMATED, STILLS, check_output, film_of, output_path, save_film, save_picture
from pggan.sampling.images import FOLDER, grid, grids_in
from pggan.sampling.marks import mark_in, mark_line

SHEET_IMAGES = 48
SHEET_COLUMNS = 8
SHEET_TILE = 128  # largest side in pixels of an image on the contact sheet


def run(config: InspectConfig) -> int:
    """Print facts about the run, generator file, data set or picture that `config` names; returns the exit code."""
    if config.image is not None:
        facts, step = facts_of_picture(Path(config.image)), next_command("explore")
    elif config.data is not None:
        facts, step = facts_of_data(config), next_command("train", "hours=2", **{"data.path": config.data})
    else:
        path = path_of_run(config.run)
        facts = facts_of_generator(path) if path.is_file() else facts_of_run(path)
        step = next_command("sample", "seeds=0-63", run=config.run)
    if config.json or not any(facts.values()):
        print(json.dumps(facts, indent=1) if config.json else "No mark: no metadata say how the file was made.")
        return 0
    table = Table(Column(), Column(overflow="fold"), show_header=False)
    for name, value in facts.items():
        parts = [f"{key} {each}" for key, each in value.items()] if isinstance(value, dict) else [str(value)]
        table.add_row(name, ", ".join(parts))
    Console(markup=False, emoji=False).print(table)  # else rich would read [b] in a path as bold and :cat: as an emoji
    print(step)
    return 0


def facts_of_run(path: Path) -> dict[str, Any]:
    """Return facts about the checkpoint `path`, or about the newest valid checkpoint of the run directory `path`."""
    checkpoint, _ = resolve_checkpoint(path, "run")
    best, header = best_of(checkpoints_of(path)), checkpoint.header
    about = reached(path) if checkpoints_of(path) else {}  # a single checkpoint has no metrics and pictures
    return {
        **{key: header[key] for key in ("images", "resolution", "alpha", "phase")},
        "hours": round(header.get("spent_seconds", 0.0) / 3600, 6),
        **{name.lower(): text for name, text in about.items()},
        "parameters": {name: parameters_in(checkpoint, name) for name in ("generator", "discriminator")},
        "state_sha256": header["state_sha256"],
        "checkpoint": str(checkpoint.directory),
        **({} if best is None else {"best_checkpoint": str(best)}),
        "architecture": header["architecture"],
    }


def facts_of_generator(path: Path) -> dict[str, Any]:
    """Return facts about a generator file, such as the resolution, the number of parameters and the licence."""
    with refusing_generators(path):
        about, parameters = read_generator_header(path), Counter[str]()
        for name, (_, shape) in stored_tensors(path).items():
            parameters[name.partition("/")[0] if "/" in name else "generator"] += prod(shape)
        return {
            **{key: about[key] for key in ("images", "resolution", "alpha")},
            "parameters": parameters,
            "file_sha256": file_sha256(path),
            "architecture": about["architecture"],
            **stated_in(about),
        }


def parameters_in(checkpoint: Checkpoint, network: str) -> int:
    """Count the parameters of one network in a checkpoint."""
    file, prefix = checkpoint.file_of(network)
    tensors = stored_tensors(checkpoint.directory / file)
    return sum(prod(shape) for name, (_, shape) in tensors.items() if name.startswith(prefix))


def facts_of_picture(path: Path) -> dict[str, Any]:
    """Return source type and description from the XMP metadata of a picture or film; raises UserError if unreadable."""
    try:
        return mark_in(path)
    except OSError as error:
        raise UserError(f"image={path} can't be read: {error.strerror}.", "Name a picture or a film.") from error


def facts_of_data(config: InspectConfig) -> dict[str, Any]:
    """Return facts about a prepared data set; if `config.sheet` is set, also writes a contact sheet."""
    pyramid = ImagePyramid(Path(str(config.data)))
    if config.sheet is not None:
        count, tile = min(SHEET_IMAGES, pyramid.images), min(pyramid.resolution, SHEET_TILE)
        spread = pyramid.read(tile, arange(count) * pyramid.images // count)
        save_picture(grid(spread, SHEET_COLUMNS), check_output(config.sheet, STILLS))
    names, labels = pyramid.class_names, pyramid.labels
    counts = None if names is None or labels is None else dict(zip(names, bincount(labels).tolist(), strict=False))
    return {
        "images": pyramid.images,
        "channels": pyramid.channels,
        "resolution": pyramid.resolution,
        "level_bytes": {str(level): pyramid.images * level**2 * pyramid.channels for level in pyramid.resolutions},
        "classes": names,
        "class_images": counts,
        "bytes": sum(file.stat().st_size for file in pyramid.path.iterdir()),
        "source": pyramid.source,
        "fingerprint": pyramid.fingerprint,
    }


def timelapse(config: TimelapseConfig) -> int:
    """Write a time-lapse film of the grids of fakes that a run has stored during training; returns the exit code."""
    out, folder = output_path(config.out, config.run, "timelapse", ANIMATED), Path(config.run) / "samples" / FOLDER
    grids = grids_in(folder)
    if not grids:
        raise UserError(f"{folder} has no grids of fakes from training.", "Set run= to a run directory.")
    first, last = next(iter(grids.values())), [*grids.values()][-1]
    count = max(round(config.seconds * config.fps), 1)
    mark = mark_line(config.marks, config.run, f"seeds=0-{last.columns**2 - 1}")
    save_film(film_of(grids, count), count, config.fps, out, mark)
    print(f"{out}: {count} frames, {first.stamp} to {last.stamp}")
    print(next_command("evaluate", "checkpoint=all", run=config.run))
    return 0
