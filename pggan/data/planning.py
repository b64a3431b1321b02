"""From the files of a source to a plan: which become images, of what size, with which label, at which place."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from pggan.core.architecture import MIN_RESOLUTION, is_power_of_two
from pggan.core.atomic_io import file_sha256
from pggan.core.errors import UserError
from pggan.data.checks import ValidationReport, examine, report_on
from pggan.data.face_crop import Landmarks, read_landmarks
from pggan.data.image_file import MODES, ImageSpec, too_small, usable_side
from pggan.data.labels import classes_of
from pggan.data.records import ExistingDataset, Record, found_before
from pggan.data.source import Entry, Source, no_images
from pggan.data.worker_pool import WorkerPool

MIXED_SHARE = 0.1  # of the images may have other channels than the rest, and are converted


@dataclass(frozen=True, kw_only=True)
class Options:
    """How images become a dataset.  Raises UserError for what cannot be met.

    max_resolution: the top level; None = the largest for which no image has to be enlarged.
    channels: 1 grey, 3 colour, 4 with transparency; None = 1 if every image is grey, else 3.
    crop: how an image becomes square; keep: the share of the square's side that stays (see `ImageSpec`).
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
        side = self.max_resolution
        if side is not None and (side < MIN_RESOLUTION or not is_power_of_two(side)):
            raise UserError(
                f"max_resolution={side} is not a power of two from {MIN_RESOLUTION} up.",
                "Choose one of 4, 8, 16, 32, 64, 128, 256, 512, 1024, ….",
            )
        if self.channels not in (None, *MODES):
            raise UserError(f"Images of {self.channels} channels are not possible.", "Choose channels=1, 3 or 4.")
        if (self.crop == "face") != (self.landmarks is not None):
            raise UserError("crop=face needs landmarks=FILE, and nothing else does.", "Give both, or neither.")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A dataset to be made: `records` of all files, those with a slot are its images; `entries` by name.

    unfit: why a file can't be used, by name, where that is known without decoding it.
    class_names: the names of all classes, if there are labels.
    """

    destination: Path
    source: Source
    entries: dict[str, Entry]
    records: dict[str, Record]
    unfit: dict[str, str]
    image_spec: ImageSpec
    landmarks: dict[str, Landmarks]
    class_names: list[str] | None
    on_bad: str
    workers: WorkerPool

    @cached_property
    def digest(self) -> str:
        """Equal for two plans exactly when they make the same dataset."""
        digest = sha256(json.dumps([self.image_spec._asdict(), self.class_names]).encode())
        for record in self.records.values():
            digest.update(json.dumps([record.name, record.stamp, record.label]).encode())
        return digest.hexdigest()

    def report(self, records: dict[str, Record]) -> ValidationReport:
        """The report on the files of the plan, whose decoding gave `records`, by name."""
        undecodable = {record.name: record.undecodable for record in records.values()}
        return report_on(self.entries.values(), records, undecodable | self.unfit)


def make_plan(
    source: Source, destination: Path, options: Options, known: Sequence[ExistingDataset], workers: WorkerPool
) -> Plan:
    """Examine every file that is not `known`, and decide.

    Raises UserError for no usable image, for options that cannot be met, and with on_bad=stop for unusable files.
    """
    entries = source.entries()
    if not entries:
        raise no_images(source.description["name"])
    records = _examined(source, entries, known, workers)
    headers = {name: record.header for name, record in records.items() if record.header is not None}
    faces = faces_of(entries, options.landmarks)
    sides = {
        name: usable_side(header.width, header.height, options.crop, options.keep, faces.get(name))
        for name, header in headers.items()
    }
    resolution = _top_level(options.max_resolution, sides.values())
    good = [entry for entry in entries if sides.get(entry.name, 0) >= resolution]
    unfit = {
        name: record.unreadable or too_small(resolution, options.crop, faces.get(name))
        for name, record in records.items()
        if sides.get(name, 0) < resolution
    }
    report_on(entries, records, unfit).refuse(options.on_bad)
    class_names, classes = classes_of(options.labels, str(source.description["name"]), good)
    image_spec = ImageSpec(
        resolution=resolution,
        channels=options.channels or _common_channels([headers[entry.name].channels for entry in good]),
        crop=options.crop,
        keep=options.keep,
        landmarks=None if options.landmarks is None else file_sha256(Path(options.landmarks)),
    )
    same = [dataset for dataset in known if dataset.about.image_spec == image_spec]
    slots = {entry.name: slot for slot, entry in enumerate(good)}
    planned = {}
    for name, record in records.items():
        earlier = found_before(same, name, record.stamp)
        damage = next((found.undecodable for found, _ in earlier if found.undecodable is not None), None)
        planned[name] = record._replace(undecodable=damage, slot=slots.get(name), label=classes.get(name))
    return Plan(
        destination=destination,
        source=source,
        entries={entry.name: entry for entry in entries},
        records=planned,
        unfit=unfit,
        image_spec=image_spec,
        landmarks=faces,
        class_names=class_names,
        on_bad=options.on_bad,
        workers=workers,
    )


def _examined(
    source: Source, entries: Sequence[Entry], known: Sequence[ExistingDataset], workers: WorkerPool
) -> dict[str, Record]:
    """A record of every file, by name, without opening those that have not changed since an earlier preparation."""
    found = {entry.name: found_before(known, entry.name, entry.stamp) for entry in entries}
    records = {name: earlier[0][0] for name, earlier in found.items() if earlier}
    new_sizes = {entry.size for entry in entries if entry.name not in records}
    # A new file may be the same as one that is known, so those of its size are examined again.
    again = [entry for entry in entries if entry.name not in records or entry.size in new_sizes]
    records |= examine(source, again, workers) if again else {}
    return {entry.name: records[entry.name] for entry in entries}


def faces_of(entries: Sequence[Entry], landmarks: str | None) -> dict[str, Landmarks]:
    """The landmarks of every file, found by its whole name or by its last part."""
    if landmarks is None:
        return {}
    listed = read_landmarks(Path(landmarks))
    by_last = {Path(name).name: points for name, points in listed.items()}
    found = {entry.name: listed.get(entry.name, by_last.get(Path(entry.name).name)) for entry in entries}
    return {name: points for name, points in found.items() if points is not None}


def _top_level(max_resolution: int | None, sides: Collection[int]) -> int:
    """The resolution of the top level, given what the files can serve.  Raises UserError if it is too much."""
    usable = [side for side in sides if side >= MIN_RESOLUTION]
    if not usable:  # every image is about to be refused, so it does not matter
        return MIN_RESOLUTION
    if max_resolution is None:
        return 1 << (min(usable).bit_length() - 1)  # the largest power of two up to it
    if max_resolution > max(usable):
        raise UserError(
            f"max_resolution={max_resolution} is too much: the largest image allows {max(usable)} pixels.",
            f"Choose max_resolution={1 << (max(usable).bit_length() - 1)} or less.",
        )
    return max_resolution


def are_mixed(counts: Counter[int]) -> bool:
    """Whether no number of channels is that of nearly all images."""
    return counts.total() - max(counts.values()) > MIXED_SHARE * counts.total()


def _common_channels(channels: Sequence[int]) -> int:
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
