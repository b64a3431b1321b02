"""Kill ranks of a run, again and again, and see how soon and to what end it resumes by itself.

    python -m benchmarks.ranks --kills 20 --seed 0

Runs of two ranks (`--ranks`), as `devices=cpu:2` starts them.  Each gets `--per-run` kills -9 of a random one of them:
in turns at a random instant of training, and at a random instant from the moment that the ranks exist, when they may
still be importing or finding each other.  Measures the seconds from each kill to the first step after it; what
importing torch takes at the time, on the same cores, says how busy the machine is.  Prints JSON; exit code 1 when
anything was not as it should be.
"""

import argparse
import json
import logging
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.soak import SETTINGS, remains, write_data

ROOT = Path(__file__).parents[1]
TOTAL = 1600
PATIENCE = 120  # seconds for anything to happen


def settings_of(folder: Path, name: str, *more: str) -> list[str]:
    """Overrides of the run `name` in `folder`, where its data is; `more` of them, after all others."""
    settings = [setting for setting in SETTINGS if not setting.startswith(("devices=", "schedule.total_images="))]
    return [
        *settings,
        *(f"data.path={folder / 'data'}", f"run_dir={folder / name}", "model.stddev_group=2"),
        *(f"schedule.total_images={TOTAL}", "monitor.tick_images=8", "monitor.grid_images=800"),
        *("checkpoint.every_images=32", *more),
    ]


class Victim:
    """A run of several ranks, as people start it, in a session of its own."""

    def __init__(self, folder: Path, name: str, ranks: int, *more: str) -> None:
        """Args: more: settings, after all others."""
        self.run_dir = folder / name
        self.log = folder / f"{name}.log"
        settings = settings_of(folder, name, f"devices=cpu:{ranks}", *more)
        command = [sys.executable, str(ROOT / "train.py"), *settings]
        # With more threads they would add up in another order than the run they are held against.
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(  # noqa: S603 - this program itself
                command, stdout=log, stderr=log, env=environment, start_new_session=True, cwd=ROOT
            )

    def workers(self) -> list[int]:
        """Process ids of those that train, in order of rank."""
        try:
            children = [
                pid
                for task in Path(f"/proc/{self.process.pid}/task").iterdir()
                for pid in (task / "children").read_text().split()
            ]
            return sorted(int(pid) for pid in children if command_of(pid).endswith(b"-m\0pggan\0"))
        except FileNotFoundError:
            return []

    def steps(self) -> tuple[int, int]:
        """A number that is new after each restart, and the steps that are on record."""
        try:
            with (self.run_dir / "metrics.jsonl").open() as file:
                return os.fstat(file.fileno()).st_ino, sum(1 for _ in file)
        except FileNotFoundError:
            return 0, 0

    def wait_for(self, what: Callable[[], Any], why: str) -> bool:
        """Whether `what` came true before the run ended; raises RuntimeError when neither happens."""
        for _ in range(PATIENCE * 100):
            if what():
                return True
            if self.process.poll() is not None:
                return False
            time.sleep(0.01)
        raise RuntimeError(f"waited for {why}:\n{self.log.read_text()}")


def command_of(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def kill_one(victim: Victim, ranks: int, instant: float, source: random.Random, *, training: bool) -> float | None:
    """Kill one rank `instant` seconds into training or its life: the seconds to the next step, or None."""
    if not victim.wait_for(lambda: len(victim.workers()) == ranks, "all ranks"):
        return None
    before = victim.workers()
    if training and not victim.wait_for(lambda: victim.steps()[1] > 0, "the first step"):
        return None
    time.sleep(instant)
    if victim.process.poll() is not None or victim.workers() != before:
        return None
    file, _ = victim.steps()
    os.kill(source.choice(before), signal.SIGKILL)
    began = time.perf_counter()
    if not victim.wait_for(lambda: victim.workers() and not set(before) & set(victim.workers()), "new ranks"):
        return None
    # When it resumes, a run rewrites what it has on record; then each step adds a line.
    victim.wait_for(lambda: victim.steps()[0] != file, "the run to resume")
    known = victim.steps()[1]
    victim.wait_for(lambda: victim.steps()[1] > known, "a step")
    return time.perf_counter() - began


def series(folder: Path, kills: int, per_run: int, ranks: int, seed: int) -> dict[str, Any]:
    """Runs with `per_run` kills each, until there were `kills`, against one that is left alone."""
    source, problems = random.Random(seed), []  # noqa: S311 - whom and when to kill, not secrets
    write_data(folder / "data")
    whole = Victim(folder, "whole", ranks)
    assert whole.process.wait(PATIENCE) == 0, whole.log.read_text()
    wanted = remains(whole.run_dir)
    seconds: list[float] = []
    imports: list[float] = []
    runs = equal = 0
    while len(seconds) < kills:
        imports.append(seconds_of_importing())
        victim = Victim(folder, f"run-{runs}", ranks, f"distributed.max_restarts={per_run}")
        runs += 1
        killed = 0
        for number in range(min(per_run, kills - len(seconds))):
            training = number % 2 == 0
            instant = source.uniform(0, 1 if training else 5)
            found = kill_one(victim, ranks, instant, source, training=training)
            if found is not None:
                seconds.append(found)
                killed += 1
        code, said = victim.process.wait(PATIENCE), victim.log.read_text()
        if code != 0 or said.count("failed (exitcode:") != killed:
            problems.append(f"run {runs}: exit code {code} after {killed} kills\n{said}")
            continue
        found_remains = remains(victim.run_dir)
        equal += found_remains == wanted
        problems += [f"run {runs}: another {key}" for key in wanted if found_remains[key] != wanted[key]]
    return {
        "kills": len(seconds),
        "runs": runs,
        "runs_equal_to_the_undisturbed": equal,
        "recovery_seconds_median": round(statistics.median(seconds), 2),
        "recovery_seconds_most": round(max(seconds), 2),
        "import_torch_seconds_median": round(statistics.median(imports), 2),
        "problems": problems,
    }


def seconds_of_importing() -> float:
    """What every new process has to do first."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--per-run", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells of every resume that it has noticed
    with tempfile.TemporaryDirectory(prefix="pggan-ranks-") as folder:
        found = series(Path(folder), arguments.kills, arguments.per_run, arguments.ranks, arguments.seed)
    print(json.dumps(found, indent=1))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
