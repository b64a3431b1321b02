"""How close `pggan prepare` and its check come to Pillow doing the bare minimum, on the same cores.

    python -m benchmarks.prepare --images 1200 --workers 2 --out benchmarks/results/prepare.json

Both sides take turns; every figure is the median of the rounds.  The bare side decodes each file with Pillow, in as
many processes, and makes the top level with the filter that `prepare` uses for such sizes (the mean of each block), or
all levels where it says so; it checks nothing and writes nothing.
`--dest` is where datasets are written; on a slow disk, it is the disk that is measured.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from benchmarks.reporting import report
from pggan.config.describe import versions

SIDE = 1024
MIN_LEVEL = 4


def draw(folder: Path, kind: str, side: int, number: int) -> None:
    """Save a smooth image with shapes and grain, about as hard to decode as a photograph."""
    random = np.random.default_rng(number)
    colours = Image.fromarray(random.integers(0, 256, (9, 9, 3), dtype=np.uint8))
    image = colours.resize((side, side), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(image)
    for _ in range(25):
        x, y = random.integers(0, side, 2).tolist()
        width, height = random.integers(side // 50, side // 3, 2).tolist()
        pen.ellipse([x, y, x + width, y + height], fill=tuple(random.integers(0, 256, 3).tolist()))
    grain = random.normal(0, 6, (side, side, 3))
    pixels = (np.asarray(image) + grain).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(folder / f"{number:06d}.{kind}", quality=92)


def bare(resolution: int, all_levels: bool, path: Path) -> int:
    """Decode a file and reduce it, the least that anybody has to do."""
    with Image.open(path) as image:
        decoded = image.convert("RGB")
    pixels = np.asarray(decoded.reduce(decoded.width // resolution) if decoded.width > resolution else decoded)
    side = resolution
    while all_levels and side > MIN_LEVEL:
        side //= 2
        pixels = np.asarray(decoded.reduce(decoded.width // side))
    return int(pixels[0, 0, 0])


def seconds_of(work: Callable[[], object]) -> float:
    """The seconds that `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def run_bare(files: list[Path], workers: int, resolution: int, all_levels: bool) -> None:
    """All files, in as many processes as `prepare` uses."""
    with get_context("spawn").Pool(workers) as pool:
        pool.map(partial(bare, resolution, all_levels), files, chunksize=8)


def pggan(*arguments: str) -> None:
    """One command of this program, as a user runs it."""
    subprocess.run([sys.executable, "-m", "pggan", *arguments], check=True, capture_output=True)  # noqa: S603


def run_prepare(source: Path, destination: Path, workers: int, resolution: int) -> None:
    """Prepare a folder, from nothing."""
    keys = {"source": source, "dest": destination, "max_resolution": resolution, "num_workers": workers}
    pggan("prepare", *(f"{key}={value}" for key, value in keys.items()))


def compare(source: Path, destination: Path, options: argparse.Namespace, task: tuple[int, bool]) -> dict[str, Any]:
    """Images per second of both sides, run in turn on one folder; `task`: (resolution, bare makes all levels)."""
    (resolution, all_levels), workers = task, options.workers
    files, size = sorted(source.iterdir()), 0
    ours, theirs = [], []
    for _ in range(options.rounds):
        theirs.append(seconds_of(partial(run_bare, files, workers, resolution, all_levels)))
        ours.append(seconds_of(partial(run_prepare, source, destination, workers, resolution)))
        size = sum(file.stat().st_size for file in destination.iterdir())
        shutil.rmtree(destination)
    top = len(files) * resolution * resolution * 3
    return {
        "format": files[0].suffix[1:],
        "images": len(files),
        "resolution": resolution,
        "bare_makes": "all levels" if all_levels else "the top level",
        "bare_images_per_second": len(files) / median(theirs),
        "prepare_images_per_second": len(files) / median(ours),
        "ratio": median(theirs) / median(ours),
        "size_over_raw_top_level": size / top,
    }


def check_rate(source: Path, rounds: int) -> dict[str, Any]:
    """Files per second that the check opens and decodes on one core, start of the program included."""
    files = len(list(source.iterdir()))
    check = partial(pggan, "prepare", f"source={source}", "check=true", "num_workers=1")
    return {"files": files, "files_per_second_per_core": files / median(seconds_of(check) for _ in range(rounds))}


def largest_memory(work: Callable[[], object]) -> int:
    """Bytes of memory of their own that this process's children hold together, at most, while `work` runs."""
    done, largest = threading.Event(), 0

    def watch() -> None:
        nonlocal largest
        while not done.wait(0.05):
            largest = max(largest, sum(map(own_memory, children(os.getpid()))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return largest


def children(process: int) -> list[int]:
    """All processes below one (Linux)."""
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*"):
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *children(child)]
    return found


def own_memory(process: int) -> int:
    """Bytes of memory that are not files'."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1200, help="1024x1024 files of each format")
    parser.add_argument("--small", type=int, default=4000, help="files of 128x128 for the check")
    parser.add_argument("--many", type=int, default=100_000, help="files for the memory of the list of files")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="where files go; kept and used again if given")
    parser.add_argument("--dest", type=Path, help="where datasets are written, if not there")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = options.scratch or Path(folder)
        destination = (options.dest or scratch) / "set"
        sets = {"jpg": options.images, "png": options.images, "small": options.small}
        for name, count in sets.items():
            target = scratch / name
            if not target.is_dir():
                target.mkdir(parents=True)
                kind, side = ("jpg", 128) if name == "small" else (name, SIDE)
                with get_context("spawn").Pool(options.workers) as pool:
                    pool.map(partial(draw, target, kind, side), range(count), chunksize=8)
        rows = [
            compare(scratch / kind, destination, options, (resolution, all_levels))
            for kind, resolution, all_levels in (
                ("jpg", SIDE, True),
                ("jpg", SIDE // 2, False),
                ("jpg", SIDE // 4, False),
                ("png", SIDE, True),
            )
        ]
        result: dict[str, Any] = {
            "workers": options.workers,
            "cores": len(os.sched_getaffinity(0)),
            "rounds": options.rounds,
            "versions": versions(),
            "prepare": rows,
            "destination": "memory" if str(destination).startswith("/dev/shm") else "disk",  # noqa: S108
            "check_128px": check_rate(scratch / "small", options.rounds),
        }
        large = partial(run_prepare, scratch / "jpg", destination, options.workers, SIDE)
        result["memory_bytes_1024px"] = largest_memory(large)
        shutil.rmtree(destination)
        if options.many:
            many = scratch / "many"
            if not many.is_dir():
                many.mkdir()
                for number in range(options.many):
                    pixels = np.full((8, 8, 3), number % 256, np.uint8)
                    pixels[0, :, :] = np.frombuffer(f"{number:024d}".encode(), np.uint8).reshape(8, 3)
                    Image.fromarray(pixels).save(many / f"{number:06d}.png")
            list_files = partial(run_prepare, many, destination, options.workers, 8)
            result[f"memory_bytes_{options.many}_files"] = largest_memory(list_files)
            again = partial(run_prepare, many, destination, options.workers, 8)
            result[f"seconds_to_see_that_{options.many}_files_are_unchanged"] = seconds_of(again)
            shutil.rmtree(destination)
    report(result, options.out)


if __name__ == "__main__":
    main()
