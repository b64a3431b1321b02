"""Names output files, and writes pictures, sheets of pictures, and films.  Imports no torch."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.progress import track

from pggan.checkpoints.read import CONFIG_FILE
from pggan.core.atomic_io import atomic_write, existing_parent
from pggan.core.errors import UserError, require
from pggan.sampling.images import MIN_TILE, GridFacts, Pixels, enlarge, grid, to_pil
from pggan.sampling.marks import mark_film, saving

STILLS = (".png", ".jpg", ".jpeg", ".webp")
VIDEO = ".mp4"
ANIMATED = (VIDEO, ".webp", ".gif")
MAX_FILM = 512  # Small frames of a film are enlarged to at most this side in pixels.
# Browsers show frames of 10 ms or less for 100 ms.  The next longer frame takes 20 ms in a GIF, and 11 ms in a WebP.
MOST_FPS = {".gif": 50, ".webp": 90}
WIDEST = 2048  # Images in a sheet are enlarged only if the sheet stays within this width in pixels.
PAPER, INK = 232, 40  # grey levels of a caption's background and letters
CAPTION_HEIGHT, FONT_SIZE = 16, 11  # pixels
STAMP_SHARE = 16  # In a time-lapse film, the line of text below a grid has 1/16 of the grid's height.
STAMP_LETTERS = 22  # With a font size of 1/22 of the grid's width, the longest text fits below the grid.
# A lower crf means a higher quality; FFmpeg's guide calls H.264 with a crf of 17 or 18 visually lossless.
H264 = {"crf": "16", "preset": "medium"}
# WebP films are lossy, because six seconds of photographs at 512x512 take 2 MB instead of 20 MB.
WEBP: dict[str, Any] = {"quality": 75, "method": 0}
MOST_FILM_PIXELS = 2**30  # All frames of a .webp or .gif are kept in memory, at up to 5 bytes per pixel.

Step = TypeVar("Step")


def output_path(out: str | None, run: str, name: str, kinds: tuple[str, ...]) -> Path:
    """Return the path of a command's output: `out` if given (see `check_output`), else a new path `name`-NUMBER.

    New files lie in samples/ of the run directory `run`, or in the working directory if `run` is no run directory.
    """
    if out is not None:
        return check_output(out, kinds)
    ending = next(iter(writable(kinds)), "")
    home = Path(run) / "samples" if (Path(run) / CONFIG_FILE).is_file() else Path()
    taken = [file.stem.rpartition("-")[2] for file in home.glob(f"{name}-*{ending}")]
    number = max((int(number) for number in taken if number.isdecimal()), default=0) + 1
    return check_output(str(home / f"{name}-{number:03d}{ending}"), kinds)


def check_output(out: str, kinds: tuple[str, ...] = ()) -> Path:
    """Return `out` as a path; raises UserError if `out` can't be written, or if its ending is not in `kinds`.

    Args: kinds: file endings, where "" stands for a directory; without `kinds`, `out` is a directory with any name.
    """
    path, ending = Path(out), Path(out).suffix.lower()
    if kinds and ending not in kinds:
        problem = f"{out} does not end in {', '.join(filter(None, dict.fromkeys(kinds)))}."
        raise UserError(problem, "Change the ending, which chooses the kind of file.")
    if not writable((ending,)):
        remedy = "Install PyAV: pip install 'pggan[video]'. Or give a name that ends in .webp or .gif."
        raise UserError(f"A {VIDEO} needs PyAV, which is not installed.", remedy)
    try:
        TemporaryFile(dir=existing_parent(path.parent if kinds and ending else path)).close()
    except OSError as error:
        raise UserError(f"{out} can't be written: {error.strerror}.", "Name another place.") from error
    return path


def writable(kinds: tuple[str, ...]) -> list[str]:
    """Return the file endings in `kinds` that this installation can write; .mp4 needs PyAV."""
    return [kind for kind in kinds if kind != VIDEO or find_spec("av") is not None]


def sheet(images: Iterable[Pixels], columns: int, zoom: int, captions: Sequence[str] = ()) -> Pixels:
    """Arrange images [R, R, C] row by row in one picture, enlarged by `zoom`, with `captions` below the images."""
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
    """Return the largest zoom, at least 1, for images up to MIN_TILE pixels wide and a sheet up to WIDEST pixels."""
    return max(min(MIN_TILE, WIDEST // columns) // resolution, 1)


def film_zoom(side: int, most: int = MAX_FILM) -> int:
    """Return the largest whole factor, at least 1, that enlarges `side` pixels to at most `most` pixels."""
    return max(most // side, 1)


def save_picture(picture: Pixels, path: Path, mark: str | None = None) -> None:
    """Write a picture [H, W, C], with `mark` as metadata; raises UserError if the format can't hold the picture."""
    with writing(path) as temporary:
        # JPEG's chroma subsampling is off (0), because it would blur the edges of enlarged pixels.
        to_pil(picture).save(temporary, lossless=True, quality=95, subsampling=0, **saving(mark))


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path, and rename it to `path` after the `with` block; raises UserError if an encoder fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_write(path) as temporary:
            yield temporary
    except (OSError, ValueError, RuntimeError) as error:
        if getattr(error, "errno", None) is not None:  # The file system raised this error, not the encoder.
            raise
        remedy = "Use a smaller zoom=, grid= or resolution=, or another kind of file."
        raise UserError(f"{path} can't hold these images: {error}.", remedy) from error


def film_of(grids: dict[Path, GridFacts], count: int, most: int = MAX_FILM) -> Iterator[Pixels]:
    """Yield `count` frames [H, W, 3] of a time-lapse film: sample `grids`, evenly spaced in number of images shown."""
    paths, facts = [*grids], [*grids.values()]
    with Image.open(paths[-1]) as largest:
        side = largest.width * film_zoom(largest.width, most)
    stamp_height = side // STAMP_SHARE
    font = ImageFont.load_default(side / STAMP_LETTERS)
    times = [each.images for each in facts]
    moments = np.linspace(times[0], times[-1], count) if count > 1 else times[-1:]
    for shown, repeats in groupby(np.searchsorted(times, moments, "right") - 1):
        picture = Image.new("RGB", (side, side + stamp_height))
        with Image.open(paths[shown]) as grid:
            picture.paste(grid.resize((side, side), Image.Resampling.NEAREST))
        place = side / 2, side + stamp_height / 2
        ImageDraw.Draw(picture).text(place, facts[shown].stamp, fill="white", font=font, anchor="mm")
        yield from (np.asarray(picture) for _ in repeats)


def save_film(frames: Iterable[Pixels], count: int, fps: int, path: Path, mark: str | None = None) -> None:
    """Write `count` frames [H, W, C] as a film with `mark` as metadata; the ending of `path` sets the format."""
    kind = path.suffix.lower()
    fastest = MOST_FPS.get(kind, fps)
    require(fps <= fastest, "fps", fps, f"at most {fastest} for {kind}, or browsers slow the film; .mp4 has no limit")
    shown = tracked(frames, count)
    with writing(path) as temporary:
        if kind == VIDEO:
            write_video(shown, fps, temporary)
            return mark_film(temporary, kind, mark)
        pictures, unit = [to_pil(next(shown))], 1
        most = MOST_FILM_PIXELS // (pictures[0].width * pictures[0].height)
        require(count <= most, "frames", count, f"at most {most:,}, or {kind} takes too much memory; .mp4 has no limit")
        pictures += map(to_pil, shown)
        if kind == ".gif":  # Because all frames have one palette, regions without motion do not flicker.
            unit, sampled = 10, [np.asarray(picture.convert("RGB")) for picture in pictures[:: count // 16 + 1]]
            palette = Image.fromarray(np.concatenate(sampled)).quantize(255)
            pictures = [one.convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE) for one in pictures]
        borders = np.round(np.arange(count + 1) * 1000 / unit / fps) * unit  # in milliseconds
        film = {"save_all": True, "append_images": pictures[1:], "duration": np.diff(borders).astype(int).tolist()}
        pictures[0].save(temporary, loop=0, **WEBP, **film, **saving(mark))
        return mark_film(temporary, kind, mark)


def write_video(frames: Iterable[Pixels], fps: int, path: Path) -> None:
    """Write an H.264 video with 4:2:0 chroma, which every player supports; frames need an even height and width."""
    import av
    from av.video.reformatter import ColorRange, Colorspace

    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        stream: Any = container.add_stream("libx264", rate=fps, options=H264)
        stream.pix_fmt, coded = "yuv420p", stream.codec_context
        # Color space, primaries and transfer curve of BT.709 have the same code, ITU709.
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
    """Yield the items of `steps`, with a progress bar on stderr if stderr is a terminal."""
    yield from track(steps, what, count, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
