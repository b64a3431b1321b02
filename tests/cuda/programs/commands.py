"""Whole commands on the null GPU: `commands.py DATA FOLDER`; prints what each did as JSON.

Run by test_commands.py, which says what has to happen.
"""

import io
import json
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pggan.cli.main import main
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.data.reals import RealBatches
from pggan.ops import fused
from pggan.run import compose
from pggan.sampling.explore import Server
from pggan.training import cuda_graphs
from pggan.training.trainer import Trainer
from tests.cuda.null_gpu import session
from tests.cuda.programs.steps import listed

MODEL = ["model.fmap_max=16", "model.fmap_base=128"]
RUN = [
    *MODEL,
    "devices=cuda",
    "schedule.final_resolution=16",
    "schedule.stable_images=56",
    "schedule.fade_images=56",
    "schedule.batch=8",
    "monitor.tick_images=32",
    "monitor.grid_images=112",
    "monitor.grid=3x2",
    "checkpoint.every_images=128",
    "evaluation.interval_images=112",
    "evaluation.count=16",
    "evaluation.extractor=pixels",
]
STREAMING = [
    "loss=logistic",
    "loss.reg_interval=2",
    "model.residual=true",
    "model.blur=true",
    "model.bilateral=2",
    "precision=fp16",
    "augmentation=ada",
    "evaluation.metrics=[swd,ms_ssim,kid]",
    "debug=profile",
    "monitor.profile_steps=1",
]
METRICS = "metrics=[swd,ms_ssim,kid,fid,precision_recall,neighbours]"
WARMUP_STEPS = 1  # instead of three, which would only take longer
STEADY_AFTER = 2 * (WARMUP_STEPS + 1)  # steps of a phase: both kinds of lazy penalties have been captured


def command(*arguments: str) -> dict[str, Any]:
    """The exit code of a command, None where it raises, and what it says."""
    said, code = io.StringIO(), None
    session.reset()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            code = main(arguments)
        except Exception:
            traceback.print_exc()
    return {"code": code, "said": said.getvalue(), "replays": session.counts()["graph launch"]}


@contextmanager
def steady_steps(places: Counter[tuple[str, str]]) -> Iterator[None]:
    """Inside, `places` counts what costs the host time in steps of runs, reading the images included."""
    taken: Counter[int] = Counter()
    batch, step = RealBatches.batch, Trainer.step

    def watched(phase: Phase) -> Any:
        return session.watched(places) if taken[phase.index] >= STEADY_AFTER else nullcontext()

    def watched_batch(self: RealBatches, phase: Phase, rng: StepRng) -> Any:
        with watched(phase):
            return batch(self, phase, rng)

    def watched_step(self: Trainer, phase: Phase, *arguments: Any) -> Any:
        with watched(phase):
            metrics = step(self, phase, *arguments)
        taken[phase.index] += 1
        return metrics

    RealBatches.batch, Trainer.step = watched_batch, watched_step  # type: ignore[method-assign]
    try:
        yield
    finally:
        RealBatches.batch, Trainer.step = batch, step  # type: ignore[method-assign]


@contextmanager
def interrupted_at(images: int) -> Iterator[None]:
    """Inside, Ctrl-C is pressed in the step that begins at `images`."""
    step = Trainer.step

    def interrupted_step(self: Trainer, *arguments: Any) -> Any:
        if self.state.images == images:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *arguments)

    Trainer.step = interrupted_step  # type: ignore[method-assign]
    try:
        yield
    finally:
        Trainer.step = step  # type: ignore[method-assign]


def draw_once(server: Server) -> None:
    """In place of waiting for requests: draw what one asks for, then be interrupted."""
    generator = server.drawing.generator
    server.drawing.images(generator.latents([0, 1]), generator.settings())
    raise KeyboardInterrupt


def run_all(data: str, folder: Path) -> dict[str, Any]:
    """What became of every command, by name."""
    resident, streaming = folder / "resident", folder / "streaming"
    train = ["train", *RUN, f"data.path={data}", f"run_dir={resident}", "augmentation=ada"]
    found, places = {}, {"resident": Counter[tuple[str, str]](), "streaming": Counter[tuple[str, str]]()}
    with interrupted_at(80):
        found["train"] = command(*train)
    with steady_steps(places["resident"]):
        found["resume"] = command(*train)
    train = ["train", *RUN, f"data.path={data}", f"run_dir={streaming}", *STREAMING]
    with steady_steps(places["streaming"]), patch.object(compose, "budget_bytes", lambda *_: 0):
        found["streaming"] = command(*train)
    stages = ["stages=[4]", "batch=4", "steps=1", "against=true", "json=true"]
    found["bench"] = command("bench", *MODEL, *stages, "device=cuda")
    for name, *options in (
        ("sample", "seeds=0-5", f"out={folder / 'sample.png'}"),
        ("interpolate", "seeds=[1,2]", "frames=3", f"out={folder / 'strip.png'}"),
        ("timelapse", "seconds=0.1", f"out={folder / 'growth.gif'}"),
        ("directions", f"out={folder / 'directions.safetensors'}"),
        ("project", f"image={folder / 'sample.png'}", "steps=3", f"out={folder / 'found'}"),
        ("evaluate", METRICS, "extractor=pixels", "count=32", f"out={folder / 'evaluation'}"),
        ("explore",),
    ):
        with patch.object(Server, "serve_forever", draw_once):
            found[name] = command(name, f"run={resident}", *options)
    steady = {name: listed(counted) for name, counted in places.items()}
    return {"commands": found, "steady": steady, "fused_kernels": fused.KERNELS.working}


if __name__ == "__main__":
    cuda_graphs.WARMUP_STEPS = WARMUP_STEPS
    print(json.dumps(run_all(sys.argv[1], Path(sys.argv[2]))))
