"""Part 4: a run that was stopped and resumed in a new process equals the one that was not."""

import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from benchmarks.first_gpu.context import Context, Item, Judgement
from benchmarks.first_gpu.record import Figures
from pggan.data.format.writer import write_pyramid
from pggan.run.inspect import facts_of_run


def items(context: Context) -> Iterator[Item]:
    """Two runs of the same configuration."""
    yield "resume", lambda: resume(context)


def resume(context: Context) -> Figures:
    """The digests of both runs: half of one is trained while the other is trained as a whole."""
    side, images, width = (8, 96, 8) if context.small else (32, 1600, 64)
    random = np.random.default_rng(0)
    pixels = [random.integers(0, 256, (side, side, 3), dtype=np.uint8) for _ in range(64)]
    data = context.folder / "resume-data"
    write_pyramid(data, pixels, {"kind": "random"})
    shared = [
        f"data.path={data}",
        f"devices={context.device.type}",
        f"model.fmap_max={width}",
        f"schedule.final_resolution={side}",
        f"schedule.stable_images={images // 8}",
        f"schedule.fade_images={images // 8}",
        "schedule.batch=8",
        *["compute.deterministic=true"] * context.on_cuda,
    ]

    started: list[subprocess.Popen[str]] = []

    def begin(name: str, total: int) -> "subprocess.Popen[str]":
        keys = [f"run_dir={context.folder / name}", f"schedule.total_images={total}", *shared]
        command = [sys.executable, "-m", "pggan", "train", *keys]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))  # noqa: S603
        return started[-1]

    try:
        whole, half = begin("whole", images), begin("stopped", images // 2)
        end(half)
        rest = begin("stopped", images)
        end(whole)
        end(rest)
    finally:
        for process in started:
            process.kill()
    return {name: facts_of_run(context.folder / name)["state_sha256"] for name in ("whole", "stopped")}


def end(process: "subprocess.Popen[str]") -> None:
    """Wait for a run; raises RuntimeError with its last line when it fails."""
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"pggan train ended with {process.returncode}: {errors.strip().splitlines()[-1]}")


def judge(context: Context, found: dict[str, Figures]) -> Judgement:
    """Both are in the same state."""
    same = found["resume"]["whole"] == found["resume"]["stopped"]
    return Judgement("the same bits" if same else "other bits", "the same bits", same)
