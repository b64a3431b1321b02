"""`pggan bench data=`: how fast images of every level arrive, beside what the training step of that level takes."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.table import Table

from pggan.core.devices import synchronize
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.data.format.pyramid import ImagePyramid
from pggan.data.sources.image_file import Loaded, Target, load_image
from pggan.data.stream.loader import Loader, Request
from pggan.data.stream.reals import RealStream, indices_at

LEAST_SECONDS = 0.5  # of measuring, where single batches are too short to time
DECODED_IMAGES = 16
FORMATS: dict[str, dict[str, Any]] = {
    "PNG": {},
    "JPEG": {"quality": 95},
    "WEBP": {"lossless": True},
}


def measure_loading(
    pyramid: ImagePyramid, phase: Phase, device: torch.device, batches: int, budget: int
) -> dict[str, Any]:
    """Images per second of one level.

    cold: bytes from the disk, by the page cache's leave; warm: from memory; ready: what the training step gets,
    mirrored floats on the device, with levels of up to `budget` bytes living there; fading: the same while the level is
    faded in.  copied: what the memory of the device allows, if nothing but those floats were copied.
    """
    side, batch = phase.resolution, phase.batch
    drop_from_memory(pyramid, side)
    fading = replace(phase, alpha=0.5)

    def stream_of(always: Phase) -> RealStream:
        return RealStream(pyramid, 0, device, mirror=True, labels=False, budget=budget, phase_at=lambda images: always)

    ready, faded = stream_of(phase), stream_of(fading)
    floats = torch.ones(batch, side, side, pyramid.channels, device=device)
    return {
        "cold_images_per_second": batch * rate(read_batches(pyramid, phase, device), batches, 0.0),
        "warm_images_per_second": batch * rate(read_batches(pyramid, phase, device, again=batches), batches),
        "ready_images_per_second": batch * rate(make_batches(ready, phase, device), batches),
        "fading_images_per_second": batch * rate(make_batches(faded, fading, device), batches),
        "copied_images_per_second": batch * rate(copies(floats), batches),
        "lives_on_device": pyramid.level_bytes(side) <= budget,
    }


def read_batches(
    pyramid: ImagePyramid, phase: Phase, device: torch.device, *, again: int | None = None
) -> Iterator[None]:
    """Batches of bytes, one read ahead; with `again`, the first so many over and over."""
    loader = Loader(pyramid, device, budget=0)

    def request(step: int) -> Request:
        shown = (step if again is None else step % again) * phase.batch
        return Request(phase.resolution, indices_at(0, shown, phase.batch, pyramid.images))

    for step in count():
        loader.get(request(step))
        synchronize(device)
        yield
        loader.read_ahead(request(step + 1))


def make_batches(stream: RealStream, phase: Phase, device: torch.device) -> Iterator[None]:
    """Batches as training gets them."""
    for step in count():
        stream.batch(phase, StepRng(0, step * phase.batch, device))
        synchronize(device)
        yield


def copies(floats: torch.Tensor) -> Iterator[None]:
    """Copies of memory into memory."""
    target = torch.empty_like(floats)
    while True:
        target.copy_(floats)
        synchronize(target.device)
        yield


def rate(batches: Iterator[None], least: int, seconds: float = LEAST_SECONDS) -> float:
    """Batches per second over at least `least` batches and so many seconds; unless it is 0, two more come before."""
    if seconds:
        next(batches), next(batches)
    start, done = time.perf_counter(), 0
    while done < least or time.perf_counter() - start < seconds:
        next(batches)
        done += 1
    return done / (time.perf_counter() - start)


def drop_from_memory(pyramid: ImagePyramid, resolution: int) -> None:
    """Ask the system to forget what it keeps of a level's files, where there is such a call."""
    if hasattr(os, "posix_fadvise"):
        for path in pyramid.shard_paths(resolution):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_decoding(pyramid: ImagePyramid) -> list[dict[str, Any]]:
    """Images per second and core that image files of the top level could be decoded at, per format."""
    side = pyramid.resolution
    images = pyramid.read(side, np.arange(min(DECODED_IMAGES, pyramid.images)))
    rows = []
    for name, options in FORMATS.items():
        files = []
        for number, pixels in enumerate(images):
            content = BytesIO()
            Image.fromarray(pixels.squeeze()).convert("RGB").save(content, name, **options)
            files.append(Loaded(Path(f"{number}"), content.getvalue()))
        target = Target(side, 3, "center")
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < LEAST_SECONDS:
            load_image(files[done % len(files)], target)
            done += 1
        rows.append(
            {
                "format": name,
                "bytes_per_image": sum(len(file.content) for file in files) // len(files),
                "images_per_second": done / (time.perf_counter() - start),
            }
        )
    return rows


def loading_table(rows: list[dict[str, Any]]) -> Table:
    """Loading beside the training step, per resolution."""
    names = ("cold", "warm", "copied", "ready", "fading", "step")
    # Narrow enough for 80 columns: figures cut off would tell nothing.
    table = Table("level", "batch", *names, "ratio", title="images per second", padding=0)
    for row in rows:
        rates = (row[f"{name}_images_per_second"] for name in names)
        shown = (f"{images:,.0f}" if images >= 10 else f"{images:.2f}" for images in rates)
        table.add_row(str(row["resolution"]), str(row["batch"]), *shown, f"{row['ratio']:,.0f}")
    return table


def decoding_table(rows: list[dict[str, Any]]) -> Table:
    """What decoding files would cost instead, per format."""
    table = Table("format", "bytes/image", "decoded img/s per core")
    for row in rows:
        table.add_row(row["format"], f"{row['bytes_per_image']:,}", f"{row['images_per_second']:,.1f}")
    return table
