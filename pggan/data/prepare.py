"""`pggan prepare`: images to a dataset; every file checked, cropped and reduced, and the bad ones named."""

import os
import re
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path

from pggan.config import PrepareConfig
from pggan.core.architecture import MIN_RESOLUTION
from pggan.core.cpu import available_cores, keep_freed_memory
from pggan.core.errors import UserError
from pggan.core.next_command import given_words, next_command
from pggan.core.signals import StopSignal, interrupt_message
from pggan.data.build import attempts, build, clean_up
from pggan.data.checks import REPORT_FILE, examine, report_on
from pggan.data.face_crop import Landmarks
from pggan.data.image_file import BadImage, ImageSpec, load_image
from pggan.data.planning import Options, Plan, faces_of, make_plan
from pggan.data.pyramid import ImagePyramid
from pggan.data.records import ExistingDataset, existing_dataset, interrupted_dataset
from pggan.data.source import Entry, Source, no_images
from pggan.data.sources import open_source, open_sources
from pggan.data.torchvision_sets import NamedSet
from pggan.data.worker_pool import WorkerPool


def run(config: PrepareConfig) -> int:
    """Prepare images, or only check them, and print the result; a scheduler's signal ends it as Ctrl-C does."""
    writes = config.dest is not None and not config.check
    keeps = "Images that are done are kept: the same command continues with the rest." if writes else ""
    with interrupt_message(lambda: keeps), StopSignal(at_once=True):
        return _run(config)


def _run(config: PrepareConfig) -> int:
    keep_freed_memory()
    if config.report is not None:
        require_place_of_report(Path(config.report))
    workers = config.num_workers or default_workers()
    source = open_sources(config.source, NamedSet(Path(config.root), config.split, config.download))
    options = Options(**{field.name: getattr(config, field.name) for field in fields(Options)})
    if config.check:
        with WorkerPool(workers) as pool:
            check(source, options, pool, config.report)
        words = given_words({"source", "dest", "check", "report"})
        print(next_command("prepare", *words, source=config.source, dest=Path("data", name_of(config.source))))
        return 0
    if config.dest is None:
        raise UserError("'dest' needs a value.", "Add dest=DIRECTORY, or check=true to check the images only.")
    pyramid = prepare(source, Path(config.dest), options, workers=workers, report=config.report)
    levels = f"4x4 to {pyramid.resolution}x{pyramid.resolution}"
    print(f"{pyramid.path}: {levels}, images: {pyramid.images}, channels: {pyramid.channels}")
    places = {"data.path": pyramid.path, "run_dir": Path("outputs", pyramid.path.name)}
    print(next_command("train", "hours=2", **places))
    return 0


def require_place_of_report(path: Path) -> None:
    """Create the folder that the report at `path` goes into; raises UserError where that is impossible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"report={path} can't be written: {error.strerror}.", "Name another place.") from error
    if path.is_dir():
        raise UserError(f"report={path} is a folder.", "Name a file, for example report=report.json.")


def name_of(sources: object) -> str:
    """A name for the dataset of a source, or of the first of several."""
    first = sources[0] if isinstance(sources, list) else sources
    return re.split(r"[/:]", str(first).rstrip("/"))[-1].split(".")[0] or "images"


def default_workers() -> int:
    """How many processes to use when nobody says: one per core that this process may use, up to 16."""
    return min(available_cores(), 16)


def prepare(
    source: Source | Path,
    destination: Path,
    options: Options,
    *,
    workers: int = 1,
    report: str | None = None,
    reuse: Sequence[Path] = (),
) -> ImagePyramid:
    """Write the images of `source` as a dataset at `destination`, in the order of their names.

    An existing dataset is brought up to date: unchanged files are not decoded again.  What an interrupted attempt has
    done is not done again.  Where decoding shows files to be bad, the last images take their places.

    report: where to write what was found, as JSON; it is also in the dataset.
    reuse: other datasets whose images are taken over where file and image spec are the same.

    Raises UserError for no usable image, for too little disk space, and with on_bad=stop for unusable files.
    """
    existing = existing_dataset(destination)
    if existing is None and os.path.lexists(destination):
        raise UserError(f"{destination} exists already.", "Choose another name, or remove it first.")
    source = open_source(source) if isinstance(source, Path) else source
    interrupted = map(interrupted_dataset, attempts(destination))
    known = [found for found in (existing, *interrupted, *map(existing_dataset, reuse)) if found is not None]
    with WorkerPool(workers) as pool:
        plan = make_plan(source, destination, options, known, pool)
        if existing is not None:
            _check_same_dataset(existing, plan)
        if existing is not None and existing.about.plan == plan.digest:
            about, records = existing.about, existing.records
        else:
            like = [found for found in known if found.about.image_spec == plan.image_spec]
            others = [found for found in like if found.about.plan != plan.digest]
            about, records = build(
                plan, [found for found in others if found.about.index is None or _is_undamaged(found)]
            )
    clean_up(destination, about.generation)
    result = plan.report(records)
    result.show()
    for path in (destination / REPORT_FILE, *([Path(report)] if report else [])):
        result.write(path)
    return ImagePyramid(destination)


def check(source: Source, options: Options, workers: WorkerPool, report: str | None = None) -> None:
    """Open and decode every file of `source`, and print what is wrong; nothing but `report` is written.

    Raises UserError for no usable image, and with on_bad=stop for unusable ones.
    """
    entries = source.entries()
    if not entries:
        raise no_images(source.description["name"])
    records = examine(source, entries, workers)
    faces = faces_of(entries, options.landmarks)
    target = ImageSpec(options.max_resolution or MIN_RESOLUTION, options.channels or 3, options.crop, options.keep)
    reasons = {name: record.unreadable for name, record in records.items()}
    readable = [entry for entry in entries if reasons[entry.name] is None]
    decode = partial(_decode, target, faces)
    reasons.update(workers.in_order(source.task, decode, source.loaded(readable), len(readable)))
    result = report_on(entries, records, reasons)
    if report is not None:
        result.write(Path(report))
    result.refuse(options.on_bad)  # it names the bad ones
    result.show()
    print(f"{result.total - len(result.bad)} of {result.total} images can be used.")


def _decode(target: ImageSpec, faces: dict[str, Landmarks], entry: Entry) -> tuple[str, str | None]:
    """The name of a file, and why it can't be used, if it can't."""
    try:
        load_image(entry.file, target, faces.get(entry.name))
    except BadImage as bad:
        return entry.name, bad.reason
    return entry.name, None


def _check_same_dataset(existing: ExistingDataset, plan: Plan) -> None:
    """Raise UserError unless the plan brings the existing dataset up to date."""
    before, now = existing.about.image_spec, plan.image_spec
    if before != now:
        values = zip(now._fields, before, now, strict=True)
        changed = [f"{key}={old}, now {new}" for key, old, new in values if old != new]
        raise UserError(
            f"{plan.destination} exists already and was made otherwise: {'; '.join(changed)}.",
            "Choose another dest, or remove it first.",
        )
    if not any(name in plan.entries for name in existing.records):
        raise UserError(
            f"{plan.destination} exists already and was made from other files.",
            "Choose another dest; to add images, give all: source=[first,second].",
        )


def _is_undamaged(dataset: ExistingDataset) -> bool:
    """Whether every byte of a dataset is as it was written: damage must not be taken over."""
    try:
        ImagePyramid(dataset.layout.directory).verify()
    except UserError:
        return False
    return True
