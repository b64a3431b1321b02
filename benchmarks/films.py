"""What a film's length costs in memory: `python -m benchmarks.films --out benchmarks/results/films.json`.

Films of two lengths by `pggan interpolate`, of each format and path, in processes of their own: largest resident memory
in MiB with that of Python and PyTorch, seconds, and the size of the file.  The generator has random weights and is
small, because what is measured does not depend on it.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.reporting import report
from benchmarks.sampling import untrained
from pggan.checkpoints.generator_file import save_generator
from pggan.cli.main import main as pggan

FORMATS = (".mp4", ".webm", ".webp", ".apng", ".gif")
RESOLUTION, WIDTH = 32, 16


def make(format: str, path: str, frames: int) -> dict[str, float]:
    """The costs of one film, in this process."""
    with TemporaryDirectory() as folder:
        generator, film = Path(folder) / "generator.safetensors", Path(folder) / f"film{format}"
        save_generator(untrained(RESOLUTION, WIDTH * RESOLUTION, WIDTH).loaded, generator)
        start = time.perf_counter()
        keys = [f"run={generator}", f"path={path}", f"frames={frames}", "zoom=2", "device=cpu", f"out={film}"]
        if pggan(["interpolate", *keys]):
            raise RuntimeError("the film was not made")
        seconds, mib = time.perf_counter() - start, film.stat().st_size / 2**20
    return {
        "held_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "seconds": round(seconds, 1),
        "file_mib": round(mib, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, nargs="+", default=[500, 10_000])
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    parser.add_argument("--paths", nargs="+", default=["loop", "walk"])
    parser.add_argument("--one", action="store_true", help="only the first of each, in this process")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(make(arguments.formats[0], arguments.paths[0], arguments.frames[0])))
        return
    found: dict[str, Any] = {}
    for format in arguments.formats:
        for path in arguments.paths:
            for frames in arguments.frames:
                keys = ["--one", "--formats", format, "--paths", path, "--frames", str(frames)]
                command = [sys.executable, "-m", "benchmarks.films", *keys]
                done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - itself
                found[f"{path} {frames}{format}"] = json.loads(done.stdout.splitlines()[-1])
                print(f"{path} {frames}{format}: {found[f'{path} {frames}{format}']}", file=sys.stderr)
    report({"resolution": RESOLUTION, "zoom": 2, "films": found}, arguments.out)


if __name__ == "__main__":
    main()
