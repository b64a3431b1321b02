"""Progressive growing of GANs: train, sample and explore face generators from 4x4 to 1024x1024."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pggan.sampling.trained_generator import TrainedGenerator

__version__ = "0.1.0"

# What libraries read when torch is loaded, so it is set here, before, in every process; what the user has set stays.
if "OMP_WAIT_POLICY" not in os.environ:
    # Looks for work before a thread of GNU's OpenMP sleeps, a third of its own: on a shared machine steps take half the
    # time, on a quiet one as long as before.  To sleep at once takes up to four times as long (docs/performance.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "100000")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages for large CPU tensors, much faster
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # a profile needs no log of its own
# A rank that loses another one prints a C++ stack per connection; what matters of it, the watchdog says in one line.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def load(run: "str | Path", device: str = "auto") -> "TrainedGenerator":
    """The generator of `run`: a run directory, a checkpoint in it, or a generator file; see `TrainedGenerator`.

    Args: device: auto (CUDA, else MPS, else CPU), cpu, cuda or mps.
    Raises UserError when there is no valid generator, or no such device.
    """
    from pggan.sampling.trained_generator import load  # imports torch, which takes seconds

    return load(str(run), device)


def from_pretrained(name: "str | Path", *, revision: str | None = None, device: str = "auto") -> "TrainedGenerator":
    """The generator of a folder of `pggan export format=huggingface`, or of a repository USER/NAME of the Hub.

    Args: revision: a branch, tag or commit of the repository; device: as of `load`.
    Raises UserError when there is no such folder or repository, or no valid generator in it.
    """
    from pggan.export.hugging_face import from_pretrained

    return from_pretrained(name, revision=revision, device=device)
