"""`--multirun`: one job per combination of the values that are given as `key=a,b`, one after the other, and a table.

Each job is a process of its own, so that no job inherits memory, threads or a failure of the one before.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import FrameType

from pggan.cli.commands import Command
from pggan.cli.compose import compose
from pggan.cli.inputs import checked_config
from pggan.core.errors import EXIT_FAILED, EXIT_INTERRUPTED, UserError
from pggan.core.next_command import as_hydra_reads_it, next_command
from pggan.core.signals import signal_handlers
from pggan.run.metrics_file import last_values
from pggan.run.tags import IMAGE_QUALITY

OWN_RUN_DIR = "Name a different one for each job: run_dir='outputs/seeds/${seed}'"
ENDS = {0: "done", EXIT_INTERRUPTED: "interrupted"}
# Of the last line of metrics.jsonl, besides the metrics of image quality.
SHOWN = ("images", "images_per_second", "D/loss", "G/loss")


@dataclass(frozen=True)
class SweepJob:
    """One command of a sweep."""

    overrides: list[str]
    varied: dict[str, str]  # those of them that differ from job to job
    run_dir: str | None  # of training

    @property
    def label(self) -> str:
        """The overrides of this job that differ from job to job: key=value, with spaces between them."""
        return " ".join(f"{key}={value}" for key, value in self.varied.items())

    def results(self) -> dict[str, str]:
        """The last numbers that it has reported, by name."""
        file = Path(self.run_dir or "") / "metrics.jsonl"
        found = last_values(file) if self.run_dir else {}
        numbers = {name: found[name] for name in SHOWN if name in found}
        numbers |= {name.removeprefix("metrics/"): found[name] for name in found if re.fullmatch(IMAGE_QUALITY, name)}
        finite = {name: value for name, value in numbers.items() if value is not None}
        return {name: f"{value:,}" if name == "images" else f"{value:.4g}" for name, value in finite.items()}


def run_sweep(command: Command, overrides: list[str], flags: list[str], folder: str | None) -> int:
    """Run all jobs of a sweep and print what came out; returns 0, or the exit code of the first that failed.

    Args: flags: for every job; folder: of configuration files of one's own, as the flags name it.
    Raises UserError for a mistake in any of the jobs, before the first one starts.
    """
    jobs = jobs_of(command, overrides, folder)
    for job in jobs:
        checked_config(command, compose(command.name, job.overrides, folder))
    codes: list[int] = []
    for number, job in enumerate(jobs, 1):
        print(f"\n[{number}/{len(jobs)}] {job.label}" + f"  ({job.run_dir})" * bool(job.run_dir), flush=True)
        codes.append(run_job([*command.name.split(), *flags, *job.overrides]))
        if codes[-1] == EXIT_INTERRUPTED or codes[-1] < 0:
            break
    sum_up(jobs, codes)
    return next((max(code, EXIT_FAILED) for code in codes if code), 0)


def sum_up(jobs: list[SweepJob], codes: list[int]) -> None:
    """Print what came out of the jobs, with the exit `codes` of those that ran, and the next command."""
    print(f"\n{table(jobs, codes)}")
    if jobs[0].run_dir:
        root = Path(jobs[0].run_dir).parent
        if len(codes) < len(jobs) or codes[-1] == EXIT_INTERRUPTED:
            print(f"\nThe same command with run_dir={root} finishes what is left.")
        print(f"\n{next_command('monitor', run=root)}")


def jobs_of(command: Command, overrides: list[str], folder: str | None) -> list[SweepJob]:
    """The jobs that `overrides` stand for; runs get directories named by what differs, unless `run_dir` names them.

    Raises UserError where runs would share a directory.
    """
    jobs = list(_jobs_of(command, overrides, folder))
    run_dirs = [job.run_dir for job in jobs if job.run_dir is not None]
    shared = next((one for one in run_dirs if run_dirs.count(one) > 1), None)
    if shared is not None:
        raise UserError(f"Of {len(jobs)} jobs, several would train in {shared}.", OWN_RUN_DIR)
    return jobs


def _jobs_of(command: Command, overrides: list[str], folder: str | None) -> Iterator[SweepJob]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
        values = [
            [f"{one.get_key_element()}={value}" for value in one.sweep_string_iterator()]
            if one.is_sweep_override()
            else [str(one.input_line)]
            for one in parsed
        ]
    except HydraException as error:
        raise UserError(str(error).splitlines()[0], "Write --multirun key=a,b or key='range(1,4)'.") from error
    given = next((one.partition("=")[2].strip("'\"") for one in overrides if one.startswith("run_dir=")), None)
    own = given is not None and "$" in given
    root = Path(given or f"outputs/sweeps/{time.strftime('%Y-%m-%d_%H-%M-%S')}")
    for chosen in product(*values):
        varied = dict(one.split("=", 1) for one, several in zip(chosen, values, strict=True) if len(several) > 1)
        rest, run_dir = list(chosen), None
        if command.name == "train" and own:
            run_dir = str(compose(command.name, rest, folder)["run_dir"])
        elif command.name == "train":
            name = "_".join(re.sub(r"[^\w.+-]+", "-", f"{key}={value}") for key, value in varied.items())
            run_dir = str(root / (name or "run"))
            rest = [*(one for one in chosen if not one.startswith("run_dir=")), f"run_dir={as_hydra_reads_it(run_dir)}"]
        yield SweepJob(rest, varied, run_dir)


def run_job(words: list[str]) -> int:
    """Run `pggan` with `words` in a process that gets every signal of this one; returns its exit code."""
    package = str(Path(__file__).parents[2])
    paths = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    program, environment = [sys.executable, "-m", "pggan", *words], {**os.environ, "PYTHONPATH": paths}
    # In a group of its own, so that Ctrl-C comes once, from here.
    with subprocess.Popen(program, env=environment, process_group=0) as process:  # noqa: S603 - this program

        def pass_on(number: int, _: FrameType | None) -> None:
            process.send_signal(signal.Signals(number))

        with signal_handlers(pass_on):
            return process.wait()


def table(jobs: list[SweepJob], codes: list[int]) -> str:
    """A line per job: what was varied, how it ended, its last numbers, its directory."""
    rows: list[dict[str, str]] = []
    for number, job in enumerate(jobs):
        code = codes[number] if number < len(codes) else None
        end = "not started" if code is None else ENDS.get(code, f"failed ({code})")
        rows.append({**job.varied, "end": end, **job.results(), **({"run_dir": job.run_dir} if job.run_dir else {})})
    names = list(dict.fromkeys(name for row in rows for name in row))
    names.sort(key=lambda name: name == "run_dir")
    lines = [names, *([row.get(name, "") for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    return "\n".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
