"""Describes the results of a training run in words; imports no torch."""

import json
from contextlib import suppress
from itertools import zip_longest
from math import ceil, nan
from pathlib import Path
from textwrap import wrap
from typing import Any

from pggan.checkpoints.generator_file import GENERATOR_FILE
from pggan.checkpoints.read import BEST, best_of, checkpoints_of, mark_of
from pggan.core.quality import in_words
from pggan.core.text import command_line, duration, three_digits

METRICS_FILE = "metrics.jsonl"  # each line has the metrics of one report, as a JSON object
FILM = "growth.webp"  # film of the fakes during training, in the folder samples/
WIDTH = 65  # texts on quality are wrapped to lines of 65 characters; heading and border add 15 characters
METRIC = "metrics/"  # prefix of the names of quality metrics in metrics.jsonl


def records_of(run_dir: Path) -> list[dict[str, Any]]:
    """Return the records in a run's metrics.jsonl, except incomplete lines, which a kill or a full disk leaves."""
    path, records = run_dir / METRICS_FILE, []
    for line in path.read_text("utf-8").splitlines() if path.is_file() else []:
        with suppress(ValueError, KeyError, TypeError):
            record = json.loads(line)
            records.append({"images": int(record["images"]), **record})
    return records


def quality(record: dict[str, Any]) -> str:
    """Describe the quality metrics in `record` in words; returns "" if `record` has none."""
    values = {name.removeprefix(METRIC): value for name, value in record.items() if name.startswith(METRIC)}
    return ". ".join(in_words({name: nan if value is None else value for name, value in values.items()}))


def last_quality(run_dir: Path) -> str:
    """Describe the results of the last and the best evaluation in words; returns "" without an evaluation."""
    found = ((text, record["images"]) for record in reversed(records_of(run_dir)) if (text := quality(record)))
    (text, images), best = next(found, ("", 0)), best_of(checkpoints_of(run_dir))
    if best is not None and int(best.name) < images:
        return f"{text} (at {images:,} images; checkpoint=best: {three_digits(mark_of(best, BEST)['value'])})"
    return text and f"{text} (at {images:,} images)"


def reached(run_dir: Path) -> dict[str, str]:
    """Return a dictionary from headings to texts: the quality of a run, and the paths of its files."""
    folder = run_dir / "samples"
    files = {"Picture": sorted(folder.glob("fakes-*.png"))[-1:], "Film": [folder / FILM]}
    files["Generator"] = [run_dir / GENERATOR_FILE]
    found = {"Quality": last_quality(run_dir)}
    found |= {name: str(path) for name, paths in files.items() for path in paths if path.is_file()}
    return {name: text for name, text in found.items() if text}


def ending(run_dir: Path, images: int) -> list[str]:
    """Return the lines to print at the end of a run: results, and the next commands to try."""
    lines, hours = [f"Done: {images:,} images."], 1
    for record in records_of(run_dir)[-1:]:
        side = f"{record['resolution']:.0f}x{record['resolution']:.0f}"
        hours = max(ceil(record["hours"]), 1)
        lines = [f"Done: {images:,} images in {duration(3600 * record['hours'])}, at {side}."]
    found = reached(run_dir) | {"Look": command_line("explore", run=run_dir)}
    config = mark_of(run_dir / "checkpoints" / f"{images:09d}", "config")
    # Only a Python script can continue a run that has the user's own loss or D.
    if config is None or (config["loss"]["name"] != "object" and not config["model"].get("discriminator")):
        found["Go on"] = command_line("train", f"hours={hours}", grow=run_dir)
    for name, text in found.items():
        words = wrap(text, WIDTH) if name == "Quality" else [text]  # paths and commands stay on one line, for copying
        lines += [f"{heading:<10} {line}" for heading, line in zip_longest([name], words, fillvalue="")]
    return lines
