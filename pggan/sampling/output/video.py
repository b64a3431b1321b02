"""Videos through PyAV (extra `video`): H.264 in .mp4, VP9 in .webm."""

from pathlib import Path

import numpy as np

from pggan.sampling.output.film import Film, to_rgb

# Nearly lossless: below a constant rate factor of about 17, people see no difference (guides of FFmpeg for both).
ENCODERS = {
    ".mp4": ("mp4", "libx264", {"crf": "12", "preset": "medium"}),
    ".webm": ("webm", "libvpx-vp9", {"crf": "12", "b": "0", "deadline": "good", "cpu-used": "4", "row-mt": "1"}),
}
BT709 = 1  # the number of ITU-R BT.709 in streams: how RGB becomes luma and chroma
LIMITED = 1  # that of luma from 16 to 235


def write_video(film: Film, path: Path) -> None:
    """Write `film` with 4:2:0 chroma, which every player knows; odd sides get another row or column."""
    import av
    from av.video.reformatter import ColorRange, Colorspace
    from av.video.stream import VideoStream

    container_format, codec, options = ENCODERS[path.suffix.lower()]
    about = {"movflags": "+faststart"} if container_format == "mp4" else {}  # plays before it is there
    with av.open(str(path), "w", format=container_format, options=about) as container:
        stream = container.add_stream(codec, rate=film.fps, options=options)
        assert isinstance(stream, VideoStream)
        stream.pix_fmt = "yuv420p"
        stream.codec_context.colorspace, stream.codec_context.color_range = BT709, LIMITED
        stream.codec_context.color_primaries = stream.codec_context.color_trc = BT709
        for number, picture in enumerate(film.frames()):
            rgb = to_rgb(picture)
            height, width = rgb.shape[:2]
            even = np.pad(rgb, [(0, height % 2), (0, width % 2), (0, 0)], mode="edge")
            if number == 0:
                stream.height, stream.width = even.shape[:2]
            frame = av.VideoFrame.from_ndarray(even, format="rgb24").reformat(
                format="yuv420p", dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG
            )
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
