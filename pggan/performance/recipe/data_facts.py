"""Facts of a set of images before it is prepared: how many they are, how large, and of how many channels."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pggan.config import DataConfig
from pggan.core.architecture import MIN_RESOLUTION
from pggan.core.errors import UserError
from pggan.data.image_file import BadImage, ImageHeader, read_header, usable_side
from pggan.data.prepare import are_mixed
from pggan.data.pyramid import INDEX_FILE, ImagePyramid
from pggan.data.source import Entry
from pggan.data.sources import open_for_training

MAX_HEADERS = 200  # that are read: a second, and the twentieth part of them is still ten images
SMALL_SHARE = 0.2  # of the images may be smaller than the final resolution: half of the pixels of all others weigh more
MAX_AVATAR = 256  # pixels: drawings have no more detail to show


class DataFacts(NamedTuple):
    """A set of images."""

    images: int  # that can be read and are large enough; of many files, about
    resolution: int  # largest power of two that they serve without being enlarged
    channels: int
    num_classes: int  # to train with
    drawn: bool  # avatars, not photographs
    note: str  # in words
    largest: int | None = None  # the resolution that the largest image serves, where all were looked at
    mixed: bool = False  # files of different channels, so that somebody has to say what all become


def facts_of(config: DataConfig) -> DataFacts:
    """The images that `config` names; of files that are not prepared, headers of a sample are read.

    Raises UserError where there is no image, or the classes of files that are not prepared are asked for.
    """
    if config.path is None:
        note = f"{config.count:,} avatars, drawn at any size"
        return DataFacts(config.count, MAX_AVATAR, config.channels or 3, 0, drawn=True, note=note)
    if Path(config.path, INDEX_FILE).is_file():
        pyramid, num_classes = ImagePyramid(Path(config.path)), 0
        if config.labels:
            num_classes = len(pyramid.class_names or ())
        note = f"{pyramid.images:,} images, prepared at {pyramid.resolution}x{pyramid.resolution}"
        drawn = pyramid.source.get("kind") == "avatars"
        side = pyramid.resolution
        return DataFacts(pyramid.images, side, pyramid.channels, num_classes, drawn=drawn, note=note, largest=side)
    if config.labels:
        problem = "hours= has to know the classes of data.labels=true before the images are prepared."
        raise UserError(problem, "Prepare the data first (pggan prepare … labels=true), and give it as data.path=.")
    return facts_of_files(config)


def facts_of_files(config: DataConfig) -> DataFacts:
    """The files of a folder, an archive or a known set that are not prepared yet."""
    assert config.path is not None, "avatars have no files"
    entries = open_for_training(config.path, config.cache).some_entries()
    found = [entry for entry in entries if entry.problem is None]
    sample = found[:: -(-len(found) // MAX_HEADERS) or 1]
    headers = headers_of(sample)
    sides = sorted(usable_side(header.width, header.height, config.crop, 1.0, None) for header in headers)
    sides = [side for side in sides if side >= MIN_RESOLUTION]
    if not sides:
        problem = f"Of the {len(entries):,} image files in {config.path}, none can be used."
        needed = f"Give PNG, JPEG or WebP images of at least {MIN_RESOLUTION}x{MIN_RESOLUTION} pixels."
        raise UserError(problem, f"{needed} pggan prepare source={config.path} dest=NEW tells what is wrong with each.")
    side = sides[int(SMALL_SHARE * len(sides))]
    resolution, kinds = 1 << (side.bit_length() - 1), Counter(header.channels for header in headers)
    large = sum(side >= resolution for side in sides)
    note = f"{len(entries):,} image files, {large / len(sides):.0%} of them at least {resolution} pixels wide and high"
    note += "; images smaller than the final resolution are left out" * (large < len(sides))
    channels, images = config.channels or (1 if set(kinds) == {1} else 3), len(found) * large // len(sample)
    largest = 1 << (sides[-1].bit_length() - 1) if len(sample) == len(found) else None
    mixed = are_mixed(kinds)
    return DataFacts(images, resolution, channels, 0, drawn=False, note=note, largest=largest, mixed=mixed)


def headers_of(entries: Sequence[Entry]) -> list[ImageHeader]:
    """The headers of those files that can be read."""
    found = []
    for entry in entries:
        try:
            found.append(entry.header or read_header(entry.file))
        except BadImage:  # preparing the images names it
            continue
    return found
