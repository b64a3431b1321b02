"""Files that commands write: where, and the pictures, sheets and films in them.  Imported without torch."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.progress import track

from pggan.core.atomic_io import atomic_write
from pggan.core.errors import UserError
from pggan.sampling.images import MIN_TILE, Pixels, enlarge, to_pil

STILLS = (".png", ".jpg", ".jpeg", ".webp")  # the kinds of files that hold one picture
VIDEO = ".mp4"
ANIMATED = (".webp", ".gif", VIDEO)
CONFIG_FILE = "config.yaml"  # of a run directory
WIDEST = 2048  # pixels, of sheets whose images are enlarged
PAPER, INK = 232, 40  # grey levels of what no image covers, and of captions
CAPTION_HEIGHT, FONT_SIZE = 16, 11  # pixels
WORTH_LOOKING_AT = 512  # pixels that small films are enlarged to
GIF_COLORS = 255  # and one for pixels that have not changed
SAMPLED_FRAMES = 16  # that the palette of a GIF is chosen from
# Nearly lossless: below a constant rate factor of about 17, people see no difference (FFmpeg's guide).
H264 = {"crf": "12", "preset": "medium"}
BT709 = 1  # the number of ITU-R BT.709 in streams: how RGB becomes luma and chroma
LIMITED = 1  # its number of luma from 16 to 235

Step = TypeVar("Step")


def check_output(out: str, kinds: tuple[str, ...], key: str = "out") -> Path:
    """`out`, given as `key`, as a path whose directory exists; raises UserError unless it ends as one of `kinds`."""
    path = Path(out)
    if path.suffix.lower() not in kinds:
        raise UserError(f"{key}={out} does not end in {' or '.join(kinds)}.", "The ending chooses the kind of file.")
    make_folder(path.parent, key)
    return path


def make_folder(path: Path, key: str) -> Path:
    """Create the directory `path`; raises UserError, naming `key`, when that can't be done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"{path} (from {key}=) can't be a directory: {error.strerror}."
        raise UserError(problem, "Name another place.") from error
    return path


def output_path(out: str | None, run: str, name: str, ending: str = "") -> Path:
    """`out`; without it, a path that is not taken yet, `name`-001`ending` in samples/ of the run that `run` lies in.

    Of a generator that lies in no run, it is in the working directory.
    """
    if out is not None:
        return Path(out)
    path = Path(run)
    places = (path, path.parent, path.parent.parent)  # a run directory, a generator file in it, a checkpoint
    home = next((place / "samples" for place in places if (place / CONFIG_FILE).is_file()), Path())
    taken = [file.stem.rpartition("-")[2] for file in home.glob(f"{name}-*{ending}")]
    return home / f"{name}-{max((int(number) for number in taken if number.isdecimal()), default=0) + 1:03d}{ending}"


def sheet(images: Iterable[Pixels], columns: int, rows: int, side: int, captions: Sequence[str] = ()) -> Pixels:
    """Images [R, R, C], row by row, as one picture: each enlarged to `side` pixels, with its caption below, if any.

    Cells without an image are grey.
    """
    tiles = [enlarge(image[None], side // len(image))[0] for image in images]
    height = side + CAPTION_HEIGHT * bool(captions)
    picture = np.full((rows * height, columns * side, tiles[0].shape[2]), PAPER, np.uint8)
    picture[:, :, 3:] = 255  # opaque
    for number, tile in enumerate(tiles):
        top, left = number // columns * height, number % columns * side
        picture[top : top + side, left : left + side] = tile
        if captions:
            line = Image.new("L", (side, CAPTION_HEIGHT), PAPER)
            ImageDraw.Draw(line).text((2, 1), captions[number], fill=INK, font=ImageFont.load_default(FONT_SIZE))
            picture[top + side : top + height, left : left + side, :3] = np.asarray(line)[:, :, None]
    return picture


def sheet_zoom(resolution: int, columns: int) -> int:
    """The factor that makes small images of a sheet worth looking at, and no sheet wider than a screen."""
    zoom = 1
    while 2 * zoom * resolution <= min(MIN_TILE, WIDEST // columns):
        zoom *= 2
    return zoom


def save_picture(picture: Pixels, path: Path) -> None:
    """Write one picture [H, W, C] atomically; raises UserError where the kind that `path` names can't hold it."""
    with writing(path) as temporary:
        # In a JPEG, colours at full resolution: else the edges of enlarged pixels are blurred.
        to_pil(picture).save(temporary, lossless=True, quality=95, subsampling=0)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary path, which becomes `path`; what an encoder refuses, such as a size, is raised as UserError."""
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

    A .webp is lossless, a .gif has one palette of 255 colours, and an .mp4 never has more than a few frames in memory.
    """
    shown = tracked(frames, count)
    with writing(path) as temporary:
        if path.suffix.lower() == VIDEO:
            write_video(shown, fps, temporary)
            return
        pictures, unit = [to_pil(frame) for frame in shown], 1
        if path.suffix.lower() == ".gif":
            pictures, unit = with_one_palette(pictures), 10
        borders = (round(number * 1000 / unit / fps) * unit for number in range(count + 1))  # the sum stays exact
        milliseconds = [after - before for before, after in pairwise(borders)]
        how: dict[str, Any] = {"save_all": True, "loop": 0, "lossless": True, "method": 0}
        pictures[0].save(temporary, append_images=pictures[1:], duration=milliseconds, **how)


def with_one_palette(pictures: list[Image.Image]) -> list[Image.Image]:
    """Pictures with one palette that suits frames from the whole film: what stands still stays the same."""
    pictures = [picture.convert("RGB") for picture in pictures]
    sampled = np.concatenate([np.asarray(picture) for picture in pictures[:: -(-len(pictures) // SAMPLED_FRAMES)]])
    palette = Image.fromarray(sampled).quantize(GIF_COLORS)
    return [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]


def write_video(frames: Iterable[Pixels], fps: int, path: Path) -> None:
    """Write H.264 with 4:2:0 chroma, which every player knows; odd sides get another row or column.

    Raises UserError, before the first frame is drawn, where PyAV is missing.
    """
    try:
        import av
        from av.video.reformatter import ColorRange, Colorspace
        from av.video.stream import VideoStream
    except ImportError as error:
        remedy = "Install it: pip install 'pggan[video]'. Or set out=….webp or .gif."
        raise UserError(f"A {VIDEO} needs PyAV, which is not installed.", remedy) from error

    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:  # plays while it loads
        stream = container.add_stream("libx264", rate=fps, options=H264)
        assert isinstance(stream, VideoStream)
        stream.pix_fmt = "yuv420p"
        stream.codec_context.colorspace, stream.codec_context.color_range = BT709, LIMITED
        stream.codec_context.color_primaries = stream.codec_context.color_trc = BT709
        for number, picture in enumerate(frames):
            rgb = np.asarray(to_pil(picture).convert("RGB"))
            height, width = rgb.shape[:2]
            even = np.pad(rgb, [(0, height % 2), (0, width % 2), (0, 0)], mode="edge")
            if number == 0:
                stream.height, stream.width = even.shape[:2]
            frame = av.VideoFrame.from_ndarray(even, format="rgb24").reformat(
                format="yuv420p", dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG
            )
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def tracked(steps: Iterable[Step], count: int, what: str = "Drawing") -> Iterator[Step]:
    """`steps`, with a bar on stderr if that is a terminal."""
    console = Console(stderr=True)
    yield from track(steps, what, count, console=console, transient=True, disable=not console.is_terminal)


def film_zoom(width: int, height: int) -> int:
    """The largest whole factor up to WORTH_LOOKING_AT pixels, at least 1."""
    return max(WORTH_LOOKING_AT // max(width, height), 1)
