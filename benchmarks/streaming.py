"""How much memory `pggan prepare` takes as files become many: every one is decoded, and none is kept.

    python -m benchmarks.streaming --files 100000 --side 1024 --resolution 8 --out benchmarks/results/streaming.json

The files are one JPEG with a comment of its own each, so that no two are the same and making them takes no time.
Memory is that of all processes together, sampled while they run (Linux): `own` without files', `proportional` (PSS)
with the parts of files that are mapped, shared ones divided among who shares them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.prepare import children, own_memory
from benchmarks.reporting import report
from pggan.config.describe import versions

POINTS = 50  # of the course of memory that are kept
FILES_PER_FOLDER = 1000
COMMENT = b"\xff\xfe"


def jpeg(side: int) -> bytes:
    """A smooth image as a JPEG."""
    pixels = np.random.default_rng(0).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    content = BytesIO()
    Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC).save(content, "JPEG", quality=30)
    return content.getvalue()


def write_files(folder: Path, files: int, side: int) -> int:
    """Write JPEGs that differ in a comment after the first marker; the bytes of one."""
    body = jpeg(side)
    for number in range(files):
        if number % FILES_PER_FOLDER == 0:
            (folder / f"{number // FILES_PER_FOLDER:04d}").mkdir(parents=True)
        text = f"{number:012d}".encode()
        comment = COMMENT + (len(text) + 2).to_bytes(2, "big") + text
        path = folder / f"{number // FILES_PER_FOLDER:04d}" / f"{number:08d}.jpg"
        path.write_bytes(body[:2] + comment + body[2:])
    return len(body)


def proportional_memory(process: int) -> int:
    """Bytes of memory of a process, shared ones divided by the number of processes that share them."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


@contextmanager
def watched(every: float) -> Iterator[list[tuple[float, int, int]]]:
    """Gives a list that fills with (seconds, own bytes, proportional bytes) of all children together."""
    done, start = threading.Event(), time.perf_counter()
    course: list[tuple[float, int, int]] = []

    def watch() -> None:
        while not done.wait(every):
            found = children(os.getpid())
            own, proportional = sum(map(own_memory, found)), sum(map(proportional_memory, found))
            course.append((time.perf_counter() - start, own, proportional))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield course
    finally:
        done.set()
        watcher.join()


def main() -> None:
    """Make files, prepare them, report memory and time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--resolution", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--scratch", type=Path, help="where files go while it runs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        source, destination = Path(folder) / "files", Path(folder) / "set"
        size = write_files(source, options.files, options.side)
        arguments = [
            f"source={source}",
            f"dest={destination}",
            f"max_resolution={options.resolution}",
            f"num_workers={options.workers}",
        ]
        with watched(0.5) as course:
            subprocess.run([sys.executable, "-m", "pggan", "prepare", *arguments], check=True, capture_output=True)  # noqa: S603
    seconds = course[-1][0]
    kept = course[:: max(1, len(course) // POINTS)]
    result: dict[str, Any] = {
        "files": options.files,
        "side": options.side,
        "bytes_per_file": size,
        "resolution": options.resolution,
        "workers": options.workers,
        "versions": versions(),
        "seconds": seconds,
        "files_per_second": options.files / seconds,
        "peak_own_bytes": max(own for _, own, _ in course),
        "peak_proportional_bytes": max(proportional for _, _, proportional in course),
        "course": [{"seconds": round(at, 1), "own_bytes": own, "proportional_bytes": pss} for at, own, pss in kept],
    }
    report(result, options.out)


if __name__ == "__main__":
    main()
