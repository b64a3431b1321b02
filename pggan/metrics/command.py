"""`pggan evaluate`: metrics of a checkpoint, or of all of them, as a table or as JSON."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import TimeElapsedColumn, TimeRemainingColumn

from pggan.checkpoints.generator_file import load_generator
from pggan.config import EvaluateConfig, Precision, default_trainer
from pggan.config.describe import to_plain, versions
from pggan.config.generators import ALL
from pggan.config.parse import generator_keys
from pggan.core.atomic_io import atomic_write
from pggan.core.cpu import threads_per_rank
from pggan.core.devices import choose_device, count_devices
from pggan.core.errors import UserError
from pggan.core.formatting import duration, new_table, three_digits
from pggan.core.next_command import next_command
from pggan.data.pyramid import ImagePyramid
from pggan.distributed.process_group import ProcessGroup, rank_from_environment, run_distributed
from pggan.metrics.collect import Progress
from pggan.metrics.evaluate import METRIC_CLASSES, Evaluation, evaluate, images_of, needs_extractor
from pggan.metrics.extractor import Extractor
from pggan.metrics.extractors import load_extractor
from pggan.metrics.inputs import find_generators, mirrored_in_training, notes_on_images, open_images
from pggan.metrics.neighbours import NearestNeighbours
from pggan.sampling.images import new_folder, save_png
from pggan.sampling.trained_generator import TrainedGenerator
from pggan.training.compute_options import configure_process

COLUMNS = 4  # of checkpoints in a table: as many as fit beside the names into 80 characters
RESULT_FILE = "evaluation.json"
SHOW_SECONDS = 10.0  # between lines about the progress where there is no terminal


def run(config: EvaluateConfig) -> int:
    """Evaluate on all devices that `config` asks for; returns the exit code."""
    info = rank_from_environment()
    if info is not None:
        timeout = default_trainer().distributed.rdzv_timeout_seconds
        return run_distributed(info, config.devices, timeout, partial(evaluate_on_rank, config))
    kind, count = count_devices(config.devices)
    if count == 1:
        return evaluate_on_rank(config, ProcessGroup.single_process(choose_device(kind)))
    from pggan.distributed.agent import launch  # slow to import

    values = {**to_plain(config), "devices": f"cpu:{count}" if kind == "cpu" else str(count)}
    threads = config.threads or threads_per_rank(count, elastic=False)
    distributed = replace(default_trainer().distributed, max_restarts=0)
    return launch("evaluate", values, count, distributed, threads=threads, log=print_error)


def evaluate_on_rank(config: EvaluateConfig, group: ProcessGroup) -> int:
    """One rank's part of the evaluation; rank 0 prints the result.  Returns the exit code."""
    configure_process(group.device, Precision.fp32, config.threads)
    with ExitStack() as until_the_end:
        with group.collective_errors():
            wanted = Path(config.out) if config.out and group.is_main else None
            folder = None if wanted is None else until_the_end.enter_context(new_folder(wanted, "out"))
        evaluate_generators(config, group, folder)
    return 0


def evaluate_generators(config: EvaluateConfig, group: ProcessGroup, folder: Path | None) -> None:
    """Evaluate all generators that `config` names; rank 0 prints the results, and writes pictures to `folder`."""
    with group.collective_errors():
        places = find_generators(config.run, config.checkpoint)
        newest = check_generators(config, places)
        wanted = needs_extractor(config.metrics)
        if config.weights is not None and not wanted:
            problem = f"weights= is for an extractor=, and metrics=[{','.join(config.metrics)}] need none."
            raise UserError(problem, "Leave it out, or add a metric of features, such as kid.")
        extractor = load_extractor(config.extractor, config.weights, group.device) if wanted else None
    pyramid = open_images(config, newest, group)
    mirror = group.broadcast_object(mirrored_in_training(config.run))
    notes = notes_on_images(config, newest.network.architecture.channels, pyramid)
    with group.collective_errors():
        for name in config.metrics:
            images_of(METRIC_CLASSES[name], config.count, pyramid)
    found: list[dict[str, Any]] = []
    for number, place in enumerate(places, 1):
        generator = TrainedGenerator(load_generator(str(place), group.device))
        settings = generator.settings(resolution=config.resolution, alpha=config.alpha)
        about = {"generator": str(place), "images": generator.images}
        about |= {"resolution": settings.resolution, "alpha": settings.alpha}
        title = f"{number}/{len(places)} " if len(places) > 1 else ""
        with shown_progress(title if group.is_main else None) as progress:
            evaluation = evaluate(
                generator,
                settings,
                pyramid,
                config.metrics,
                extractor=extractor,
                count=config.count,
                first_seed=config.seed,
                group=group,
                mirror=mirror,
                progress=progress,
            )
        if group.is_main:
            suffix = f"-{generator.images:09d}" if len(places) > 1 else ""
            pictures = [] if folder is None else save_pictures(evaluation, folder, suffix)
            evaluation.notes[:0] = notes
            found.append(about | as_plain(evaluation) | {"pictures": pictures})
            if folder is not None:  # after each, so that it is there when a later one is not finished
                with atomic_write(folder / RESULT_FILE) as temporary:
                    temporary.write_text(as_json(config, pyramid, extractor, found) + "\n")
    if group.is_main:
        report(config, pyramid, extractor, found)


def check_generators(config: EvaluateConfig, places: list[Path]) -> TrainedGenerator:
    """The newest of the generators at `places`, after a look at all; raises UserError where one can't be evaluated."""

    def opened(place: Path) -> tuple[TrainedGenerator, int]:
        generator = TrainedGenerator(load_generator(str(place), torch.device("cpu")))
        return generator, generator.settings(resolution=config.resolution, alpha=config.alpha).resolution

    for place in places[:-1]:
        opened(place)  # one in memory at a time
    newest, side = opened(places[-1])
    reasons = [METRIC_CLASSES[name].undefined(side) for name in config.metrics]
    if all(reasons):
        problem = f"metrics={config.metrics} do not exist at {side}x{side}: {reasons[0]}."
        raise UserError(problem, "Choose other metrics=, or another resolution=.")
    return newest


def save_pictures(evaluation: Evaluation, folder: Path, suffix: str) -> list[str]:
    """Write the pictures of an evaluation to `folder`; returns their file names, as older ones may lie beside them."""
    pictures = {f"{name}{suffix}.png": picture for name, picture in evaluation.pictures.items()}
    for name, picture in pictures.items():
        save_png(picture, folder / name)
    return [*pictures]


def as_plain(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation for JSON."""
    return {
        "metrics": evaluation.values,
        "seconds": {name: round(value, 3) for name, value in evaluation.seconds.items()},
        "parameters": evaluation.parameters,
        "notes": evaluation.notes,
    }


def as_json(
    config: EvaluateConfig, pyramid: ImagePyramid, extractor: Extractor | None, found: list[dict[str, Any]]
) -> str:
    """All evaluations, with what they depend on."""
    result = {
        "run": config.run,
        "data": {"path": str(pyramid.path), "images": pyramid.images, "fingerprint": pyramid.fingerprint},
        "extractor": None if extractor is None else {"name": extractor.name, **extractor.facts},
        "first_seed": config.seed,
        "versions": versions(),
        "evaluations": found,
    }
    return json.dumps(result, indent=1)


def report(
    config: EvaluateConfig, pyramid: ImagePyramid, extractor: Extractor | None, found: list[dict[str, Any]]
) -> None:
    """Print all evaluations, as tables or as JSON."""
    if config.json:
        print(as_json(config, pyramid, extractor, found))
        return
    print_tables(pyramid, found)
    if not config.out and NearestNeighbours.key in config.metrics:
        print("out=DIRECTORY would keep a picture: fakes beside their nearest training images.")
    chosen = generator_keys(config)
    if config.checkpoint == ALL:  # the export is of the newest
        del chosen["checkpoint"]
    card = {"evaluation": Path(config.out) / RESULT_FILE} if config.out else {}
    print(next_command("export", "format=hf", "out=faces", **chosen, **card))


def print_tables(pyramid: ImagePyramid, found: list[dict[str, Any]]) -> None:
    """The numbers, a column per checkpoint and a few columns per table, and what there is to say about them."""
    console = Console(highlight=False, soft_wrap=True)
    names = list(dict.fromkeys(name for one in reversed(found) for name in one["metrics"]))
    for start in range(0, len(found), COLUMNS):
        some = found[start : start + COLUMNS]
        place = some[0]["generator"] if len(found) == 1 else "Checkpoints"
        headings = (f"{one['images']:,}\n{one['resolution']}px" for one in some)
        table = new_table(f"{place} beside {pyramid.path}", "images shown\nresolution", *headings)
        for name in names:
            table.add_row(name, *(shown(one["metrics"].get(name)) for one in some))
        console.print(table)
    for note in dict.fromkeys(note for one in found for note in one["notes"]):
        console.print(note)
    spent = {name: sum(one["seconds"].get(name, 0.0) for one in found) for name in found[-1]["seconds"]}
    console.print("Time: " + ", ".join(f"{name} {duration(value)}" for name, value in spent.items()))


def shown(value: float | None) -> str:
    """A number for the table: three digits, with its sign."""
    if value is None:
        return ""
    text = three_digits(abs(value))
    return f"-{text}" if value < 0 and text != "0" else text


@contextmanager
def shown_progress(title: str | None) -> Iterator[Progress]:
    """A function to report progress to: a bar with the time left, lines where there is no terminal; None: silence."""
    console = Console(stderr=True)
    if title is None:
        yield lambda what, done, blocks: None
        return
    if not console.is_terminal:
        yield Lines(title)
        return
    columns = (*Bars.get_default_columns()[:3], TimeElapsedColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, blocks: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(f"{title}{what}", total=blocks)
            bars.update(tasks[what], completed=done, total=blocks)

        yield show


class Lines:
    """Progress as lines, one in SHOW_SECONDS, with the time that is left of each part."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.part, self.began, self.shown = "", 0.0, time.monotonic()

    def __call__(self, what: str, done: int, blocks: int) -> None:
        now = time.monotonic()
        if what != self.part:
            self.part, self.began = what, now
        if done and done < blocks and now - self.shown >= SHOW_SECONDS:
            self.shown = now
            left = (now - self.began) / done * (blocks - done)
            print_error(f"{self.title}{what}: {done} of {blocks}, {duration(left)} left")


def print_error(text: str) -> None:
    """Print a line that is no part of the result."""
    print(text, file=sys.stderr, flush=True)
