"""`pggan prepare`: files of images to a pyramid, which is made in a temporary folder and then gets its name."""

import fcntl
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from hashlib import sha256
from pathlib import Path

from pggan.config.commands import PrepareConfig
from pggan.core.architecture import MIN_RESOLUTION
from pggan.core.atomic_io import atomic_directory, file_sha256, parse_json, require_free_space, try_lock
from pggan.core.errors import UserError
from pggan.core.process import StopSignal
from pggan.core.text import given_words, next_command
from pggan.data.data_sets import STYLE, avatars, open_source
from pggan.data.face_crop import align_face
from pggan.data.image_file import BadImage, all_levels, decode, load_image, usable_side
from pggan.data.pyramid import INDEX_FILE, ImagePyramid
from pggan.data.report import Findings, examine
from pggan.data.sources import Entry, Source
from pggan.data.tables import classes_of, with_faces
from pggan.data.workers import Workers
from pggan.data.writer import Layout, write_index

MIXED_SHARE = 0.1  # of the images may have other channels than the rest, and are converted
REPORT_FILE = "report.json"  # of a pyramid, beside its index


@dataclass(frozen=True, kw_only=True)
class Options:
    """How images become a dataset.

    max_resolution: the top level; None = the largest for which no image has to be enlarged.
    channels: 1 grey, 3 colour, 4 with transparency; None = 1 if every image is grey, else 3.
    crop: how an image becomes square: center, resize, pad (see `load_image`), or face, as FFHQ.
    landmarks: file with the landmarks of every face, for crop=face.
    labels: True = the first folder below the source is the class of an image; or the path of a JSON or CSV file.
    on_bad: report = leave unusable files out and list them on stderr; stop = make nothing if any are.
    """

    max_resolution: int | None = None
    channels: int | None = None
    crop: str = "center"
    landmarks: str | None = None
    labels: bool | str = False
    on_bad: str = "report"


def run(config: PrepareConfig) -> int:
    """Prepare images, or only check them, and print the result; a scheduler's signal ends it as Ctrl-C does."""
    with StopSignal(at_once=True):
        source = open_source(config.source, config.root, config.split, download=config.download)
        options = Options(**{field.name: getattr(config, field.name) for field in fields(Options)})
        if config.check:
            check(source, options, config.num_workers)
            name = re.split(r"[/:]", config.source.rstrip("/"))[-1].split(".")[0] or "images"
            words = given_words({"source", "dest", "check"})
            print(next_command("prepare", *words, source=config.source, dest=Path("data", name)))
            return 0
        if config.dest is None:
            raise UserError("'dest' needs a value.", "Add dest=DIRECTORY, or check=true to check the images only.")
        pyramid = prepare(source, Path(config.dest), options, config.num_workers)
    levels = f"4x4 to {pyramid.resolution}x{pyramid.resolution}"
    print(f"{pyramid.path}: {levels}, images: {pyramid.images}, channels: {pyramid.channels}")
    places = {"data.path": pyramid.path, "run_dir": Path("outputs", pyramid.path.name)}
    print(next_command("train", "hours=2", **places))
    return 0


def check(source: Source, options: Options, workers: int | None = None) -> None:
    """Open and decode every file of `source`, and print what is wrong; nothing is written.

    Raises UserError for no usable image, and with on_bad=stop for unusable ones.
    """
    layout = Layout(Path(), options.max_resolution or MIN_RESOLUTION, options.channels or 3, 0)
    with Workers(workers if source.loaded is iter else 1) as pool:
        found = examine(with_faces(source, options.landmarks), pool)
        _decode_all(found, layout, options.crop, pool)
    found.refuse(options.on_bad)  # it names the bad ones
    found.show()
    print(f"{len(found.good())} of {len(source.entries)} images can be used.")


def prepare(source: Source, destination: Path, options: Options, workers: int | None = None) -> ImagePyramid:
    """Write the images of `source` as a dataset at `destination`, in the order of their names.

    A dataset that was made of the same files with the same options is not made again.  Where decoding
    shows files to be bad, it begins again without them.

    Raises UserError for no usable image, too little disk space, an existing destination that holds something else, and
    with on_bad=stop for unusable files.
    """
    digest = digest_of(source.entries, options)
    try:
        if not os.path.lexists(destination):
            _make(source, destination, options, digest, workers)
    except OSError as error:
        problem = f"{destination} cannot be written: {error.strerror}."
        raise UserError(problem, "Make room or get permission there, or choose another place.") from error
    try:
        made_of = parse_json((destination / REPORT_FILE).read_bytes()).get("made_of")
    except (OSError, ValueError):
        made_of = None
    if made_of != digest:
        problem = f"{destination} exists already, and was not made of these files with these options."
        raise UserError(problem, "Choose another place, or remove it first.")
    return ImagePyramid(destination)


def training_pyramid(
    resolution: int, *, path: str | None, cache: str, count: int, crop: str, channels: int | None, labels: bool
) -> Path:
    """The pyramid to train on up to `resolution`: that at `path`, or one in the folder `cache`, where it is made once.

    Args: path: of a pyramid, a folder or an archive, or the name of a known set; None: `count` avatars.
    """
    if path is None:
        cached = Path(cache, f"avatars-{STYLE}-{count}-{resolution}px")
        if not cached.exists():
            prepare(avatars(count, resolution), cached, Options(max_resolution=resolution, channels=3))
        return cached
    if Path(path, INDEX_FILE).is_file():
        return Path(path)
    options = Options(max_resolution=resolution, crop=crop, channels=channels, labels=labels)
    source = open_source(path, Path(cache, "downloads"))
    digest = digest_of(source.entries, options)[:12]  # so that a change is noticed
    cached = Path(cache, f"{Path(str(source.description['name'])).name}-{resolution}px-{digest}")
    if not cached.exists():
        print(f"Preparing {path}, once, into {cached}.", file=sys.stderr)
        prepare(source, cached, options)
    return cached


def digest_of(entries: Sequence[Entry], options: Options) -> str:
    """A digest of all that a dataset depends on: the names and stamps of its files, and the options."""
    tables = [Path(path) for path in (options.landmarks, options.labels) if isinstance(path, str)]
    files = [(entry.name, entry.stamp) for entry in entries]
    form = [files, asdict(options), [file_sha256(path) for path in tables if path.is_file()]]
    return sha256(json.dumps(form).encode()).hexdigest()


def _make(source: Source, destination: Path, options: Options, digest: str, workers: int | None) -> None:
    """Make a dataset, unless another process does so first."""
    with Workers(workers if source.loaded is iter else 1) as pool:
        found = examine(with_faces(source, options.landmarks), pool)
        resolution = top_level(found, options)
        found.refuse(options.on_bad)
        good = found.good()
        channels = options.channels or common_channels([found.headers[entry.name].channels for entry in good])
        class_names, classes = classes_of(options.labels, str(source.description["name"]), good)
        with _temporary_folder(destination) as directory:
            if directory is None:
                return
            layout = Layout(directory, resolution, channels, len(good))
            needed = sum(shard.bytes for shards in layout.shards().values() for shard in shards)
            require_free_space(destination, needed, "Free some space, choose another disk, or lower the resolution.")
            decoded: list[Entry] = []
            while decoded != good:  # again without those that turned out to be bad
                layout, decoded = layout._replace(images=len(good)), good
                layout.create()
                _decode_all(found, layout, options.crop, pool)
                found.refuse(options.on_bad)
                good = found.good()
            labels = [classes[entry.name] for entry in good] if class_names else []
            about = source.description | {"crop": options.crop, "bad_images": len(found.reasons)}
            write_index(layout, about, class_names=class_names, labels=labels)
            (directory / REPORT_FILE).write_text(found.to_json(made_of=digest))
    found.show()


@contextmanager
def _temporary_folder(destination: Path) -> Iterator[Path | None]:
    """A folder that becomes `destination` at the end of the block; None if another process has made that meanwhile.

    While another process is at work on the same destination, this one waits.
    """
    path = destination.with_name(f".{destination.name}.lock")
    destination.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as lock:
        if not try_lock(lock.fileno()):
            print(f"Another process is preparing {destination}; this one waits for it.", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.lexists(destination):
            yield None
        else:
            with atomic_directory(destination) as directory:
                yield directory
        path.unlink(missing_ok=True)  # not after an error: who waits would then work beside whoever comes next


def _decode_all(found: Findings, layout: Layout, crop: str, pool: Workers) -> None:
    """Decode the good files, note which can't be decoded, and write each image into the place of its number."""
    good = found.good()
    slots = {entry.name: slot for slot, entry in enumerate(good)}
    items = ((slots[entry.name], entry) for entry in found.source.loaded(good))
    results = pool.in_order(found.source.task, partial(_decode, layout, crop), items, len(good))
    found.reasons |= {name: reason for name, reason in results if reason is not None}


def _decode(layout: Layout, crop: str, item: tuple[int, Entry]) -> tuple[str, str | None]:
    """The name of a file whose image was decoded and, if it has a place, written; and why it could not be."""
    slot, entry = item
    try:
        if entry.face is None:
            pixels = load_image(entry.file, layout.resolution, layout.channels, crop)
        else:
            pixels = align_face(decode(entry.file, layout.channels), entry.face, layout.resolution)
    except (BadImage, ValueError) as bad:
        return entry.name, str(bad)
    if layout.images:
        layout.write(slot, all_levels(pixels))
    return entry.name, None


# ---- the form of the images


def top_level(found: Findings, options: Options) -> int:
    """The resolution of the top level; finds the files that are too small for it.  Raises UserError if all are."""
    headers = {entry.name: found.headers[entry.name] for entry in found.good()}
    sides = {name: usable_side(header.width, header.height, options.crop) for name, header in headers.items()}
    usable = [side for side in sides.values() if side >= MIN_RESOLUTION]
    resolution = options.max_resolution or 1 << min(usable, default=MIN_RESOLUTION).bit_length() - 1
    if usable and resolution > max(usable):
        raise UserError(
            f"A resolution of {resolution} is too much: the largest image allows {max(usable)} pixels.",
            f"Choose {1 << max(usable).bit_length() - 1} or less: max_resolution=, when training "
            "schedule.final_resolution=.",
        )
    small = f"{'a face ' if options.crop == 'face' else ''}smaller than {resolution}x{resolution}"
    found.reasons |= {name: small for name, side in sides.items() if side < resolution}
    return resolution


def are_mixed(counts: Counter[int]) -> bool:
    """Whether no number of channels is that of nearly all images."""
    return counts.total() - max(counts.values()) > MIXED_SHARE * counts.total()


def common_channels(channels: Sequence[int]) -> int:
    """The channels of a dataset for images of these: 1 if all are grey, else 3.

    Raises UserError where no kind is the clear majority: what the others are to become is for the user to say.
    """
    counts = Counter(channels)
    if are_mixed(counts):
        kinds = {1: "grey", 3: "colour", 4: "with transparency"}
        mixed = ", ".join(f"{count} {kinds[kind]}" for kind, count in counts.most_common())
        raise UserError(
            f"The images are mixed: {mixed}.",
            "Say what all are to become: channels=3 (grey is repeated, transparency laid on white), 1 or 4; "
            "data.channels= when training.",
        )
    return 1 if set(counts) == {1} else 3
