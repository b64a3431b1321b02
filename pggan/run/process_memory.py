"""The memory that the process of a run on a CPU will hold, as the system shows it: libraries, images and all."""

import os
from pathlib import Path

import torch

from pggan.core.devices import peak_memory
from pggan.data.pyramid import ImagePyramid
from pggan.metrics.evaluate import METRIC_CLASSES
from pggan.run.run_dir import RunContext

# What the first steps and pictures add, after updates were timed: 75 to 90 MiB in runs of 16x16 to 64x64.
BEGINNING = 80 * 2**20


def process_memory(run: RunContext, step_bytes: int, budget: int) -> str:
    """A line about the most that the process will hold, predicted from what it has held before the first step.

    Args: step_bytes: of the largest step, 0 where updates that were timed have already shown it; budget: bytes of
    images that may be kept.
    """
    held = max(peak_memory(torch.device("cpu")), _held_now() + step_bytes)
    later = max((_evaluation(run, name) for name in run.config.evaluation.metrics), default=0)
    whole = held + BEGINNING + _images(run.pyramid, budget) + later
    return f"about {whole / 2**30:.2f} GiB in all"


def _held_now() -> int:
    """Bytes of memory of this process; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _images(pyramid: ImagePyramid, budget: int) -> int:
    size = pyramid.level_bytes(pyramid.resolution)
    return size if size <= budget else 0


def _evaluation(run: RunContext, metric: str) -> int:
    """Bytes of a metric's temporary files, which the system counts as memory of the process while they are read."""
    count = min(run.config.evaluation.count, run.pyramid.images)
    return METRIC_CLASSES[metric].temporary_bytes(count, run.pyramid.resolution, run.pyramid.channels)
