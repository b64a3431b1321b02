"""`pggan bench data=`: how fast images of every level are loaded."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from io import BytesIO
from itertools import count, cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.table import Table

from pggan.core.devices import synchronize
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.data.image_file import ImageFile, ImageSpec, load_image
from pggan.data.loader import Loader, Request
from pggan.data.pyramid import ImagePyramid
from pggan.data.reals import RealBatches, indices_at

MIN_SECONDS = 0.5  # of measuring, where single batches are too short to time
DECODED_IMAGES = 16
FORMATS: dict[str, dict[str, Any]] = {"PNG": {}, "JPEG": {"quality": 95}, "WEBP": {"lossless": True}}


def measure_loading(
    pyramid: ImagePyramid, phase: Phase, device: torch.device, batches: int, budget: int
) -> dict[str, Any]:
    """Images per second of one level.

    cold: bytes from the disk, if the system drops its page cache; warm: from memory; ready: as the training step gets
    them, mirrored floats on the device, where levels of up to `budget` bytes stay; fading: the same while the level
    fades in; copied: the most that the memory of the device allows, if it only copied those floats.
    """
    side, batch = phase.resolution, phase.batch
    drop_from_memory(pyramid, side)
    ones = torch.ones(batch, side, side, pyramid.channels, device=device)
    target = torch.empty_like(ones)
    fading, floats = replace(phase, alpha=0.5), partial(float_batches, pyramid, device=device, budget=budget)
    return {
        "cold_images_per_second": batch * rate(byte_batches(pyramid, phase, device), batches, 0.0),
        "warm_images_per_second": batch * rate(byte_batches(pyramid, phase, device, again=batches), batches),
        "ready_images_per_second": batch * rate(floats(phase), batches),
        "fading_images_per_second": batch * rate(floats(fading), batches),
        "copied_images_per_second": batch * rate(waited(device, (target.copy_(ones) for _ in count())), batches),
        "lives_on_device": pyramid.level_bytes(side) <= budget,
    }


def byte_batches(pyramid: ImagePyramid, phase: Phase, device: torch.device, again: int | None = None) -> Iterator[None]:
    """Batches of bytes, one read ahead; with `again`, the first so many over and over."""
    loader = Loader(pyramid, device, budget=0)

    def request(step: int) -> Request:
        shown = (step if again is None else step % again) * phase.batch
        return Request(phase.resolution, indices_at(0, shown, phase.batch, pyramid.images))

    for step in count():
        loader.get(request(step))
        synchronize(device)
        yield
        loader.prefetch(request(step + 1))


def float_batches(pyramid: ImagePyramid, phase: Phase, *, device: torch.device, budget: int) -> Iterator[None]:
    """Batches as training gets them."""
    stream = RealBatches(pyramid, 0, device, True, False, budget=budget, phase_at=lambda images: phase)
    return waited(device, (stream.batch(phase, StepRng(0, step * phase.batch, device)) for step in count()))


def waited(device: torch.device, work: Iterator[Any]) -> Iterator[None]:
    """`work`, piece by piece, each until `device` has finished it."""
    for _ in work:
        synchronize(device)
        yield


def rate(batches: Iterator[Any], least: int, seconds: float = MIN_SECONDS) -> float:
    """Batches per second over at least `least` batches and so many seconds; unless it is 0, two more come before."""
    if seconds:
        next(batches), next(batches)
    start, done = time.perf_counter(), 0
    while done < least or time.perf_counter() - start < seconds:
        next(batches)
        done += 1
    return done / (time.perf_counter() - start)


def drop_from_memory(pyramid: ImagePyramid, resolution: int) -> None:
    """Ask the system to drop a level's files from its page cache, where there is such a call."""
    if hasattr(os, "posix_fadvise"):
        for path in pyramid.shard_paths(resolution):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_decoding(pyramid: ImagePyramid) -> list[dict[str, Any]]:
    """Images per second and core at which image files of the top level could be decoded, per format."""
    images = pyramid.read(pyramid.resolution, np.arange(min(DECODED_IMAGES, pyramid.images)))
    target, rows = ImageSpec(pyramid.resolution, 3, "center"), []
    for name, options in FORMATS.items():
        contents = []
        for pixels in images:
            content = BytesIO()
            Image.fromarray(pixels.squeeze()).convert("RGB").save(content, name, **options)
            contents.append(content.getvalue())
        files = [ImageFile(Path(name), partial(BytesIO, content)) for content in contents]
        size = sum(map(len, contents)) // len(contents)
        speed = rate((load_image(file, target) for file in cycle(files)), 1)
        rows.append({"format": name, "bytes_per_image": size, "images_per_second": speed})
    return rows


def loading_table(rows: list[dict[str, Any]]) -> Table:
    """Loading beside the training step, per resolution."""
    names = ("cold", "warm", "copied", "ready", "fading", "step")
    table = Table("level", "batch", *names, "ratio", title="images per second", padding=0)  # fits into 80 columns
    for row in rows:
        rates = (row[f"{name}_images_per_second"] for name in names)
        shown = (f"{images:,.0f}" if images >= 10 else f"{images:.2f}" for images in rates)
        table.add_row(str(row["resolution"]), str(row["batch"]), *shown, f"{row['ratio']:,.0f}")
    return table


def decoding_table(rows: list[dict[str, Any]]) -> Table:
    """The speed of decoding image files instead, per format."""
    table = Table("format", "bytes/image", "decoded img/s per core")
    for row in rows:
        table.add_row(row["format"], f"{row['bytes_per_image']:,}", f"{row['images_per_second']:,.1f}")
    return table
