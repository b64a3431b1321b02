"""The images of a plan made into a dataset, in several processes; what an interrupted attempt did is not done again."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from pggan.core.atomic_io import atomic_write, file_sha256, fsync_path
from pggan.core.disk import require_free_space
from pggan.core.errors import UserError
from pggan.core.file_lock import try_lock
from pggan.data.face_crop import Landmarks
from pggan.data.image_file import BadImage, ImageSpec, load_image
from pggan.data.layout import Layout, close_files
from pggan.data.levels import all_levels
from pggan.data.planning import Plan
from pggan.data.pyramid import INDEX_FILE
from pggan.data.records import (
    FILLED,
    JOURNAL_FILE,
    RECORDS_FILES,
    About,
    ExistingDataset,
    Record,
    found_before,
    read_journal,
    records_of,
    write_records,
)
from pggan.data.source import Entry
from pggan.data.writer import make_index

COMMIT_SECONDS = 5.0
LOCK_FILE = "lock"
OF_A_GENERATION = re.compile(r"(?:r\d{4,}-\d{5}|labels|files)(-[0-9a-f]{8})?\.(?:bin|jsonl\.gz)")


class PreparedElsewhereError(UserError):
    """Another process is at work on the dataset."""


class ImageTask(NamedTuple):
    """One image to be made, or to be taken over from a place in an earlier dataset."""

    entry: Entry
    slot: int
    face: Landmarks | None
    earlier: tuple[Layout, int] | None = None


def attempts(destination: Path) -> list[Path]:
    """The directories in which preparations of a dataset are, or were when they were interrupted."""
    return sorted(destination.parent.glob(f".{escape(destination.name)}.prepare-*"))


def build(plan: Plan, earlier: Sequence[ExistingDataset]) -> tuple[About, dict[str, Record]]:
    """Make the dataset of a plan, taking over what is in `earlier` ones of the same image spec; its records.

    Raises UserError for bad images that are too many, and when writing fails; what was done so far stays beside the
    destination, and the same plan continues with it.
    """
    destination = plan.destination
    generation = f"-{plan.digest[:8]}" if destination.exists() else ""
    directory = destination.parent / f".{destination.name}.prepare-{plan.digest[:12]}{generation}"
    try:
        with _claimed(directory, destination):
            if not (directory / INDEX_FILE).is_file():
                _make(plan, About(plan.image_spec, plan.digest, generation), earlier, directory)
            # A preparation that was interrupted while it published its files has moved some already.
            about, records = records_of((directory / INDEX_FILE).read_bytes(), directory, destination)
            _publish(directory, destination)
            return about, records
    except OSError as error:
        raise UserError(
            f"{destination} cannot be written: {error.strerror}.",
            "Make room or get permission there; the same command then continues where it stopped.",
        ) from error


def _make(plan: Plan, about: About, earlier: Sequence[ExistingDataset], directory: Path) -> None:
    """Make everything of a dataset in `directory`, the index last."""
    image_spec = plan.image_spec
    slots = {record.slot: record for record in plan.records.values() if record.slot is not None}
    layout = Layout(directory, image_spec.resolution, image_spec.channels, len(slots), about.generation)
    if not any(directory.glob(RECORDS_FILES)):
        write_records(directory, about, plan.records.values())
    known = {slot: record.undecodable for slot, record in slots.items() if record.undecodable is not None}
    done = known | read_journal(directory)
    left = {slot: record for slot, record in slots.items() if slot not in done}
    all_bytes = sum(shard.bytes for shard in layout.shards())
    done_bytes = all_bytes * (len(slots) - len(left)) // len(slots)
    require_free_space(
        plan.destination,
        # Places that were written, but not written down as done (the disk was full), don't take space again.
        all_bytes - max(done_bytes, layout.stored_bytes()),
        "Free some space, choose another disk, or lower the resolution.",
    )
    filled = FILLED in done
    if not filled:
        layout.resize()
        done |= _fill_places(plan, earlier, layout, left)
    undecodable = {slot: reason for slot, reason in done.items() if reason is not None}
    moves = _moves(len(slots), sorted(undecodable))
    final = plan.records.copy()
    for slot, record in slots.items():
        final[record.name] = record._replace(slot=moves.get(slot, slot))
    for slot, reason in undecodable.items():
        final[slots[slot].name] = slots[slot]._replace(slot=None, undecodable=reason)
    plan.report(final).refuse(plan.on_bad)
    if not filled:
        for slot, hole in moves.items():
            layout.write(hole, layout.read(slot))
        _commit(layout, [(FILLED, None)])
    close_files()
    _write_index(plan, about, directory, final)


def _fill_places(
    plan: Plan, earlier: Sequence[ExistingDataset], layout: Layout, left: dict[int, Record]
) -> dict[int, str | None]:
    """Put the images of the records `left` into their places; for each, why there is no image, if there is none."""
    done = {}
    taken, new = [], {}
    for slot, record in left.items():
        found = found_before(earlier, record.name, record.stamp)
        place = next(((place, before.slot) for before, place in found if before.slot is not None), None)
        job = ImageTask(plan.entries[record.name], slot, plan.landmarks.get(record.name), place)
        if place is None:
            new[record.name] = job
        else:
            taken.append(job)
    loaded = plan.source.loaded([job.entry for job in new.values()])
    new_jobs = (new[entry.name]._replace(entry=entry) for entry in loaded)
    work = partial(_work, layout, plan.image_spec)
    with _journal(layout) as add:
        for title, jobs, total in (
            ("Taking over images", iter(taken), len(taken)),
            (plan.source.task, new_jobs, len(new)),
        ):
            if total:
                for slot, bad in plan.workers.in_order(title, work, jobs, total):
                    done[slot] = bad
                    add(slot, bad)
    return done


def _work(layout: Layout, target: ImageSpec, job: ImageTask) -> tuple[int, str | None]:
    """Make one image and put it into its place; the place, and why there is no image, if there is none."""
    if job.earlier is not None:
        place, slot = job.earlier
        layout.write(job.slot, place.read(slot))
        return job.slot, None
    try:
        pixels = load_image(job.entry.file, target, job.face)
    except BadImage as bad:
        return job.slot, bad.reason
    layout.write(job.slot, all_levels(pixels))
    return job.slot, None


# ---- the journal


@contextmanager
def _journal(layout: Layout) -> Iterator[Callable[[int, str | None], None]]:
    """Gives a function that writes down what is done, from time to time and never before it is durable."""
    lines: list[tuple[int, str | None]] = []
    running: Future[None] | None = None
    last = time.monotonic()

    def add(slot: int, bad: str | None) -> None:
        nonlocal lines, running, last
        lines.append((slot, bad))
        if time.monotonic() - last > COMMIT_SECONDS and (running is None or running.done()):
            if running is not None:
                running.result()
            running, lines, last = pool.submit(_commit, layout, lines), [], time.monotonic()

    def finish() -> None:
        if running is not None:
            running.result()
        _commit(layout, lines)

    with ThreadPoolExecutor(1) as pool:
        try:
            yield add
        except BaseException:
            with suppress(OSError):  # of a full disk, whose own error is already on its way
                finish()
            raise
        finish()


def _commit(layout: Layout, lines: Sequence[tuple[int, str | None]]) -> None:
    """Make the shards durable, then write down what is done, durably."""
    for shard in layout.shards():
        fsync_path(shard.path)
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


def _write_index(plan: Plan, about: About, directory: Path, records: dict[str, Record]) -> None:
    """Cut the shards to their final size, compute their checksums, and write what a dataset has besides."""
    image_spec = plan.image_spec
    by_slot = {record.slot: record.label for record in records.values() if record.slot is not None}
    layout = Layout(directory, image_spec.resolution, image_spec.channels, len(by_slot), about.generation)
    layout.resize()
    paths = [shard.path for shard in layout.shards()]
    for path in set(directory.glob("r*.bin")) - set(paths):
        path.unlink()
    checksums = list(plan.workers.in_order("Computing checksums", file_sha256, paths, len(paths)))
    for path in paths:
        fsync_path(path)
    how = {"crop": image_spec.crop, "bad_images": len(records) - len(by_slot)}
    source = {**plan.source.description, **how, **({"keep": image_spec.keep} if image_spec.keep != 1 else {})}
    labels = [by_slot[slot] or 0 for slot in range(len(by_slot))]
    content = make_index(layout, checksums, source, class_names=plan.class_names, labels=labels).to_json()
    write_records(directory, replace(about, index=sha256(content).hexdigest()), records.values())
    with atomic_write(directory / INDEX_FILE) as temporary:
        temporary.write_bytes(content)


def _publish(directory: Path, destination: Path) -> None:
    """Give a complete dataset its name, or let it replace the one of that name: the index at once, and last.

    Until then the old dataset stays as it was, because no file of one generation has the name of another's.
    """
    if not destination.exists():
        directory.rename(destination)
    else:
        for path in directory.iterdir():
            if path.name not in (INDEX_FILE, JOURNAL_FILE, LOCK_FILE):
                path.rename(destination / path.name)
        fsync_path(destination)
        os.replace(directory / INDEX_FILE, destination / INDEX_FILE)
        fsync_path(destination)
        shutil.rmtree(directory, ignore_errors=True)  # or a network file system with an open lock file; see `clean_up`
    fsync_path(destination.parent)


def clean_up(destination: Path, generation: str) -> None:
    """Remove what preparations have left: files of other generations, and the attempts of processes that ended."""
    for path in destination.iterdir():
        match = OF_A_GENERATION.fullmatch(path.name)
        if path.name in (JOURNAL_FILE, LOCK_FILE) or (match and (match[1] or "") != generation):
            path.unlink()
    for left in attempts(destination):
        if _abandoned(left):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _claimed(directory: Path, destination: Path) -> Iterator[None]:
    """Make `directory` this process's own.  Raises UserError if another one is at work in it."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK_FILE).open("ab") as lock:
        if not try_lock(lock.fileno(), without_locks=True):
            raise PreparedElsewhereError(f"Another process is preparing {destination}.", "Wait until it is done.")
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
