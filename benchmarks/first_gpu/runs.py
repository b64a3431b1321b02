"""Runs of `pggan train`, each in a process of its own, on random pictures; none outlives the part that began it."""

import subprocess
import sys
from types import TracebackType

import numpy as np

from benchmarks.first_gpu.context import Context
from pggan.data.writer import write_pyramid

PICTURES = 64
Process = subprocess.Popen[str]


class Runs:
    """Runs that grow to a small resolution, in the folder of `context`."""

    def __init__(self, context: Context) -> None:
        side, self.images, width = (8, 96, 8) if context.small else (32, 1600, 64)
        self.folder, self.started = context.folder, list[Process]()
        data = context.folder / "pictures"
        if not data.exists():
            random = np.random.default_rng(0)
            pixels = [random.integers(0, 256, (side, side, 3), dtype=np.uint8) for _ in range(PICTURES)]
            write_pyramid(data, pixels, {"kind": "random"})
        self.keys = [
            f"data.path={data}",
            f"devices={context.device.type}",
            f"model.fmap_max={width}",
            f"schedule.final_resolution={side}",
            f"schedule.stable_images={self.images // 8}",
            f"schedule.fade_images={self.images // 8}",
            f"schedule.total_images={self.images}",
            "schedule.batch=8",
            *["compute.deterministic=true"] * context.on_cuda,
        ]

    def __enter__(self) -> "Runs":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.started:
            process.kill()

    def begin(self, name: str, *keys: str) -> Process:
        """Start the run `name`, or go on with it; later keys win."""
        own = {key.partition("=")[0]: key for key in [*self.keys, *keys]}
        command = [sys.executable, "-m", "pggan", "train", f"run_dir={self.folder / name}", *own.values()]
        self.started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))  # noqa: S603
        return self.started[-1]

    def end(self, process: Process) -> None:
        """Wait for a run; raises RuntimeError with its last line when it fails."""
        _, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(f"pggan train ended with {process.returncode}: {errors.strip().splitlines()[-1]}")
