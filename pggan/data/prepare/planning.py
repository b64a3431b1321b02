"""From the files of a source to a plan: which become images, of what size, with which label, at which place."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from pggan.core.architecture import SMALLEST_RESOLUTION
from pggan.core.errors import UserError, nearest
from pggan.data.format.index import check_resolution
from pggan.data.prepare.checks import ValidationReport, examine, names_by_note
from pggan.data.prepare.records import ExistingDataset, Recipe, Record, plan_digest
from pggan.data.prepare.worker_pool import WorkerPool
from pggan.data.sources.face_crop import Landmarks, face_side, read_landmarks
from pggan.data.sources.image_file import CROPS, EXTENSIONS, MODES, BadImage, ImageHeader, Target, square_side
from pggan.data.sources.labels import class_names, class_of_each
from pggan.data.sources.source import Entry, Source

MIXED_SHARE = 0.1  # of the images may have other channels than the rest, and are converted
ON_BAD = ("report", "stop")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How images become a dataset.  Raises UserError for what cannot be met.

    max_resolution: the top level; None = the largest for which no image has to be enlarged.
    channels: 1 grey, 3 colour, 4 with transparency; None = 1 if every image is grey, else 3.
    crop: how an image becomes square, a key of CROPS; keep: the share of the square's side that stays.
    landmarks: file with the landmarks of every face, for crop=face.
    labels: True = the first folder below the source is the class of an image; or the path of a JSON or CSV file.
    on_bad: report = leave unusable files out and list them on stderr; stop = make nothing if any are.
    """

    max_resolution: int | None = None
    channels: int | None = None
    crop: str = "center"
    keep: float = 1.0
    landmarks: str | None = None
    labels: bool | str = False
    on_bad: str = "report"

    def __post_init__(self) -> None:
        if self.max_resolution is not None:
            check_resolution(self.max_resolution)
        if self.channels not in (None, *MODES):
            raise UserError(f"Images of {self.channels} channels are not possible.", "Choose channels=1, 3 or 4.")
        for option, value, choices in (("crop", self.crop, tuple(CROPS)), ("on_bad", self.on_bad, ON_BAD)):
            if value not in choices:
                raise UserError(f"There is no {option}={value}.", nearest(value, choices))
        if (self.crop == "face") != (self.landmarks is not None):
            raise UserError("crop=face needs landmarks=FILE, and nothing else does.", "Give both, or neither.")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A dataset to be made: `records` of all files, those with a slot are its images; `entries` by name.

    unfit: why a file can't be used, by name, where that is known without decoding it.
    classes: the names of all classes, if there are labels.
    """

    destination: Path
    source: Source
    entries: dict[str, Entry]
    records: list[Record]
    unfit: dict[str, str]
    recipe: Recipe
    landmarks: dict[str, Landmarks]
    classes: list[str] | None
    on_bad: str
    workers: WorkerPool

    @cached_property
    def digest(self) -> str:
        """Names this plan."""
        return plan_digest(self.recipe, self.records, self.classes)

    @property
    def target(self) -> Target:
        """What every image becomes."""
        return Target(self.recipe.resolution, self.recipe.channels, self.recipe.crop, self.recipe.keep)

    def report(self, records: Sequence[Record]) -> ValidationReport:
        """What was found in the files, given what became of them."""
        reasons = ((record.name, self.unfit.get(record.name, record.undecodable)) for record in records)
        bad = [BadImage(self.entries[name].file.path, reason) for name, reason in reasons if reason is not None]
        used = [record for record in records if record.slot is not None]
        return ValidationReport(bad, names_by_note(used), len(records))

    def description(self, records: Sequence[Record]) -> dict[str, Any]:
        """How the dataset was made, for its index."""
        how: dict[str, Any] = {"crop": self.recipe.crop, "bad_images": len(self.report(records).bad)}
        if self.recipe.keep != 1:
            how["keep"] = self.recipe.keep
        return {**self.source.description, **how}


def make_plan(
    source: Source, destination: Path, options: Options, known: Sequence[ExistingDataset], workers: WorkerPool
) -> Plan:
    """Examine every file that is not `known`, and decide.

    Raises UserError for no usable image, for options that cannot be met, and with on_bad=stop for unusable files.
    """
    entries = source.entries()
    if not entries:
        raise UserError(
            f"There are no images in {source.description['name']}.",
            f"Images are files ending in {', '.join(EXTENSIONS)}; linked folders are not entered.",
        )
    records = _examined(source, entries, known, workers)
    headers = {record.name: record.header for record in records if record.header is not None}
    files = {entry.name: entry.file.path for entry in entries}
    faces = faces_of(files, options.landmarks)
    sides = {name: _side(name, header, options, faces) for name, header in headers.items()}
    resolution = _top_level(options.max_resolution, sides.values())
    good = [entry for entry in entries if sides.get(entry.name, 0) >= resolution]
    unfit = {record.name: str(record.unreadable) for record in records if record.header is None} | {
        name: _unfit(name, resolution, options, faces) for name, side in sides.items() if side < resolution
    }
    bad = [BadImage(files[entry.name], unfit[entry.name]) for entry in entries if entry.name in unfit]
    ValidationReport(bad, {}, len(entries)).refuse(options.on_bad)
    classes, numbers = _classes(options.labels, source, good)
    recipe = Recipe(
        resolution=resolution,
        channels=options.channels or _common_channels([headers[entry.name].channels for entry in good]),
        crop=options.crop,
        keep=options.keep,
        landmarks=None if options.landmarks is None else sha256(Path(options.landmarks).read_bytes()).hexdigest(),
    )
    same = [dataset for dataset in known if dataset.about.recipe == recipe]
    slots = {entry.name: slot for slot, entry in enumerate(good)}
    return Plan(
        destination=destination,
        source=source,
        entries={entry.name: entry for entry in entries},
        records=[
            record._replace(
                undecodable=_known_damage(record, same), slot=slots.get(record.name), label=numbers.get(record.name)
            )
            for record in records
        ],
        unfit=unfit,
        recipe=recipe,
        landmarks=faces,
        classes=classes,
        on_bad=options.on_bad,
        workers=workers,
    )


def _examined(
    source: Source, entries: Sequence[Entry], known: Sequence[ExistingDataset], workers: WorkerPool
) -> list[Record]:
    """A record of every file, without opening those that have not changed since an earlier preparation."""
    records: dict[str, Record] = {}
    for entry in entries:
        found = (dataset.known(entry.name, entry.stamp) for dataset in known)
        if record := next((record for record in found if record is not None), None):
            records[entry.name] = record
    new_sizes = {entry.size for entry in entries if entry.name not in records}
    # A new file may be the same as one that is known, so those of its size are examined again.
    again = [entry for entry in entries if entry.name not in records or entry.size in new_sizes]
    records |= examine(source, again, workers) if again else {}
    return [records[entry.name] for entry in entries]


def _known_damage(record: Record, same: Sequence[ExistingDataset]) -> str | None:
    """Why a file can't be decoded, if that is known from a dataset of the same recipe."""
    found = (dataset.known(record.name, record.stamp) for dataset in same)
    return next((earlier.undecodable for earlier in found if earlier and earlier.undecodable is not None), None)


def faces_of(files: dict[str, Path], landmarks: str | None) -> dict[str, Landmarks]:
    """The landmarks of every file, found by its whole name or by its last part."""
    if landmarks is None:
        return {}
    listed = read_landmarks(Path(landmarks))
    by_last = {Path(name).name: points for name, points in listed.items()}
    found = {name: listed.get(name, by_last.get(Path(name).name)) for name in files}
    return {name: points for name, points in found.items() if points is not None}


def _side(name: str, header: ImageHeader, options: Options, faces: dict[str, Landmarks]) -> int:
    """How large a resolution a file can serve."""
    if options.crop == "face":
        return int(face_side(faces[name])) if name in faces else 0
    return square_side(header.width, header.height, options.crop, options.keep)


def _unfit(name: str, resolution: int, options: Options, faces: dict[str, Landmarks]) -> str:
    """Why a readable file cannot be used."""
    if options.crop == "face" and name not in faces:
        return "no landmarks in the landmarks file"
    return f"{'a face ' if options.crop == 'face' else ''}smaller than {resolution}x{resolution}"


def _top_level(max_resolution: int | None, sides: Collection[int]) -> int:
    """The resolution of the top level, given what the files can serve.  Raises UserError if it is too much."""
    usable = [side for side in sides if side >= SMALLEST_RESOLUTION]
    if not usable:  # every image is about to be refused, so it does not matter
        return SMALLEST_RESOLUTION
    if max_resolution is None:
        return 1 << (min(usable).bit_length() - 1)  # the largest power of two up to it
    if max_resolution > max(usable):
        raise UserError(
            f"max_resolution={max_resolution} is too much: the largest image allows {max(usable)} pixels.",
            f"Choose max_resolution={1 << (max(usable).bit_length() - 1)} or less.",
        )
    return max_resolution


def _common_channels(channels: Sequence[int]) -> int:
    """The channels of a dataset for images of these: 1 if all are grey, else 3.

    Raises UserError where no kind is the clear majority: what the others are to become is for the user to say.
    """
    counts = Counter(channels)
    if len(channels) - max(counts.values()) > MIXED_SHARE * len(channels):
        kinds = {1: "grey", 3: "colour", 4: "with transparency"}
        mixed = ", ".join(f"{count} {kinds[kind]}" for kind, count in counts.most_common())
        raise UserError(
            f"The images are mixed: {mixed}.",
            "Say what all are to become: channels=3 (grey is repeated, transparency laid on white), 1 or 4; "
            "data.channels= when training.",
        )
    return 1 if set(counts) == {1} else 3


def _classes(labels: bool | str, source: Source, good: Sequence[Entry]) -> tuple[list[str] | None, dict[str, int]]:
    """The names of all classes, and the number of the class of each good image, by its name."""
    if labels is False:
        return None, {}
    classes = class_of_each(labels, str(source.description["name"]), good)
    names = class_names(list(classes.values()))
    numbers = {name: number for number, name in enumerate(names)}
    return names, {name: numbers[of_image] for name, of_image in classes.items()}
