"""TensorBoard's event files, one per process that trained, without double points after a resume.

`SummaryWriter` would name a file by the system clock, so that a clock set back puts a resumed run before the one that
it continues, and would meet a full disk in a thread of its own.  Here names always sort after the existing files, and
every error is raised where the number is written.
"""

import os
import re
import socket
import time
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import (
    DATA_CLASS_BLOB_SEQUENCE,
    DATA_CLASS_SCALAR,
    DATA_CLASS_TENSOR,
    HistogramProto,
    Summary,
    SummaryMetadata,
)
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.summary.writer.record_writer import RecordWriter

from pggan.run.tags import description
from pggan.sampling.images import Pixels, encode_png, save_png

EVENTS = "events.out.tfevents."
BINS = 30  # of a histogram
# The plugin that shows a kind of value, and how it stores it: without these, TensorBoard forgets what a tag means.
PLUGINS = {
    "simple_value": ("scalars", DATA_CLASS_SCALAR),
    "histo": ("histograms", DATA_CLASS_TENSOR),
    "image": ("images", DATA_CLASS_BLOB_SEQUENCE),
    "tensor": ("text", DATA_CLASS_TENSOR),
}


class TensorBoardWriter(RecordWriter):  # type: ignore[misc]
    """An event file in `run_dir` whose points replace all earlier ones from step `first` on; for several threads."""

    def __init__(self, run_dir: Path, first: int) -> None:
        self._lock = Lock()
        self._described: set[str] = set()
        super().__init__(_next_file(run_dir).open("xb"))
        self._add(Event(file_version="brain.Event:2"))
        self._add(Event(step=first, session_log=SessionLog(status=SessionLog.START)))

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Write one point of a curve."""
        self._add_value(step, tag, "simple_value", value)

    def histogram(self, tag: str, values: NDArray[np.float32], step: int) -> None:
        """Write the distribution of `values` [N]; those that are not finite are left out."""
        finite = values[np.isfinite(values)].astype(np.float64)
        if len(finite):
            counts, edges = np.histogram(finite, BINS)
            histogram = HistogramProto(
                min=finite.min(), max=finite.max(), num=len(finite), sum=finite.sum(), sum_squares=(finite**2).sum()
            )
            histogram.bucket_limit.extend(edges)
            histogram.bucket.extend([0, *counts])
            self._add_value(step, tag, "histo", histogram)

    def picture(self, tag: str, picture: Pixels, path: Path | None, step: int) -> None:
        """Write a picture [H, W, C] as PNG into the event file, and the same bytes as the file `path`, if given."""
        content = encode_png(picture) if path is None else save_png(picture, path)
        height, width, channels = picture.shape
        image = Summary.Image(height=height, width=width, colorspace=channels, encoded_image_string=content)
        self._add_value(step, tag, "image", image)

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Write a text."""
        content = TensorProto(dtype="DT_STRING", string_val=[markdown.encode()])
        self._add_value(step, tag, "tensor", content)

    def summary(self, summary: Summary, step: int) -> None:
        """Write what has been put together elsewhere, for a plugin of TensorBoard."""
        self._add(Event(step=step, summary=summary))

    def flush(self) -> None:
        """Hand everything written so far to the system."""
        with self._lock:
            super().flush()

    def _add_value(self, step: int, tag: str, kind: str, content: object) -> None:
        """Write one value, the first of a tag with what the tag means."""
        value = Summary.Value(tag=tag, **{kind: content})
        if tag not in self._described:
            self._described.add(tag)
            plugin, data_class = PLUGINS[kind]
            about = SummaryMetadata.PluginData(plugin_name=plugin)
            metadata = SummaryMetadata(summary_description=description(tag), plugin_data=about, data_class=data_class)
            value.metadata.CopyFrom(metadata)
        self._add(Event(step=step, summary=Summary(value=[value])))

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        with self._lock:
            self.write(event.SerializeToString())


def _next_file(run_dir: Path) -> Path:
    """A name that TensorBoard, which reads files in the order of their names, reads last."""
    times = [re.match(r"\d+", path.name.removeprefix(EVENTS)) for path in run_dir.glob(f"{EVENTS}*")]
    newest = max((int(match[0]) for match in times if match), default=0)
    return run_dir / f"{EVENTS}{max(int(time.time()), newest + 1):010d}.{socket.gethostname()}.{os.getpid()}"
