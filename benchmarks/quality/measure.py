"""One row with one seed: trained, measured and drawn by the commands that people use."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.quality.rows import ORL, Row
from pggan.config.values import versions
from pggan.core.atomic_io import atomic_write
from pggan.core.process import available_cores, processor_facts

COUNT = 512  # images on each side of a metric; ORL has 400
LARGE = 256  # pixels: from here on, a grid of 8x8 images would have 2048 or more on a side


def measure(row: Row, seed: int, work: Path, results: Path) -> dict[str, Any]:
    """The figures of `row` with `seed`, which are also written to `results`, with a grid of its images.

    A run that was stopped is resumed.  Args: work: directory of runs and data.
    Raises CalledProcessError when a command fails.
    """
    run, name = work / f"{row.name}-{seed}", f"{row.name}-{seed}"
    seconds = train(row, seed, work, run)
    figures = evaluate(row, run)
    inspected = json.loads(pggan("inspect", f"run={run}", "json=true"))
    pggan("sample", f"run={run}", *grid(inspected["resolution"], results / name))
    found = {
        "row": row.name,
        "question": row.question,
        "data": row.data,
        "keys": list(row.keys),
        "version": versions()["code"],
        "seed": seed,
        "images": inspected["images"],
        "resolution": inspected["resolution"],
        "seconds": seconds,
        "machine": machine(row),
        "figures": figures,
    }
    with atomic_write(results / f"{name}.json") as temporary:
        temporary.write_text(json.dumps(found, indent=1) + "\n")
    return found


def grid(resolution: int, path: Path) -> list[str]:
    """The keys of `pggan sample` for the grid at `path`, given without its ending: a PNG, or of large images a JPEG."""
    if resolution >= LARGE:
        return ["seeds=0-15", "grid=4x4", f"out={path}.jpg"]
    return ["seeds=0-63", "grid=8x8", f"out={path}.png"]


def machine(row: Row) -> str:
    """The GPU, or the processor and the CPU threads, of this machine's runs: what `seconds` depends on."""
    if row.gpu:
        return torch.cuda.get_device_name()
    threads = int(os.environ.get("OMP_NUM_THREADS", available_cores()))
    return f"{processor_facts()['model name']}, {threads} thread{'s' if threads > 1 else ''}"


def train(row: Row, seed: int, work: Path, run: Path) -> float:
    """Train to the end; returns the seconds of training, those of earlier starts included."""
    keys = [*row.keys, f"seed={seed}", f"run_dir={run}", f"data.cache={work}"]
    if row.data == ORL:
        keys.append(f"data.path={work / 'orl64'}")
    run_to_end([sys.executable, "-m", "pggan", "train", *keys])
    return trained_seconds(run)


def run_to_end(command: list[str]) -> None:
    """Run `command`, and wait for it after Ctrl-C, too; raises CalledProcessError when it fails or is interrupted."""
    process = subprocess.Popen(command)  # noqa: S603 - our own command
    try:
        code = process.wait()
    except KeyboardInterrupt:  # the terminal has told the run, too, which saves everything
        process.wait()
        raise
    if code:
        raise subprocess.CalledProcessError(code, command)


def trained_seconds(run: Path) -> float:
    """Seconds from the first to the last tick of a run, over all of its starts, as its metrics say."""
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.is_file() else []
    ticks = [json.loads(line) for line in lines]
    return max((tick["hours"] * 3600 for tick in ticks if "hours" in tick), default=0.0)


def evaluate(row: Row, run: Path) -> dict[str, float]:
    """The numbers of the row's metrics with each of its extractors, by their full names."""
    found: dict[str, float] = {}
    for extractor in row.extractors:
        keys = [f"metrics=[{','.join(row.metrics)}]", f"extractor={extractor}", f"count={COUNT}", "json=true"]
        evaluations = json.loads(pggan("evaluate", f"run={run}", *keys))["evaluations"]
        found |= evaluations[-1]["metrics"]
    return found


def pggan(*arguments: str) -> str:
    """What a command prints; raises CalledProcessError when it fails."""
    command = [sys.executable, "-m", "pggan", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout  # noqa: S603 - our own


def prepare_orl(work: Path) -> None:
    """Fetch and prepare the ORL photographs in `work`, once."""
    if not (work / "orl64").is_dir():
        fetch = Path(__file__).parents[2] / "data" / "fetch_orl.py"
        subprocess.run([sys.executable, str(fetch), "--dest", str(work / "orl")], check=True)  # noqa: S603 - our own
        pggan("prepare", f"source={work / 'orl'}", f"dest={work / 'orl64'}", "max_resolution=64")
