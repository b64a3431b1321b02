"""The images of a plan into a dataset, in several processes; what an interrupted attempt did is not done again."""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from pggan.core.atomic_io import file_sha256, fsync_path
from pggan.core.errors import UserError
from pggan.core.file_lock import try_lock
from pggan.data.format.index import Index, StoredFile
from pggan.data.format.layout import Layout, close_files, new_layout
from pggan.data.format.levels import all_levels
from pggan.data.format.pyramid import INDEX_FILE, pyramid_bytes, require_free_space
from pggan.data.format.writer import write_errors_named, write_labels
from pggan.data.prepare.checks import attempt
from pggan.data.prepare.planning import Plan
from pggan.data.prepare.records import (
    FILLED,
    JOURNAL_FILE,
    RECORDS_FILE,
    About,
    ExistingDataset,
    Record,
    earlier_dataset,
    read_journal,
    write_records,
)
from pggan.data.sources.face_crop import Landmarks
from pggan.data.sources.image_file import BadImage, Target, load_image
from pggan.data.sources.source import Entry

COMMIT_SECONDS = 5.0
LOCK_FILE = "lock"
OLD_FILES = re.compile(r"(r\d{4,}-\d{5}|labels)(-[0-9a-f]{8})?\.bin")


class Job(NamedTuple):
    """One image to be made, or to be taken over from place `earlier_slot` of the earlier dataset `earlier`."""

    entry: Entry
    slot: int
    landmarks: Landmarks | None
    earlier: Layout | None = None
    earlier_slot: int = 0


def earlier_attempts(destination: Path) -> list[Path]:
    """What interrupted preparations of this dataset left."""
    if not destination.parent.is_dir():
        return []
    prefix = f".{destination.name}.prepare-"
    return sorted(path for path in destination.parent.iterdir() if path.name.startswith(prefix))


def build(plan: Plan, earlier: Sequence[ExistingDataset]) -> list[Record]:
    """Make the dataset of a plan, taking over what is in `earlier` ones of the same recipe; the final records.

    Raises UserError for bad images that are too many, and when writing fails; what was done so far stays beside the
    destination, and is gone on with.
    """
    generation = f"-{plan.digest[:8]}" if plan.destination.exists() else ""
    about = About(plan.recipe, plan.digest, generation)
    directory = plan.destination.parent / f".{plan.destination.name}.prepare-{plan.digest[:12]}{generation}"
    remedy = "Make room or get permission there; the same command then goes on where it stopped."
    with write_errors_named(plan.destination, remedy), _claimed(directory, plan.destination):
        if not (directory / INDEX_FILE).is_file():
            _make(plan, about, earlier, directory)
        records = list(_published(directory).records.values())
        _publish(directory, plan.destination)
        for left in earlier_attempts(plan.destination):
            if _abandoned(left):
                shutil.rmtree(left, ignore_errors=True)
        return records


def _make(plan: Plan, about: About, earlier: Sequence[ExistingDataset], directory: Path) -> None:
    images = [record for record in plan.records if record.slot is not None]
    layout = new_layout(directory, plan.recipe.resolution, plan.recipe.channels, len(images), about.generation)
    done = dict(read_journal(directory))
    if not (directory / RECORDS_FILE).is_file():
        write_records(directory, about, plan.records, None)
    for record in images:
        if record.undecodable is not None and record.slot is not None:
            done.setdefault(record.slot, record.undecodable)
    left = [record for record in images if record.slot not in done]
    recipe = plan.recipe
    done_bytes, all_bytes = (
        pyramid_bytes(count, recipe.resolution, recipe.channels) for count in (len(images) - len(left), len(images))
    )
    # Places that were written, but not written down as done (the disk was full), don't take space again.
    require_free_space(plan.destination, all_bytes - max(done_bytes, layout.stored_bytes()))
    filled = FILLED in done
    if not filled:
        layout.resize()
        done |= _fill_places(plan, earlier, layout, left)
    undecodable = {slot: reason for slot, reason in done.items() if reason is not None}
    plan.refuse_bad([_final(record, undecodable, {}) for record in plan.records])
    moves = _moves(len(images), sorted(undecodable))
    if not filled:
        for slot, hole in moves.items():
            layout.write(hole, layout.read(slot))
        _commit(layout, [(FILLED, None)])
    close_files()
    records = [_final(record, undecodable, moves) for record in plan.records]
    _write_index(plan, about, directory, records)


def _fill_places(
    plan: Plan, earlier: Sequence[ExistingDataset], layout: Layout, left: Sequence[Record]
) -> dict[int, str | None]:
    """Put the images of the records `left` into their places; why there is no image, or None, for each."""
    done: dict[int, str | None] = {}
    jobs = [_job(plan, record, earlier) for record in left]
    known = [job for job in jobs if job.earlier is not None]
    new = {job.entry.name: job for job in jobs if job.earlier is None}
    loaded = (
        new[entry.name]._replace(entry=entry) for entry in plan.source.loaded([job.entry for job in new.values()])
    )
    work = partial(_work, layout, plan.target)
    with _journal(layout) as add:
        for title, some, total in (("Taking over images", known, len(known)), ("Decoding images", loaded, len(new))):
            if total:
                with plan.workers.in_order(title, work, chain(some), total) as results:
                    for slot, bad in results:
                        done[slot] = bad
                        add(slot, bad)
    return done


def _job(plan: Plan, record: Record, earlier: Sequence[ExistingDataset]) -> Job:
    assert record.slot is not None, "an image"
    entry, landmarks = plan.entries[record.name], plan.landmarks.get(record.name)
    for dataset in earlier:
        slot = dataset.slot_of(record.name, record.stamp)
        if slot is not None:
            return Job(entry, record.slot, landmarks, dataset.layout, slot)
    return Job(entry, record.slot, landmarks)


def _work(layout: Layout, target: Target, job: Job) -> tuple[int, str | None]:
    """Make one image and put it into its place; the place, and why there is no image, if there is none."""
    if job.earlier is not None:
        layout.write(job.slot, job.earlier.read(job.earlier_slot))
        return job.slot, None
    pixels = attempt(load_image, job.entry.file, target, job.landmarks)
    if isinstance(pixels, BadImage):
        return job.slot, pixels.reason
    layout.write(job.slot, all_levels(pixels))
    return job.slot, None


# ---- the journal


@contextmanager
def _journal(layout: Layout) -> Iterator[Any]:
    """Gives a function that writes down what is done, but never before it is durable."""
    lines: list[tuple[int, str | None]] = []
    running: Future[None] | None = None
    last = time.monotonic()
    with ThreadPoolExecutor(1) as pool:

        def add(slot: int, bad: str | None) -> None:
            nonlocal lines, running, last
            lines.append((slot, bad))
            if time.monotonic() - last > COMMIT_SECONDS and (running is None or running.done()):
                if running is not None:
                    running.result()
                running, lines = pool.submit(_commit, layout, lines), []
                last = time.monotonic()

        try:
            yield add
        finally:
            with suppress(OSError):  # of a full disk, whose own error is already on its way
                if running is not None:
                    running.result()
                _commit(layout, lines)


def _commit(layout: Layout, lines: Sequence[tuple[int, str | None]]) -> None:
    for path in layout.paths():
        fsync_path(path)
    with (layout.directory / JOURNAL_FILE).open("a") as journal:
        journal.writelines(json.dumps(line) + "\n" for line in lines)
        journal.flush()
        os.fsync(journal.fileno())


# ---- the end


def _moves(images: int, holes: Sequence[int]) -> dict[int, int]:
    """The last images into the places that stayed empty: {from: to}.  Everything else keeps its place."""
    count, empty = images - len(holes), set(holes)
    last = (slot for slot in range(images - 1, -1, -1) if slot not in empty)
    return {slot: hole for hole, slot in zip(holes, last, strict=False) if hole < count}


def _final(record: Record, undecodable: dict[int, str], moves: dict[int, int]) -> Record:
    if record.slot in undecodable:
        return record._replace(slot=None, undecodable=undecodable[record.slot])
    return record._replace(slot=moves.get(record.slot, record.slot)) if record.slot is not None else record


def _write_index(plan: Plan, about: About, directory: Path, records: list[Record]) -> None:
    """Cut the files to their final size, compute their checksums, and write what a dataset has besides."""
    images = sum(record.slot is not None for record in records)
    layout = new_layout(directory, plan.recipe.resolution, plan.recipe.channels, images, about.generation)
    layout.resize()
    for path in set(directory.glob("r*.bin")) - set(layout.paths()):
        path.unlink()
    with plan.workers.in_order("Computing checksums", file_sha256, layout.paths(), len(layout.paths())) as digests:
        sums = dict(zip((path.name for path in layout.paths()), digests, strict=True))
    for path in layout.paths():
        fsync_path(path)
    levels = {
        level: [
            StoredFile(shard.file, shard.images, shard.images * level * level * layout.channels, sums[shard.file])
            for shard in shards
        ]
        for level, shards in reversed(layout.levels)
    }
    labels_file = None
    if plan.classes is not None:
        by_slot = {record.slot: record.label for record in records if record.slot is not None}
        numbers = [by_slot[slot] or 0 for slot in range(images)]
        labels_file = write_labels(directory / f"labels{about.generation}.bin", numbers)
    index = Index(
        images=images,
        channels=plan.recipe.channels,
        resolution=plan.recipe.resolution,
        labels=plan.classes,
        labels_file=labels_file,
        levels=levels,
        source=plan.description(records),
    )
    content = index.to_json()
    write_records(directory, about, records, content)
    temporary = directory / f"{INDEX_FILE}.partial"
    temporary.write_bytes(content)
    fsync_path(temporary)
    temporary.rename(directory / INDEX_FILE)
    fsync_path(directory)


def _published(directory: Path) -> ExistingDataset:
    found = earlier_dataset(directory)
    assert found is not None, "just written"
    return found


def _publish(directory: Path, destination: Path) -> None:
    """Give a complete dataset its name, or let it replace, file by file and the index last, the one of that name."""
    for name in (JOURNAL_FILE, LOCK_FILE):
        (directory / name).unlink(missing_ok=True)
    if not destination.exists():
        directory.rename(destination)
        fsync_path(destination.parent)
        return
    kept = {stored.name for stored in directory.iterdir()}
    for path in sorted(directory.iterdir(), key=lambda path: path.name in (INDEX_FILE, RECORDS_FILE)):
        if path.name not in (INDEX_FILE, RECORDS_FILE):
            path.rename(destination / path.name)
    fsync_path(destination)
    # In this order: records that belong to another index are not believed.
    for name in (INDEX_FILE, RECORDS_FILE):
        os.replace(directory / name, destination / name)
    fsync_path(destination)
    for path in destination.iterdir():
        if path.name not in kept and OLD_FILES.fullmatch(path.name):
            path.unlink()
    directory.rmdir()


@contextmanager
def _claimed(directory: Path, destination: Path) -> Iterator[None]:
    """Make `directory` this process's own.  Raises UserError if another one is at it."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK_FILE).open("ab") as lock:
        if not try_lock(lock.fileno(), without_locks=True):
            raise UserError(
                f"Another process is preparing {destination}.",
                "Wait until it is done.",
            )
        try:
            yield
        finally:
            close_files()


def _abandoned(directory: Path) -> bool:
    """Whether no process is at work in `directory`."""
    try:
        with (directory / LOCK_FILE).open("ab") as lock:
            return try_lock(lock.fileno(), without_locks=False)
    except OSError:
        return False
