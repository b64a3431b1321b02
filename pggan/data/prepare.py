"""`pggan prepare`: convert image files to a dataset."""

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path

import numpy as np
from PIL import Image

from pggan.config.commands import PrepareConfig
from pggan.core.architecture import MIN_RESOLUTION
from pggan.core.atomic_io import atomic_directory, file_sha256, parse_json, require_free_space, try_lock
from pggan.core.errors import UserError
from pggan.core.process import StopSignal
from pggan.core.text import next_command
from pggan.data.data_sets import STYLE, avatars, open_source
from pggan.data.face_crop import align_face
from pggan.data.image_file import MODES, BadImage, decode, load_image, to_pil, usable_side
from pggan.data.pyramid import ImagePyramid, is_pyramid
from pggan.data.report import SECOND, Findings, examine, with_found_faces
from pggan.data.sources import Entry, Source
from pggan.data.tables import classes_of, with_landmarks
from pggan.data.workers import Workers
from pggan.data.writer import Layout, write_index

REPORT_FILE = "report.json"  # this file in the dataset lists the images that were left out
SHEET_FILE = "faces.png"  # this picture in the dataset shows the faces that crop=faces cut out
SHEET_COLUMNS, SHEET_IMAGES, SHEET_TILE = 24, 576, 64  # SHEET_FILE: columns, maximum faces, width of a face in pixels
SMALL_SHARE = 0.1  # with crop=faces, at most this share of the faces is smaller than the default resolution


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `pggan prepare` that determine the dataset; configs/commands/prepare.yaml explains each option."""

    max_resolution: int | None = None
    channels: int | None = None
    crop: str = "center"
    landmarks: str | None = None
    labels: bool | str = False
    on_bad: str = "report"


def run(config: PrepareConfig) -> int:
    """Run `pggan prepare`: write the dataset, and print a summary."""
    with StopSignal(at_once=True):
        options = Options(**{field.name: getattr(config, field.name) for field in fields(Options)})
        pyramid = prepare(open_source(config.source), Path(config.dest), options, config.num_workers)
    levels, classes = f"4x4 to {pyramid.resolution}x{pyramid.resolution}", len(pyramid.class_names or ())
    about = f"{levels}, images: {pyramid.images}, channels: {pyramid.channels}"
    print(f"{pyramid.path}: {about}{f', classes: {classes}' * bool(classes)}")
    words = [*["data.labels=true"] * bool(classes), "hours=2"]
    if options.crop == "faces":
        print(f"{pyramid.path / SHEET_FILE} shows the faces.")
        words += ["init_from=pretrained:portraits64"] * (pyramid.resolution >= 64)  # trained weights save training time
    places, run_dir = {"data.path": pyramid.path}, Path("outputs", pyramid.path.name)
    places |= {} if run_dir.exists() else {"run_dir": run_dir}  # an existing folder may belong to another run
    print(next_command("train", *words, **places))
    return 0


def prepare(source: Source, destination: Path, options: Options, workers: int | None = None) -> ImagePyramid:
    """Write the images of `source` as a dataset at `destination`, unless the same dataset exists there already.

    Raises UserError if `destination` holds something else, if all images are bad, or if any is bad and on_bad=stop.
    """
    digest = digest_of(source, options)
    try:
        with suppress(OSError):
            destination.rmdir()  # `rmdir` removes a folder only if it is empty
        if not os.path.lexists(destination):
            _make(source, destination, options, digest, workers)
    except OSError as error:
        problem = f"{destination} cannot be written: {error.strerror}."
        raise UserError(problem, "Free disk space, get write permission, or choose another destination.") from error
    made_of = None
    with suppress(OSError, ValueError):
        made_of = parse_json((destination / REPORT_FILE).read_bytes()).get("made_of")
    if made_of != digest:
        problem = f"{destination} exists already, and was not made of these files with these options."
        raise UserError(problem, "Choose a dest= that does not exist yet.")
    return ImagePyramid(destination)


def training_pyramid(
    resolution: int, *, path: str | None, cache: str, count: int, crop: str, channels: int | None, labels: bool
) -> Path:
    """Return the dataset directory for training up to `resolution`; a missing dataset is made in the folder `cache`.

    `path` is a dataset, a folder, an archive or torchvision:NAME; None gives a dataset of `count` cartoon faces.
    """
    if path is None:
        cached = Path(cache, f"avatars-{STYLE}-{count}-{resolution}px")
        if not any(cached.glob("*")):
            prepare(avatars(count, resolution), cached, Options(max_resolution=resolution, channels=3))
        return cached
    if is_pyramid(Path(path)):
        return Path(path)
    options = Options(max_resolution=resolution, crop=crop, channels=channels, labels=labels)
    source = open_source(path, cache)
    digest = digest_of(source, options)[:12]  # changed images get another digest, and so another directory
    cached = Path(cache, f"{Path(str(source.description['name'])).name}-{resolution}px-{digest}")
    if not any(cached.glob("*")):
        print(f"The images of {path} become a dataset for this run and later runs:\n  {cached}", file=sys.stderr)
        prepare(source, cached, options)
    return cached


def digest_of(source: Source, options: Options) -> str:
    """Return one SHA-256 of the options, the tables of labels and landmarks, and all images' names and stamps."""
    tables = [Path(path) for path in (options.landmarks, options.labels) if isinstance(path, str)]
    inside = [source.table] if options.labels is True and source.table is not None else []
    files = [(entry.name, entry.stamp) for entry in [*source.entries, *inside]]
    form = [files, asdict(options), [file_sha256(path) for path in tables if path.is_file()]]
    return sha256(json.dumps(form).encode()).hexdigest()


def _make(source: Source, destination: Path, options: Options, digest: str, workers: int | None) -> None:
    with Workers(workers) as pool:
        if options.crop == "faces":
            known = options.landmarks
            source = with_found_faces(source, pool) if known is None else with_landmarks(source, Path(known))
        found = examine(source, pool)
        resolution = top_level(found, options)
        found.refuse(options.on_bad)
        classes_of(options.labels, source, found.good())  # raises UserError for bad labels before the slow decoding
        with _alone(destination):
            if os.path.lexists(destination):
                return
            with atomic_directory(destination) as directory:
                layout = _decode_all(found, directory, resolution, options, pool)
                class_names, classes = classes_of(options.labels, source, found.good())
                labels = [classes[entry.name] for entry in found.good()] if class_names else []
                about = source.description | {"crop": options.crop, "bad_images": len(found.reasons)}
                write_index(layout, about, class_names=class_names, labels=labels)
                if options.crop == "faces":
                    write_sheet(directory, found)
                (directory / REPORT_FILE).write_text(found.to_json(made_of=digest), "utf-8")
    found.show()
    if source.table is not None and not class_names:
        print(f"To use labels of {source.table.name}: labels=true (in training: data.labels=true).", file=sys.stderr)


def write_sheet(directory: Path, found: Findings) -> None:
    """Write SHEET_FILE, a picture of up to 576 faces, and note in `found` which photographs have several faces."""
    pyramid = ImagePyramid(directory)
    tile, count = min(SHEET_TILE, pyramid.resolution), min(SHEET_IMAGES, pyramid.images)
    tiles = pyramid.read(tile, np.arange(count) * pyramid.images // count)
    sheet = Image.new(MODES[pyramid.channels], (SHEET_COLUMNS * tile, -(-count // SHEET_COLUMNS) * tile), "white")
    for number, pixels in enumerate(tiles):
        row, column = divmod(number, SHEET_COLUMNS)
        sheet.paste(to_pil(pixels), (column * tile, row * tile))
    sheet.save(directory / SHEET_FILE)
    for photo in (entry.name.removesuffix(SECOND) for entry in found.source.entries if entry.name.endswith(SECOND)):
        found.notes[photo] = [*found.notes.get(photo, []), "several faces"]


@contextmanager
def _alone(destination: Path) -> Iterator[None]:
    path = destination.with_name(f".{destination.name}.lock")
    destination.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as lock:
        if not try_lock(lock.fileno()):
            print(f"Another process is preparing {destination}; this one waits for it.", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        path.unlink(missing_ok=True)  # after an error, the lock file stays for the processes that wait for the lock


def _decode_all(found: Findings, directory: Path, resolution: int, options: Options, pool: Workers) -> Layout:
    """Write all good images into the shards; if some can't be decoded, start again without these images."""
    while True:
        slots = {entry.name: slot for slot, entry in enumerate(found.good())}
        is_grey = all(found.headers[name].is_grey for name in slots)
        layout = Layout(directory, resolution, options.channels or (1 if is_grey else 3), len(slots))
        needed = sum(shard.bytes for shards in layout.shards().values() for shard in shards)
        remedy = "Free some disk space, choose another disk, or lower the resolution."
        require_free_space(directory.parent, needed, remedy)
        layout.create()
        items = [(slots[entry.name], entry) for entry in found.source.in_reading_order() if entry.name in slots]
        results = pool.in_order("Preparing images", partial(_decode, layout, options.crop), items)
        done = dict(results)
        bad = {name: result for name, result in done.items() if isinstance(result, str)}
        if not bad:
            found.notes = {name: result for name, result in done.items() if isinstance(result, list)}
            return layout
        found.reasons |= bad
        found.refuse(options.on_bad)


_photograph = lru_cache(maxsize=1)(decode)  # cached, because several faces may be cut out of one photograph


def _decode(layout: Layout, crop: str, item: tuple[int, Entry]) -> tuple[str, list[str] | str]:
    """Write an image to the shards; returns (file name, remarks) or, for a bad image, (file name, error message)."""
    slot, entry = item
    try:
        if entry.face is None:
            pixels, notes = load_image(entry.file, layout.resolution, layout.channels, crop)
        else:
            pixels, notes = _photograph(entry.file, layout.channels)
            pixels = align_face(pixels, entry.face, layout.resolution)
    except BadImage as bad:
        return entry.name, str(bad)
    layout.write(slot, pixels)
    return entry.name, notes if entry.header is None else []  # avatars need no conversion


def top_level(found: Findings, options: Options) -> int:
    """Return the highest resolution of the dataset, and mark images below this resolution as bad in `found`."""
    headers = {entry.name: found.headers[entry.name] for entry in found.good()}
    sides = {name: usable_side(header.width, header.height, options.crop) for name, header in headers.items()}
    usable = sorted(side for side in sides.values() if side >= MIN_RESOLUTION) or [MIN_RESOLUTION]
    smallest = usable[int(SMALL_SHARE * len(usable)) if options.crop == "faces" else 0]
    resolution = options.max_resolution or 1 << smallest.bit_length() - 1
    small = f"{'a face ' if options.crop == 'faces' else ''}smaller than {resolution}x{resolution}"
    found.reasons |= {name: small for name, side in sides.items() if side < resolution}
    return resolution
