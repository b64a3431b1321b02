"""Kill a training run again and again, and see whether the same command always gets it to the same end.

    python -m benchmarks.soak --runs 50 --saves 200 --seed 0

`--runs`: kills at random instants of a whole run; after each, the same command runs to the end.
`--saves`: kills at random instants while a checkpoint is being written, many per run.
All runs are forked from one warm interpreter, so that a kill costs a fraction of a second.  Prints JSON; exit code 1
when anything was not as it should be.
"""

import argparse
import json
import logging
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from threading import Timer
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch; forking needs a process without other threads

import numpy as np
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import pggan.run.report  # noqa: F401 - imported here once instead of in every child
from pggan.checkpoints.read import checkpoints_of, newest_checkpoint, open_checkpoint
from pggan.checkpoints.write import CheckpointWriter
from pggan.cli.compose import compose
from pggan.config.train import TrainConfig
from pggan.config.validation import validated
from pggan.data.data_sets import open_source
from pggan.data.prepare import Options, prepare
from pggan.run import train
from pggan.training.trainer import Trainer

BATCH = 8
TOTAL = 96
SETTINGS = [
    "devices=cpu",
    "schedule.final_resolution=8",
    "schedule.stable_images=32",
    "schedule.fade_images=32",
    f"schedule.batch={BATCH}",
    f"schedule.total_images={TOTAL}",
    "model.fmap_max=8",
    "loss=logistic",
    "monitor.tick_images=16",
    "monitor.grid_images=48",
    "monitor.grid=3x2",
    "evaluation.metrics=[]",  # their places depend on the clock
    "checkpoint.keep=2",
]


@dataclass
class Findings:
    """What came out of a series of kills."""

    kills: int = 0
    recovered: int = 0  # the command resumed by itself, to the end in the last attempt
    equal: int = 0  # final states that are those of the uninterrupted run
    most_images_lost: int = 0
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Soak:
    """Runs to kill, in a directory of its own."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)  # noqa: S311 - instants to kill at, not secrets
        self.shown = mmap.mmap(-1, 8)  # the image count of the running child, readable after its death
        write_data(folder / "data")
        # What torch sets up in its first run takes a second: here once, and not in every child.
        with redirect_stderr(StringIO()):
            train.run(self.config(folder / "warm", TOTAL))

    def config(self, run_dir: Path, every_images: int) -> TrainConfig:
        where = [f"data.path={self.folder / 'data'}", f"run_dir={run_dir}"]
        return validated(TrainConfig, compose("train", [*SETTINGS, *where, f"checkpoint.every_images={every_images}"]))

    def start(self, config: TrainConfig, prepare: Callable[[], None] = lambda: None) -> int:
        """Fork a child that trains; returns its process id."""
        self.shown[:8] = struct.pack("q", 0)
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            os.setsid()
            log = os.open(self.folder / "stderr.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            count_images(self.shown)
            prepare()
            code = train.run(config)
        except BaseException:  # whatever it is, it must not go on as a second parent
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)

    def finish(self, config: TrainConfig) -> int:
        """Run to the end; returns the exit code."""
        return os.waitstatus_to_exitcode(os.waitpid(self.start(config), 0)[1])

    def images_shown(self) -> int:
        return int(struct.unpack("q", self.shown[:8])[0])

    def whole_run(self, every_images: int) -> tuple[dict[str, Any], float]:
        """What an uninterrupted run leaves, and the seconds that it takes."""
        run_dir = self.folder / f"whole-{every_images}"
        began = time.perf_counter()
        code = self.finish(self.config(run_dir, every_images))
        assert code == 0, (self.folder / "stderr.log").read_text()
        return remains(run_dir), time.perf_counter() - began

    def kill_runs(self, kills: int) -> Findings:
        """Kill each run once, at any instant from its start to its end, then let the same command finish."""
        findings, began, interval = Findings(), time.perf_counter(), 2 * BATCH
        wanted, seconds = self.whole_run(interval)
        while findings.kills < kills:
            run_dir = self.folder / f"run-{findings.kills}"
            config = self.config(run_dir, interval)
            child = self.start(config)
            time.sleep(self.random.uniform(0, seconds))
            self.kill(child, findings)
            self.check_loss(run_dir, interval, findings)
            self.check_run(run_dir, config, wanted, findings)
        findings.seconds = time.perf_counter() - began
        return findings

    def kill_saves(self, kills: int) -> Findings:
        """Kill runs that save after every step, each several times, always while a checkpoint is being written."""
        findings, began = Findings(), time.perf_counter()
        wanted, _ = self.whole_run(BATCH)
        number = 0
        while findings.kills < kills:
            run_dir = self.folder / f"save-{number}"
            number += 1
            config = self.config(run_dir, BATCH)
            for _ in range(min(TOTAL // BATCH - 1, kills - findings.kills)):
                instant = self.random.random()
                child = self.start(config, lambda instant=instant: kill_while_saving(instant))  # type: ignore[misc]
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                if code == 0:  # the end was reached without another save to kill
                    break
                if code != -signal.SIGKILL:
                    findings.problems.append(f"{run_dir.name}: exit code {code}")
                findings.kills += 1
                self.check_loss(run_dir, BATCH, findings)
            self.check_run(run_dir, config, wanted, findings)
        findings.seconds = time.perf_counter() - began
        return findings

    def kill(self, child: int, findings: Findings) -> None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        findings.kills += 1
        for _ in range(100):  # one that asks git something may need a moment to see that nobody listens
            try:
                os.killpg(child, 0)  # the child leads a group of its own
            except ProcessLookupError:
                return
            time.sleep(0.1)
        findings.problems.append(f"processes of run {child} outlived it")

    def check_loss(self, run_dir: Path, interval: int, findings: Findings) -> None:
        """All checkpoints that are there under their names are valid, the newest at most two of `interval` behind."""
        for directory in checkpoints_of(run_dir):
            open_checkpoint(directory)
        checkpoint, _ = newest_checkpoint(run_dir)
        lost = self.images_shown() - (checkpoint.images if checkpoint else 0)
        findings.most_images_lost = max(findings.most_images_lost, lost)
        if lost > 2 * interval:  # one, and one during a write
            findings.problems.append(f"{run_dir.name}: {lost} images lost, more than two intervals of {interval}")

    def check_run(self, run_dir: Path, config: TrainConfig, wanted: dict[str, Any], findings: Findings) -> None:
        """Let the same command finish, and compare what it leaves with `wanted`."""
        code = self.finish(config)
        if code != 0:
            findings.problems.append(f"{run_dir.name}: exit code {code} instead of resuming")
            return
        findings.recovered += 1
        found = remains(run_dir)
        findings.equal += found["state_sha256"] == wanted["state_sha256"]
        findings.problems += [
            f"{run_dir.name}: {key} {found[key]} instead of {wanted[key]}"
            for key in wanted
            if found[key] != wanted[key]
        ]


def count_images(shown: mmap.mmap) -> None:
    """Note the image count after every step where the parent can read it."""
    step = Trainer.step

    def counting_step(self: Trainer, *arguments: Any) -> Any:
        metrics = step(self, *arguments)
        shown[:8] = struct.pack("q", self.state.images)
        return metrics

    Trainer.step = counting_step  # type: ignore[assignment, method-assign]


def kill_while_saving(instant: float) -> None:
    """Make this process die while it saves for the first time: after `instant`, from 0 to 1, of the usual duration."""
    write = CheckpointWriter._write
    usual = 0.03  # seconds; a save that takes less is killed at its end

    def deadly_write(self: CheckpointWriter, *arguments: Any) -> None:
        Timer(instant * usual, os.kill, (os.getpid(), signal.SIGKILL)).start()
        write(self, *arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    CheckpointWriter._write = deadly_write  # type: ignore[assignment, method-assign]


def remains(run_dir: Path) -> dict[str, Any]:
    """What a finished run has left, in terms that are the same for every run; each file is opened."""
    checkpoint, corrupt = newest_checkpoint(run_dir)
    assert checkpoint is not None, corrupt
    metrics = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    for path in (run_dir / "samples").glob("*.png"):
        with Image.open(path) as picture:
            picture.load()
    board = EventAccumulator(str(run_dir)).Reload()
    names = {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if "events.out.tfevents" not in path.name}
    return {
        "state_sha256": checkpoint.header["state_sha256"],
        "files": sorted(names),
        "ticks": [line["images"] for line in metrics],
        "points": [event.step for event in board.Scalars("G/loss")],
        "pictures": [event.step for event in board.Images("images/averaged_fakes")],
        "corrupt": corrupt,
    }


def write_data(path: Path) -> None:
    """A pyramid of 24 pictures of noise at 8x8."""
    source = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(24):
            Image.fromarray(source.integers(0, 256, (8, 8, 3)).astype(np.uint8)).save(Path(folder, f"{number}.png"))
        prepare(open_source(str(folder)), path, Options(), 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50, help="kills at random instants of a run")
    parser.add_argument("--saves", type=int, default=200, help="kills at random instants inside saving")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it reports every resume that it has noticed
    with tempfile.TemporaryDirectory(prefix="pggan-soak-") as folder:
        soak = Soak(Path(folder), arguments.seed)
        found = {"runs": soak.kill_runs(arguments.runs), "saves": soak.kill_saves(arguments.saves)}
    print(json.dumps({name: vars(findings) for name, findings in found.items()}, indent=1))
    return 1 if any(findings.problems for findings in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
