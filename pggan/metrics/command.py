"""`pggan evaluate`: metrics of one checkpoint, or of all checkpoints of a run."""

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from pggan.checkpoints.read import CONFIG_FILE, checkpoints_of, choose_checkpoint
from pggan.config.commands import ALL, EvaluateConfig
from pggan.config.defaults import default_values, saved_config
from pggan.config.train import DataConfig
from pggan.config.validation import validated
from pggan.config.values import versions
from pggan.core.atomic_io import atomic_write
from pggan.core.devices import choose_device, configure_process
from pggan.core.errors import UserError
from pggan.core.quality import in_words
from pggan.core.text import new_table, next_command, three_digits
from pggan.data.prepare import training_pyramid
from pggan.data.pyramid import ImagePyramid, open_pyramid
from pggan.distributed.process_group import ProcessGroup
from pggan.metrics import Evaluator
from pggan.metrics.images import FIRST_SEED
from pggan.sampling.files import check_output, save_picture
from pggan.sampling.marks import BESIDE, mark_line
from pggan.sampling.trained_generator import TrainedGenerator, load


def run(config: EvaluateConfig) -> int:
    """Evaluate the generators that `config` names, print results, and save them with out=; returns the exit code."""
    group = ProcessGroup.single_process(choose_device(config.device))
    configure_process(group.device, config.threads)
    evaluator = Evaluator(config.metrics, config.extractor, group.device, count=config.count)
    every = config.checkpoint == ALL
    run = Path(config.run)
    places = checkpoints_of(run) or [run] if every else [Path(choose_checkpoint(config.run, config.checkpoint))]
    newest = load(str(places[-1]), "cpu")
    side = newest.settings(resolution=config.resolution, alpha=config.alpha).resolution
    pyramid = open_images(config.run, config.data, newest.network.architecture.channels, side)
    result: dict[str, Any] = {
        "run": config.run,
        "data": {"path": str(pyramid.path), "images": pyramid.images, "fingerprint": pyramid.fingerprint},
        "extractor": evaluator.extractor and evaluator.extractor.name,
        "first_seed": FIRST_SEED,
        "versions": versions(),
        "evaluations": [],
    }
    folder = None if config.out is None else check_output(config.out)
    least = min((metric.least_resolution for metric in evaluator.metrics.values()), default=0)
    for place in places:
        generator = load(str(place), config.device)
        settings = generator.settings(resolution=config.resolution, alpha=config.alpha)
        if settings.resolution < least and place != places[-1]:
            print(f"{place} is left out: no metric measures images below {least}x{least}.", file=sys.stderr)
            continue
        about = {"generator": str(place), "images": generator.images, "resolution": settings.resolution}
        found = evaluator.evaluate(generator.network, settings, pyramid, group=group, shows_progress=True)
        end = f"-{generator.images:09d}.png" if len(places) > 1 else ".png"
        pictures = {} if folder is None else {f"{name}{end}": one for name, one in found.pictures.items()}
        about |= {"alpha": settings.alpha, "metrics": found.values, "notes": found.notes, "pictures": [*pictures]}
        result["evaluations"].append(about)
        if folder is not None:  # Files are written after each evaluation, so that an interruption loses no results.
            folder.mkdir(parents=True, exist_ok=True)
            for file, picture in pictures.items():
                mark = mark_line(config.marks, place, f"seeds from {FIRST_SEED} on", BESIDE)
                save_picture(picture, folder / file, mark)
            with atomic_write(folder / "evaluation.json") as temporary:
                temporary.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    report(config, result)
    return 0


def compare(
    generator: TrainedGenerator, data: str | None, metrics: list[str], extractor: str, count: int | None
) -> dict[str, float]:
    """Compare a generator with the images at `data` (None: its training images); returns {metric: value}."""
    group, settings = ProcessGroup.single_process(generator.network.weights[0].device), generator.settings()
    channels = generator.network.architecture.channels
    pyramid = open_images(str(generator.loaded.path), data, channels, settings.resolution)
    evaluator = Evaluator(metrics, extractor, group.device, count=count)
    return evaluator.evaluate(generator.network, settings, pyramid, group=group).values


def open_images(run: str, data: str | None, channels: int, resolution: int) -> ImagePyramid:
    """Open the images at `data` (None: the training images of `run`), converted to a dataset first if necessary."""
    if data is None:
        keys, resolution = images_of_run(run)
    else:
        keys = validated(DataConfig, default_values({})["data"] | {"path": data, "channels": channels}, "data.")
    place = training_pyramid(resolution, **keys.origin)
    return open_pyramid(place, resolution, channels=keys.channels, labels=keys.labels)


def images_of_run(run: str) -> tuple[DataConfig, int]:
    """Read the settings data.* and the final resolution of a run from the run's config.yaml."""
    path = Path(run)
    folders = (path, *path.parents[:3])  # `run` is a run directory, or a checkpoint in a run directory.
    file = next((folder / CONFIG_FILE for folder in folders if (folder / CONFIG_FILE).is_file()), path / CONFIG_FILE)
    try:
        values = saved_config(file)
        return validated(DataConfig, values["data"], "data."), int(values["schedule"]["final_resolution"])
    except Exception as error:  # A damaged YAML file may raise any exception.
        problem = f"{file} does not say which images to compare with: {error}."
        raise UserError(problem, "Name the images to compare with: data=DIRECTORY.") from error


def report(config: EvaluateConfig, result: dict[str, Any]) -> None:
    """Print all evaluations: as JSON with `json=true`, else as tables."""
    if config.json:
        print(json.dumps(result, indent=1))
        return
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    for found in result["evaluations"]:
        title = f"{found['generator']} compared with {result['data']['path']}"
        table = new_table(title, "images shown", f"{found['images']:,}")
        for name, value in found["metrics"].items():
            table.add_row(name, three_digits(value))
        console.print(table)
        for note in (*in_words(found["metrics"]), *found["notes"]):
            console.print(f"{note[0].upper()}{note[1:].removesuffix('.')}.", soft_wrap=False)
    print(next_command("export", "format=hf", "out=faces", **config.generator_keys))
