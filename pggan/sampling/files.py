"""Files that commands write: where, and the pictures, sheets and films in them.  Imported without torch."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.progress import track

from pggan.core.atomic_io import atomic_write, existing_parent
from pggan.core.errors import UserError
from pggan.sampling.images import MIN_TILE, Pixels, enlarge, grid, to_pil

STILLS = (".png", ".jpg", ".jpeg", ".webp")  # the kinds of files that hold one picture
VIDEO = ".mp4"
ANIMATED = (".webp", ".gif", VIDEO)
CONFIG_FILE = "config.yaml"  # of a run directory
WIDEST = 2048  # pixels, of sheets whose images are enlarged
PAPER, INK = 232, 40  # grey levels of captions
CAPTION_HEIGHT, FONT_SIZE = 16, 11  # pixels
# Nearly lossless: below a constant rate factor of about 17, people see no difference (FFmpeg's guide).
H264 = {"crf": "12", "preset": "medium"}

Step = TypeVar("Step")


def output_path(out: str | None, run: str, name: str, kinds: tuple[str, ...]) -> Path:
    """`out`, as of `check_output`; without it, a path that is not taken yet, such as `name`-001.png.

    It is in samples/ of the run directory `run`, else in the working directory, and has the first of `kinds`.
    """
    if out is not None:
        return check_output(out, kinds)
    ending = kinds[0] if kinds else ""
    home = Path(run) / "samples" if (Path(run) / CONFIG_FILE).is_file() else Path()
    taken = [file.stem.rpartition("-")[2] for file in home.glob(f"{name}-*{ending}")]
    number = max((int(number) for number in taken if number.isdecimal()), default=0) + 1
    return check_output(str(home / f"{name}-{number:03d}{ending}"), kinds)


def check_output(out: str, kinds: tuple[str, ...] = ()) -> Path:
    """`out` as a path that can be written, whose directory need not be there yet.

    Args: kinds: endings of files, and an empty one where a directory will do; nothing else will, if there are none.
    Raises UserError for another ending, a video where PyAV is missing, or a place that takes no files.
    """
    path, ending = Path(out), Path(out).suffix.lower()
    if kinds and ending not in kinds:
        problem = f"{out} does not end in {' or '.join(filter(None, kinds))}."
        raise UserError(problem, "The ending chooses the kind of file.")
    if ending == VIDEO and find_spec("av") is None:
        remedy = "Install it: pip install 'pggan[video]'. Or let the name end in .webp or .gif."
        raise UserError(f"A {VIDEO} needs PyAV, which is not installed.", remedy)
    place = existing_parent(path.parent if kinds and ending else path)
    if not (place.is_dir() and os.access(place, os.W_OK)):
        raise UserError(f"{out} can't be written: {place} takes no files.", "Name another place.")
    return path


def sheet(images: Iterable[Pixels], columns: int, zoom: int, captions: Sequence[str] = ()) -> Pixels:
    """Images [R, R, C], row by row, as one picture: each enlarged, with its caption below, if any."""
    tiles = enlarge(np.stack(list(images)), zoom)
    if captions:
        _, height, width, channels = tiles.shape
        tiles = np.pad(tiles, [(0, 0), (0, CAPTION_HEIGHT), (0, 0), (0, 0)], constant_values=255)
        for tile, caption in zip(tiles, captions, strict=True):
            line = Image.new("L", (width, CAPTION_HEIGHT), PAPER)
            ImageDraw.Draw(line).text((2, 1), caption, fill=INK, font=ImageFont.load_default(FONT_SIZE))
            tile[height:, :, : min(channels, 3)] = np.asarray(line)[:, :, None]
    return grid(tiles, columns)


def sheet_zoom(resolution: int, columns: int) -> int:
    """The factor that makes small images of a sheet worth looking at, and no sheet wider than a screen."""
    return max(min(MIN_TILE, WIDEST // columns) // resolution, 1)


def film_zoom(side: int) -> int:
    """The largest whole factor that makes a small film at most 512 pixels wide or high."""
    return max(512 // side, 1)


def save_picture(picture: Pixels, path: Path) -> None:
    """Write one picture [H, W, C] atomically; raises UserError where the kind that `path` names can't hold it."""
    with writing(path) as temporary:
        # In a JPEG, colours at full resolution: else the edges of enlarged pixels are blurred.
        to_pil(picture).save(temporary, lossless=True, quality=95, subsampling=0)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary path, which becomes `path`; what an encoder refuses, such as a size, is raised as UserError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_write(path) as temporary:
            yield temporary
    except (OSError, ValueError, RuntimeError) as error:
        if getattr(error, "errno", None) is not None:  # the disk, not the picture
            raise
        remedy = "Use a smaller zoom=, grid= or resolution=, or another kind of file."
        raise UserError(f"{path} can't hold these images: {error}.", remedy) from error


def save_film(frames: Iterable[Pixels], count: int, fps: int, path: Path) -> None:
    """Write `count` frames [H, W, C], `fps` per second, of the kind that `path` ends as, atomically.

    A .webp is lossless, a .gif has 255 colours, and an .mp4 never has more than a few frames in memory.
    """
    shown = tracked(frames, count)
    with writing(path) as temporary:
        if path.suffix.lower() == VIDEO:
            write_video(shown, fps, temporary)
            return
        pictures, unit = [to_pil(frame) for frame in shown], 1
        if path.suffix.lower() == ".gif":  # one palette for all frames: what stands still stays the same
            pictures, unit = [picture.convert("RGB") for picture in pictures], 10
            sampled = [np.asarray(picture) for picture in pictures[:: count // 16 + 1]]
            palette = Image.fromarray(np.concatenate(sampled)).quantize(255)
            pictures = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
        borders = np.round(np.arange(count + 1) * 1000 / unit / fps) * unit  # in milliseconds: the sum stays exact
        film = {"save_all": True, "append_images": pictures[1:], "duration": np.diff(borders).astype(int).tolist()}
        pictures[0].save(temporary, loop=0, lossless=True, method=0, **film)


def write_video(frames: Iterable[Pixels], fps: int, path: Path) -> None:
    """Write H.264 with 4:2:0 chroma, which every player knows, and which has even sides."""
    import av
    from av.video.reformatter import ColorRange, Colorspace

    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:  # plays while it loads
        stream: Any = container.add_stream("libx264", rate=fps, options=H264)
        stream.pix_fmt, coded = "yuv420p", stream.codec_context
        # BT.709 has the same number, 1, in all lists.
        coded.colorspace = coded.color_primaries = coded.color_trc = Colorspace.ITU709
        coded.color_range = ColorRange.MPEG  # luma from 16 to 235
        for number, picture in enumerate(frames):
            if number == 0:
                stream.height, stream.width = picture.shape[:2]
            rgb = np.asarray(to_pil(picture).convert("RGB"))
            frame = av.VideoFrame.from_ndarray(rgb, format="rgb24").reformat(
                format="yuv420p", dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG
            )
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def tracked(steps: Iterable[Step], count: int, what: str = "Drawing") -> Iterator[Step]:
    """`steps`, with a bar on stderr if that is a terminal."""
    yield from track(steps, what, count, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
