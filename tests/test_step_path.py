"""The path from latents to D's gradients, as the interpreter takes it, is the one in docs/design.md.

`python -m tests.test_step_path` prints the path with its lines: of the files, and of the functions that were called.
"""

import re
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses.base import Reals
from pggan.networks.layers import ComputeOptions
from pggan.optim.reducer import GradientReducer
from pggan.optim.state import Trainable, new_state
from pggan.training.step import train_step
from pggan.training.trainer import Trainer
from tests.definitions import WGAN_GP, variant

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pggan"
WIDE = variant(resolution=16, fmap_base=2048, fmap_max=128, latent_size=128)  # Winograd, im2col and dense products
PHASE = Phase(3, 8, True, 0.5, 0, 1000, 4, 0.001, 0.001, 1)
CPU = torch.device("cpu")


class ReducerThatEndsTheTrace(GradientReducer):
    """Called first for D, when its backward pass has ended."""

    def accumulate(self, trainable: Trainable, sums: torch.Tensor, batch: int) -> None:
        sys.setprofile(None)
        super().accumulate(trainable, sums, batch)


def traced() -> set[CodeType]:
    """The functions of the package that D's half of the second step calls; the first one fills caches."""
    state, called = new_state(WIDE, 0, CPU), set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(f"{PACKAGE}/"):
            called.add(frame.f_code)

    for images in (0, PHASE.batch):
        reals, rng = Reals(torch.zeros(PHASE.batch, 3, 8, 8), None, None), StepRng(0, images, CPU)
        inputs = Trainer(state, WGAN_GP, ComputeOptions()).draw_inputs(PHASE, reals, rng, 0.9)
        reducer = ReducerThatEndsTheTrace()
        if images:
            sys.setprofile(note)
        train_step(state, [inputs], reducer)
    return called


def path_of(called: set[CodeType]) -> list[str]:
    """The files of functions, below the package."""
    return sorted({str(Path(code.co_filename).relative_to(PACKAGE)) for code in called})


def lines_of(code: CodeType) -> set[int]:
    """The lines of a function that the interpreter runs."""
    return {line for *_, line in code.co_lines() if line}


def test_the_path_from_latents_to_ds_gradients_is_that_of_the_document():
    named = re.findall(r"[\w/]+\.py", (ROOT / "docs/design.md").read_text().split("```")[1])
    assert all(any((folder / name).is_file() for folder in (ROOT, PACKAGE)) for name in named)
    called = traced()
    path = path_of(called)
    assert path == sorted(named[named.index("training/step.py") :])
    assert len(path) <= 9
    assert sum(len(lines_of(code)) for code in called) <= 1000


if __name__ == "__main__":
    found, totals = traced(), [0, 0]
    for name in path_of(found):
        here = [code for code in found if code.co_filename == str(PACKAGE / name)]
        lines = len((PACKAGE / name).read_text().splitlines()), len(set().union(*map(lines_of, here)))
        totals = [total + one for total, one in zip(totals, lines, strict=True)]
        print(f"{name:40} {lines[0]:5} {lines[1]:5}  {' '.join(sorted(code.co_qualname for code in here))}")
    print(f"{'':40} {totals[0]:5} {totals[1]:5}")
