"""`pggan prepare`: images to a dataset; every file checked, cropped and reduced, and the bad ones named."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pggan.config import PrepareConfig
from pggan.core.architecture import SMALLEST_RESOLUTION
from pggan.core.cpu import available_cores
from pggan.core.errors import UserError
from pggan.data.format.pyramid import ImagePyramid, require_new
from pggan.data.prepare.build import build, earlier_attempts
from pggan.data.prepare.checks import attempt, examine, refuse, show, write_report
from pggan.data.prepare.planning import Options, Plan, faces_of, make_plan
from pggan.data.prepare.records import ExistingDataset, Record, earlier_attempt, earlier_dataset
from pggan.data.prepare.worker_pool import WorkerPool, keep_freed_memory
from pggan.data.sources.face_crop import Landmarks
from pggan.data.sources.folders import JoinedSource, open_source
from pggan.data.sources.image_file import BadImage, Target, load_image
from pggan.data.sources.source import Entry, Source
from pggan.data.sources.torchvision_sets import NamedSet, find_named, is_named, open_named

REPORT_FILE = "report.json"


def run(config: PrepareConfig) -> int:
    """Prepare images, or only check them, and say what came of it."""
    keep_freed_memory()
    workers = config.num_workers or default_workers()
    source = open_sources(config.source, NamedSet(Path(config.root), config.split, config.download))
    options = Options(
        max_resolution=config.max_resolution,
        channels=config.channels,
        crop=config.crop.value,
        keep=config.keep,
        landmarks=config.landmarks,
        labels=config.labels,
        on_bad=config.on_bad.value,
    )
    if config.check:
        with WorkerPool(workers) as crew:
            check(source, options, crew, config.report)
        return 0
    if config.dest is None:
        raise UserError("'dest' needs a value.", "Add dest=DIRECTORY, or check=true to look at the images only.")
    pyramid = prepare(source, Path(config.dest), options, workers=workers, report=config.report)
    levels = f"4x4 to {pyramid.resolution}x{pyramid.resolution}"
    print(f"{pyramid.path}: {levels}, images: {pyramid.images}, channels: {pyramid.channels}")
    return 0


def default_workers() -> int:
    """How many processes to use when nobody says: one per core that this process may use, up to 16."""
    return min(available_cores(), 16)


def open_sources(paths: object, named: NamedSet) -> Source:
    """What `paths` names: a path, the name of a known set, or a list of these.  Raises UserError."""
    if isinstance(paths, list):
        if not paths:
            raise UserError("source=[] names nothing.", "Give at least one folder or archive.")
        return JoinedSource([open_sources(path, named) for path in paths])
    name = str(paths)
    if is_named(name):
        return open_named(find_named(name), named)
    return open_source(Path(name))


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

    A dataset that is there already is brought up to date: unchanged files are not decoded again.  What an interrupted
    attempt has done is not done again.  Where decoding shows files to be bad, the last images take their places.

    report: where to write what was found, as JSON; it is also in the dataset.
    reuse: other datasets whose images are taken over where file and recipe are the same.

    Raises UserError for no usable image, for too little disk space, and with on_bad=stop for unusable files.
    """
    there = earlier_dataset(destination)
    if there is None:
        require_new(destination)
    source = open_source(source) if isinstance(source, Path) else source
    attempts = map(earlier_attempt, earlier_attempts(destination))
    known = [dataset for dataset in (there, *attempts, *map(earlier_dataset, reuse)) if dataset is not None]
    with WorkerPool(workers) as crew:
        plan = make_plan(source, destination, options, known, crew)
        records = _made(plan, known, there)
    bad, usable = plan.bad_images(records), {record.name for record in records if record.slot is not None}
    notes = {text: kept for text, names in plan.notes.items() if (kept := [n for n in names if n in usable])}
    show(bad, notes, len(records))
    for path in (destination / REPORT_FILE, *([Path(report)] if report else [])):
        write_report(path, bad, notes, len(records))
    return ImagePyramid(destination)


def _made(plan: Plan, known: Sequence[ExistingDataset], there: ExistingDataset | None) -> list[Record]:
    """Bring about what is planned, unless it is `there` already; what became of every file."""
    if there is not None:
        _check_same_dataset(there, plan)
        if there.about.plan == plan.digest:
            return list(there.records.values())
    same = [dataset for dataset in known if dataset.about.recipe == plan.recipe]
    whole = [dataset for dataset in same if dataset.done is not None or _is_whole(dataset)]
    return build(plan, [dataset for dataset in whole if dataset.about.plan != plan.digest])


def check(source: Source, options: Options, workers: WorkerPool, report: str | None = None) -> None:
    """Open and decode every file of `source`, and say what is wrong; nothing else is written.

    Raises UserError for no usable image, and with on_bad=stop for unusable ones.
    """
    entries = source.entries()
    found = examine(source, entries, workers)
    good = [entry for entry in entries if entry.name in found.headers]
    faces = faces_of({entry.name: entry.file.path for entry in entries}, options.landmarks)
    resolution = options.max_resolution or SMALLEST_RESOLUTION
    target = Target(resolution, options.channels or 3, options.crop, options.keep)
    look = partial(_decode, target, faces)
    bad = dict(found.bad)
    with workers.in_order("Decoding images", look, source.loaded(good), len(good)) as results:
        bad |= {name: image for name, image in results if image is not None}
    notes = {text: kept for text, names in found.notes.items() if (kept := [n for n in names if n not in bad])}
    listed = [bad[entry.name] for entry in entries if entry.name in bad]
    if report is not None:
        write_report(Path(report), listed, notes, len(entries))
    refuse(listed, len(entries), options.on_bad)
    show(listed, notes, len(entries))
    print(f"{len(entries) - len(bad)} of {len(entries)} images can be used.")


def _decode(target: Target, faces: dict[str, Landmarks], entry: Entry) -> tuple[str, BadImage | None]:
    pixels = attempt(load_image, entry.file, target, faces.get(entry.name))
    return entry.name, pixels if isinstance(pixels, BadImage) else None


def _check_same_dataset(there: ExistingDataset, plan: Plan) -> None:
    """Raise UserError unless the plan brings the dataset that is there up to date."""
    if there.about.recipe != plan.recipe:
        changed = [
            f"{key}={getattr(there.about.recipe, key)}, now {getattr(plan.recipe, key)}"
            for key in ("resolution", "channels", "crop", "keep", "landmarks")
            if getattr(there.about.recipe, key) != getattr(plan.recipe, key)
        ]
        raise UserError(
            f"{plan.destination} exists already and was made otherwise: {'; '.join(changed)}.",
            "Choose another dest, or remove it first.",
        )
    if not any(record.name in plan.entries for record in there.records.values()):
        raise UserError(
            f"{plan.destination} exists already and was made from other files.",
            "Choose another dest; to add images, give all: source=[first,second].",
        )


def _is_whole(dataset: ExistingDataset) -> bool:
    """Whether every byte of a dataset is as it was written: damage must not be taken over."""
    try:
        ImagePyramid(dataset.directory).verify()
    except UserError:
        return False
    return True
