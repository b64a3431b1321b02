"""Find the images of a data set: a folder, an archive, a torchvision data set, or generated cartoon faces (avatars)."""

import json
from functools import cache, lru_cache, partial
from glob import escape
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from pggan.core.errors import UserError, nearest, nearest_path
from pggan.core.text import command_line
from pggan.data.image_file import ImageFile, ImageHeader
from pggan.data.pyramid import INDEX_FILE, is_pyramid
from pggan.data.sources import Entry, Source, archive_source, folder_source


def open_source(source: str, cache: str | Path = "data") -> Source:
    """List the images of `source`: a folder, an archive, or torchvision:NAME, which is downloaded into `cache`."""
    if source.startswith(PREFIX):
        name = source.removeprefix(PREFIX)
        if name not in CLASSES:
            raise UserError(f"There is no known data set '{name}'.", nearest(name, CLASSES))
        return known_set(name, Path(cache, "downloads").absolute())
    if not Path(source).exists():
        remedy = f"Give the path of a folder or archive of images, or the name of a known data set: {PREFIX}NAME."
        remedy = nearest_path(source) or remedy
        made = [*Path(cache).glob(f"{escape(Path(source).name)}-*px-*/{INDEX_FILE}")]  # datasets of earlier runs
        new = made[0].parent if len(made) == 1 else "NEW_PATH"  # if several datasets match, the user has to choose
        moved = f"If a run's images have moved, add data.path={new} (for pggan evaluate: data={new})."
        raise UserError(f"{source} does not exist.", f"{remedy} {moved}")
    if is_pyramid(Path(source)):
        train = command_line("train", **{"data.path": source})
        raise UserError(f"{source} is prepared already.", f"Train on it: {train}")
    return (folder_source if Path(source).is_dir() else archive_source)(Path(source))


PREFIX = "torchvision:"
CLASSES = {"celeba": "CelebA", "cifar10": "CIFAR10", "mnist": "MNIST", "fashion_mnist": "FashionMNIST"}


@lru_cache(maxsize=2)
def _opened(name: str, root: Path) -> Any:
    from torchvision import datasets

    return getattr(datasets, CLASSES[name])(root, download=True)


def _open_image(name: str, root: Path, number: int) -> BinaryIO:
    content = BytesIO()
    _opened(name, root)[number][0].save(content, "PNG", compress_level=0)
    content.seek(0)
    return content


def known_set(name: str, root: Path) -> Source:
    """List the training images of the torchvision data set `name`; missing images are downloaded to `root`."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        dataset = _opened(name, root)
    except Exception as error:
        raise UserError(
            f"{name} can't be opened in {root}: {error}",
            'See the torchvision page of this data set.  CelebA also needs: pip install "pggan[datasets]".',
        ) from error
    labels = [dataset.classes[int(target)] for target in getattr(dataset, "targets", ())]  # CelebA has no targets
    found = []
    for number in range(len(dataset)):
        file = ImageFile(Path(name, f"{number:08d}"), partial(_open_image, name, root, number))
        found.append(Entry(file.path.name, file, label=labels[number] if labels else None))
    return Source({"kind": "torchvision", "name": name}, found)


STYLE = "toon-head"  # the DiceBear library draws avatars in this style
# Without these background colours, every image would have the same white background.
BACKGROUNDS = ["b6e3f4", "c0aede", "d1d4f9", "ffd5dc", "ffdfbf", "a3c4a8", "e8b4a0", "8fb8de"]
MIN_DRAWN_SIDE = 64  # minimum side of a drawing, in pixels; in smaller drawings, thin lines would vanish


def avatars(count: int, resolution: int) -> Source:
    """List `count` avatars (cartoon faces); the n-th avatar depends only on n and `resolution`."""
    try:
        import resvg_py  # noqa: F401

        _style()
    except ImportError as error:
        problem = f"Drawing avatars needs packages that are not installed, or do not work: {error}."
        raise UserError(problem, 'Install them with: pip install "pggan[avatars]"') from error
    credit = _definition()["meta"]  # the dataset's index.json names the artist, because many licences require this
    about: dict[str, object] = {"kind": "avatars", "name": STYLE, "backgrounds": BACKGROUNDS, "credit": credit}
    header = ImageHeader(resolution, resolution, is_grey=False)
    files = (ImageFile(Path(STYLE, f"{number:08d}"), partial(_draw, resolution, number)) for number in range(count))
    return Source(about, [Entry(file.path.name, file, header=header) for file in files])


def _draw(resolution: int, number: int) -> BinaryIO:
    import dicebear
    import resvg_py

    svg = str(dicebear.Avatar(_style(), {"seed": f"s{number}", "backgroundColor": BACKGROUNDS}))
    side = max(MIN_DRAWN_SIDE, 2 * resolution)  # the function `prepare` scales the drawing down to `resolution`
    # With system fonts, the pixels would depend on the machine.
    return BytesIO(resvg_py.svg_to_bytes(svg, width=side, height=side, background="white", skip_system_fonts=True))


def _definition() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((files("dicebear_styles") / f"{STYLE}.json").read_text("utf-8"))
    return content


@cache  # cached, because building the style takes as long as drawing 50 avatars
def _style() -> Any:
    from dicebear import Style

    return Style(_definition())
