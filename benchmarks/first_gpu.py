"""What only a GPU can show, by the commands that people use: `make gpu`, or `python -m benchmarks.first_gpu`.

Every part is on disk as soon as it is measured, and the same command goes on with those that are missing: `--parts
stages` measures some of them, `--retry` those that failed.  A command that hangs is ended after `--part-seconds`.
`--small` takes reduced sizes; a CPU always does.  The exit code is 0 when all parts are as expected, else 1.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image

from pggan.core.atomic_io import atomic_write
from pggan.core.devices import choose_device

RESULT = Path(__file__).parent / "results" / "first_gpu.json"
PART_SECONDS = 300
PICTURES = 64
# Of the memory that a run with whole batches takes.  More than half of that are activations, and half of the batch
# needs half of them.
MEMORY_SHARE = 0.78
# Rounding to 255 levels turns a pixel in some thousand the other way, and sums of float32 differ by 1e-6: of numbers
# that are differences of larger ones, as KID is, that is up to a thousandth.
METRIC_TOLERANCE = 0.01
LESS_MEMORY = """
import sys, pggan, torch
from pggan.cli.main import main
torch.cuda.set_per_process_memory_fraction(float(sys.argv[1]))
sys.exit(main(sys.argv[2:]))
"""
Figures = dict[str, Any]


class Bench:
    """The place and the sizes of all runs, and the commands on the device."""

    def __init__(self, folder: Path, device: str, *, small: bool, seconds: float) -> None:
        self.folder, self.device, self.small, self.seconds = folder, device, small, seconds
        self.on_cuda = device == "cuda"
        self.side, self.images, width = (8, 96, 8) if small else (32, 1600, 64)
        self.keys = [
            f"model.fmap_max={width}",
            f"schedule.final_resolution={self.side}",
            f"schedule.stable_images={self.images // 8}",
            f"schedule.fade_images={self.images // 8}",
            f"schedule.total_images={self.images}",
            "schedule.batch=8",
            "evaluation.metrics=[]",
            *["compute.deterministic=true"] * self.on_cuda,
        ]

    def python(self, *arguments: str) -> str:
        """What a Python program prints; raises CalledProcessError or TimeoutExpired."""
        command = [sys.executable, *arguments]
        return subprocess.run(  # noqa: S603 - our own
            command, check=True, capture_output=True, text=True, timeout=self.seconds
        ).stdout

    def pggan(self, *arguments: str) -> str:
        """What a command prints."""
        return self.python("-m", "pggan", *arguments)

    def pictures(self, side: int) -> Path:
        """A folder of random pictures."""
        folder, random = self.folder / f"pictures{side}", np.random.default_rng(0)
        if not folder.exists():
            folder.mkdir()
            for number in range(PICTURES):
                Image.fromarray(random.integers(0, 256, (side, side, 3), np.uint8)).save(folder / f"{number}.png")
        return folder

    def train(self, name: str, *keys: str, python: tuple[str, ...] = ("-m", "pggan")) -> Path:
        """Train the run `name`, or go on with it, with the `keys` that differ; returns its directory."""
        run = self.folder / name
        own = {key.partition("=")[0]: key for key in [f"devices={self.device}", *self.keys, *keys]}
        data = [] if "data.path" in own else [f"data.path={self.pictures(self.side)}"]
        self.python(*python, "train", f"run_dir={run}", *data, *own.values())
        return run

    def state(self, run: Path) -> str:
        """The digest of the state of a run."""
        return str(json.loads(self.pggan("inspect", f"run={run}", "json=true"))["state_sha256"])


def doctor(bench: Bench) -> Figures:
    """The machine, and every part of it tried."""
    command = [sys.executable, "-m", "pggan", "doctor", f"device={bench.device}", "json=true"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=bench.seconds, check=False).stdout  # noqa: S603
    found = dict(json.loads(printed))
    return {**found, "good": found["can_train"]}


def gradients(bench: Bench) -> Figures:
    """The gradients of all losses in all precisions, beside float64 on the CPU."""
    return dict(json.loads(bench.python("-m", "benchmarks.gradients", bench.device, *["small"] * bench.small)))


def capture(bench: Bench) -> Figures:
    """Runs with captured and with eager steps end in the same bits."""
    states = {mode: bench.state(bench.train(f"graphs-{mode}", f"compute.cuda_graphs={mode}")) for mode in ("off", "on")}
    return {**states, "good": states["off"] == states["on"]}


def resume(bench: Bench) -> Figures:
    """A run that was stopped in the middle ends in the bits of one that was not."""
    bench.train("stopped", f"schedule.total_images={bench.images // 2}")
    states = {name: bench.state(bench.train(name)) for name in ("stopped", "whole")}
    return {**states, "good": states["stopped"] == states["whole"]}


def memory(bench: Bench) -> Figures:
    """A run whose batch does not fit into the memory goes on with smaller micro-batches."""
    side = 64 if bench.small else 256
    keys = [
        *(f"schedule.first_resolution={side}", f"schedule.final_resolution={side}", "schedule.batch=32"),
        *("schedule.total_images=320", "model.fmap_max=512", f"data.path={bench.pictures(side)}"),
    ]
    run = bench.train("enough", *keys)
    needed = max(json.loads(line)["memory_bytes"] for line in (run / "metrics.jsonl").read_text().splitlines())
    share = MEMORY_SHARE * needed / torch.cuda.get_device_properties(0).total_memory
    less = bench.train("less", *keys, python=("-c", LESS_MEMORY, str(share)))
    said = [line for line in (less / "train.log").read_text().splitlines() if "Out of memory" in line]
    return {"needed_bytes": needed, "said": said, "good": bool(said)}


def ranks(bench: Bench) -> Figures:
    """A run of all GPUs ends in the bits of one GPU; needs several."""
    count = torch.cuda.device_count()
    if count < 2:
        return {"skipped": "there is one GPU"}
    keys = ("elastic=true", f"distributed.elastic_chunks={count}", f"schedule.batch={4 * count}")
    states = {each: bench.state(bench.train(f"ranks-{each}", f"devices={each}", *keys)) for each in ("1", str(count))}
    return {**states, "good": len({*states.values()}) == 1}


def stages(bench: Bench) -> Figures:
    """The step of every stage, beside the reference step."""
    sizes = ["batch={4:128,32:64,64:32,128:16,256:8,512:4}"]  # the official preset's
    if bench.small:
        sizes = ["stages=[4,8]", "batch=4", "model.fmap_max=8"]
    return dict(json.loads(bench.pggan("bench", f"device={bench.device}", "against=true", "json=true", *sizes)))


def metrics(bench: Bench) -> Figures:
    """The numbers of a generator on the device are those of the CPU; shares of images may differ by one image."""
    run = bench.train("whole")
    words = [f"run={run}", "metrics=[swd,ms_ssim,kid,precision_recall]", "extractor=pixels", "json=true"]
    found = {
        device: json.loads(bench.pggan("evaluate", *words, f"device={device}"))["evaluations"][-1]["metrics"]
        for device in ("cpu", bench.device)
    }
    there, here = found["cpu"], found[bench.device]
    differences = {
        name: abs(here[name] - value) / max(abs(value), 1 / int(name.rpartition("-")[2]) / METRIC_TOLERANCE)
        for name, value in there.items()
    }
    return {**found, "good": max(differences.values()) <= METRIC_TOLERANCE}


PARTS: dict[str, Callable[[Bench], Figures]] = {
    part.__name__: part for part in (doctor, resume, capture, gradients, metrics, memory, ranks, stages)
}
CUDA_ONLY = {"capture", "memory", "ranks"}


def measured(part: Callable[[Bench], Figures], bench: Bench) -> Figures:
    """The figures of a part, or why there are none."""
    began = time.perf_counter()
    try:
        found = part(bench)
    except subprocess.CalledProcessError as error:
        found = {"failed": (str(error.stderr or error.stdout).strip().splitlines() or ["no word"])[-1], "good": False}
    except subprocess.TimeoutExpired as error:
        found = {"failed": f"no end within {error.timeout:g} s", "good": False}
    return {**found, "seconds": round(time.perf_counter() - began, 1)}


def main() -> int:
    """Measure the parts that are missing in the result file; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULT, help="the result file")
    parser.add_argument("--device", default="auto", help="auto, cuda or cpu")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--part-seconds", type=float, default=PART_SECONDS, help="a command that takes longer is ended")
    parser.add_argument("--small", action="store_true", help="reduced sizes; a CPU always has them")
    parser.add_argument("--retry", action="store_true", help="measure parts again that failed")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    small = arguments.small or device.type != "cuda"
    name = torch.cuda.get_device_name() if device.type == "cuda" else device.type
    about = {"device": name, "torch": torch.__version__, "small": small}
    found: Figures = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {"about": about}
    if found["about"] != about:
        sys.exit(f"{arguments.out} holds figures of {found['about']}: name another file by --out=.")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="pggan-first-gpu-") as folder:
        bench = Bench(Path(folder), device.type, small=small, seconds=arguments.part_seconds)
        for part in arguments.parts:
            if part in CUDA_ONLY and not bench.on_cuda:
                continue
            if part not in found or (arguments.retry and "failed" in found[part]):
                found[part] = measured(PARTS[part], bench)
                with atomic_write(arguments.out) as temporary:
                    temporary.write_text(json.dumps(found, indent=1) + "\n")
            verdict = {True: "as expected", False: "NOT AS EXPECTED", None: "noted"}[found[part].get("good")]
            print(
                f"{part:<10} {verdict:<16} {found[part]['seconds']:>6} s  {found[part].get('failed', '')}", flush=True
            )
    print(f"All figures: {arguments.out}")
    return int(any(found[part].get("good") is False for part in arguments.parts if part in found))


if __name__ == "__main__":
    sys.exit(main())
