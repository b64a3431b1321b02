"""Trained generators to and from other programs; torch is loaded by the calls only."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pggan.sampling.trained_generator import TrainedGenerator


def load(run: str | Path, device: str = "auto", checkpoint: str | int = "newest") -> "TrainedGenerator":
    """The generator of `run`: a run directory, a checkpoint in it, or a generator file; see `TrainedGenerator`.

    Args: device: auto (CUDA, else MPS, else CPU), cpu, cuda or mps; checkpoint: of a run directory, newest, best (by
    the metric of its evaluations), or the images of one.
    Raises UserError when there is no valid generator, or no such device.
    """
    from pggan.sampling.trained_generator import load

    return load(str(run), device, checkpoint)


def from_pretrained(name: str | Path, *, revision: str | None = None, device: str = "auto") -> "TrainedGenerator":
    """The generator of a folder of `pggan export format=hf`, or of a repository USER/NAME of the Hugging Face Hub.

    Args: revision: a branch, tag or commit of the repository; device: as of `load`.
    Raises UserError when there is no such folder or repository, or no valid generator in it.
    """
    from pggan.interop.hugging_face import from_pretrained

    return from_pretrained(name, revision=revision, device=device)
