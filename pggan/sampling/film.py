"""Films: pictures one after the other, as an endless animation by Pillow or a video by PyAV."""

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import track

from pggan.core.errors import UserError
from pggan.sampling.images import Pixels, to_pil, writing

VIDEO = ".mp4"
ANIMATED = (".webp", ".gif", VIDEO)
WORTH_LOOKING_AT = 512  # pixels that small films are enlarged to
MAX_SIDE = 16_383  # pixels, of every kind's headers
GIF_COLORS = 255  # and one for pixels that have not changed
SAMPLED_FRAMES = 16  # that the palette of a GIF is chosen from
SAMPLED_PIXELS = 2**18  # of these
# Nearly lossless: below a constant rate factor of about 17, people see no difference (FFmpeg's guide).
H264 = {"crf": "12", "preset": "medium"}
BT709 = 1  # the number of ITU-R BT.709 in streams: how RGB becomes luma and chroma
LIMITED = 1  # its number of luma from 16 to 235


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
            pictures, unit = with_one_palette([picture.convert("RGB") for picture in pictures]), 10
        borders = (round(number * 1000 / unit / fps) * unit for number in range(count + 1))  # the sum stays exact
        milliseconds = [after - before for before, after in pairwise(borders)]
        how: dict[str, Any] = {"save_all": True, "loop": 0, "lossless": True, "method": 0}
        pictures[0].save(temporary, append_images=pictures[1:], duration=milliseconds, **how)


def with_one_palette(pictures: list[Image.Image]) -> list[Image.Image]:
    """RGB pictures with one palette that suits frames from the whole film: what stands still stays the same."""
    wanted = min(SAMPLED_FRAMES, len(pictures))
    indices = sorted({round(number) for number in np.linspace(0, len(pictures) - 1, wanted)})
    pixels = [np.asarray(pictures[index]).reshape(-1, 3) for index in indices]
    sampled = np.concatenate([part[:: -(-len(part) * wanted // SAMPLED_PIXELS)] for part in pixels])
    palette = Image.fromarray(sampled[None]).quantize(
        GIF_COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
    )
    return [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]


def write_video(frames: Iterable[Pixels], fps: int, path: Path) -> None:
    """Write H.264 with 4:2:0 chroma, which every player knows; odd sides get another row or column."""
    import av
    from av.video.reformatter import ColorRange, Colorspace
    from av.video.stream import VideoStream

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


def tracked(images: Iterable[Pixels], count: int) -> Iterator[Pixels]:
    """`images`, with a bar on stderr if that is a terminal."""
    console = Console(stderr=True)
    hidden = not console.is_terminal
    yield from track(images, "Drawing", count, console=console, transient=True, disable=hidden)


def require_film(path: Path, width: int, height: int) -> None:
    """Raise a UserError where the library for a video is missing, or frames are larger than a film can have."""
    if path.suffix.lower() == VIDEO and find_spec("av") is None:
        remedy = "Install it: pip install 'pggan[video]'. Or set out=….webp or .gif."
        raise UserError(f"{path} needs PyAV, which is not installed.", remedy)
    if max(width, height) > MAX_SIDE:
        problem = f"{path} can't be written: frames of {width}x{height} pixels are more than {MAX_SIDE} a side."
        raise UserError(problem, "Use a smaller zoom, grid or resolution.")


def film_zoom(width: int, height: int) -> int:
    """The largest whole factor up to WORTH_LOOKING_AT pixels, at least 1."""
    return max(WORTH_LOOKING_AT // max(width, height), 1)
