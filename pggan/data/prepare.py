"""A folder of image files to a dataset: every file checked, cropped and reduced, and the bad ones named."""

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from pggan.architecture import SMALLEST_RESOLUTION
from pggan.config import PrepareConfig
from pggan.data.images import CROPS, MODES, BadImage, ImageHeader, load_image, read_header, square_side
from pggan.data.index import check_resolution
from pggan.data.parallel import in_order
from pggan.data.pyramid import ImagePyramid, PyramidWriter, require_free_space, require_new
from pggan.errors import UserError, nearest

EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp")
ON_BAD = ("report", "stop")
BAD_NAMED_IN_ERROR = 20

Result = TypeVar("Result")


def run(config: PrepareConfig) -> int:
    """Prepare a folder of images, and say what came of it."""
    pyramid = prepare(
        Path(config.source),
        Path(config.dest),
        max_resolution=config.max_resolution,
        channels=config.channels,
        crop=config.crop.value,
        on_bad=config.on_bad.value,
        workers=config.workers or default_workers(),
        labels=config.labels,
    )
    levels = f"4x4 to {pyramid.resolution}x{pyramid.resolution}"
    print(f"{pyramid.path}: {levels}, images: {pyramid.images}, channels: {pyramid.channels}")
    return 0


def default_workers() -> int:
    """How many processes to use when nobody says: one per core that this process may use, up to 16."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 16)  # the one process that writes cannot feed many more


def find_images(source: Path) -> list[Path]:
    """The image files under the folder `source`, sorted; hidden files and linked folders are passed over.

    Raises UserError when there is no such folder, or no image in it.
    """
    if not source.is_dir():
        problem = "is not a folder" if source.exists() else "does not exist"
        raise UserError(f"{source} {problem}.", "Give the path of the folder that holds the images.")
    paths: list[Path] = []
    for folder, subfolders, names in os.walk(source):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        paths += [Path(folder, name) for name in names if _is_image_name(name)]
    if not paths:
        raise UserError(
            f"There are no images in {source}.",
            f"Images are files ending in {', '.join(EXTENSIONS)}; linked folders are not entered.",
        )
    return sorted(paths)


def _is_image_name(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS) and not name.startswith(".")


def prepare(
    source: Path,
    destination: Path,
    *,
    max_resolution: int | None = None,
    channels: int | None = None,
    crop: str = "center",
    on_bad: str = "report",
    workers: int = 1,
    labels: bool = False,
) -> ImagePyramid:
    """Write the images under the folder `source` as a dataset at `destination`, in the order of their paths.

    max_resolution: the top level; None = the largest for which no image has to be enlarged.
    channels: 1 grey, 3 colour, 4 with transparency; None = 1 if every image is grey, else 3.
    crop: how an image becomes square, a key of CROPS.
    on_bad: report = leave unusable files out and list them on stderr; stop = write nothing if any are.
    labels: make the first folder below `source` the class of an image.

    Raises UserError for options that cannot be met, for no usable image, for too little disk space, and with
    on_bad=stop for unusable files.
    """
    _check_options(max_resolution, channels, crop, on_bad)
    require_new(destination)
    paths = find_images(source)
    headers, bad = _read_headers(source, paths, workers)
    sides = {path: square_side(header.width, header.height, crop) for path, header in headers.items()}
    resolution = _top_level(max_resolution, sides.values())
    good = [path for path, side in sides.items() if side >= resolution]
    too_small = f"smaller than {resolution}x{resolution}"
    bad += [BadImage(path, too_small) for path, side in sides.items() if side < resolution]
    _refuse(bad, len(paths), on_bad)
    class_names, image_labels = _classes(source, good) if labels else (None, [None] * len(good))
    channels = channels or (1 if all(headers[path].grey for path in good) else 3)
    require_free_space(destination, len(good), resolution, channels)
    description = {"kind": "folder", "name": source.resolve().name, "crop": crop}
    with PyramidWriter(destination, resolution, channels, description, class_names=class_names) as writer:
        bad += _write(writer, good, image_labels, crop, workers)
        _refuse(bad, len(paths), on_bad)
        writer.source["bad_images"] = len(bad)
    _report(bad, len(paths))
    return ImagePyramid(destination)


def _check_options(max_resolution: int | None, channels: int | None, crop: str, on_bad: str) -> None:
    if max_resolution is not None:
        check_resolution(max_resolution)
    if channels not in (None, *MODES):
        raise UserError(f"Images of {channels} channels are not possible.", "Choose channels=1, 3 or 4.")
    for option, value, choices in (("crop", crop, tuple(CROPS)), ("on_bad", on_bad, ON_BAD)):
        if value not in choices:
            raise UserError(f"There is no {option}={value}.", nearest(value, choices))


def _read_headers(
    source: Path,
    paths: Sequence[Path],
    workers: int,
) -> tuple[dict[Path, ImageHeader], list[BadImage]]:
    headers: dict[Path, ImageHeader] = {}
    bad: list[BadImage] = []
    read = partial(_header_inside, Path(os.path.realpath(source)))
    with in_order("Reading headers", partial(_attempt, read), paths, workers) as results:
        for path, result in zip(paths, results, strict=True):
            if isinstance(result, BadImage):
                bad.append(result)
            else:
                headers[path] = result
    return headers, bad


def _header_inside(folder: Path, path: Path) -> ImageHeader:
    # A folder from elsewhere must not draw other files of this machine into the dataset.
    if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(folder):
        raise BadImage(path, "a link that leads out of the source folder")
    return read_header(path)


def _attempt(read: Callable[[Path], Result], path: Path) -> Result | BadImage:
    try:
        return read(path)
    except BadImage as bad:
        return bad


def _top_level(max_resolution: int | None, sides: Collection[int]) -> int:
    usable = [side for side in sides if side >= SMALLEST_RESOLUTION]
    if not usable:  # every image is about to be refused, so it does not matter
        return SMALLEST_RESOLUTION
    if max_resolution is None:
        return _power_of_two_up_to(min(usable))
    if max_resolution > max(usable):
        raise UserError(
            f"max_resolution={max_resolution} is too much: the largest image allows {max(usable)} pixels.",
            f"Choose max_resolution={_power_of_two_up_to(max(usable))} or less.",
        )
    return max_resolution


def _power_of_two_up_to(side: int) -> int:
    return 1 << (side.bit_length() - 1)


def _classes(source: Path, paths: Sequence[Path]) -> tuple[list[str], list[int]]:
    folders = [path.relative_to(source).parts[0] for path in paths if path.parent != source]
    if len(folders) < len(paths):
        raise UserError(
            f"Some images are directly in {source}, so they have no class.",
            "Move each into a sub-folder named after its class, or prepare without labels.",
        )
    names = sorted(set(folders))
    return names, [names.index(folder) for folder in folders]


def _write(
    writer: PyramidWriter, paths: Sequence[Path], labels: Sequence[int | None], crop: str, workers: int
) -> list[BadImage]:
    bad = []
    load = partial(load_image, resolution=writer.resolution, channels=writer.channels, crop=crop)
    with in_order("Decoding images", partial(_attempt, load), paths, workers) as results:
        for label, result in zip(labels, results, strict=True):
            if isinstance(result, BadImage):
                bad.append(result)
            else:
                writer.add(result, label)
    return bad


def _refuse(bad: Sequence[BadImage], total: int, on_bad: str) -> None:
    """Raise a UserError if these bad images among `total` leave nothing, or if any is one too many."""
    if len(bad) < total and not (bad and on_bad == "stop"):
        return
    named = [f"  {image}" for image in bad[:BAD_NAMED_IN_ERROR]]
    if len(bad) > len(named):
        named.append(f"  … and {len(bad) - len(named)} more")
    raise UserError(
        "\n".join([f"{len(bad)} of {total} images cannot be used:", *named]),
        "Give other images." if len(bad) == total else "Repair or remove them, or use on_bad=report.",
    )


def _report(bad: Sequence[BadImage], total: int) -> None:
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if bad:
        console.print(f"Left out {len(bad)} of {total} images:")
    for image in sorted(bad, key=lambda image: image.path):
        console.print(f"  {image}")
