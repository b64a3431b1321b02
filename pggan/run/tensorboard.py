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

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import scalar

from pggan.sampling.output.images import Pixels, save_png

EVENTS = "events.out.tfevents."


class TensorBoardWriter(RecordWriter):  # type: ignore[misc]
    """An event file in `run_dir` whose points replace all earlier ones from step `first` on; for several threads."""

    def __init__(self, run_dir: Path, first: int) -> None:
        self._lock = Lock()
        super().__init__(_next_file(run_dir).open("xb"))
        self._add(Event(file_version="brain.Event:2"))
        self._add(Event(step=first, session_log=SessionLog(status=SessionLog.START)))

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Write one point of a curve."""
        self._add(Event(step=step, summary=scalar(tag, value)))  # type: ignore[no-untyped-call]

    def picture(self, tag: str, picture: Pixels, path: Path, step: int) -> None:
        """Write a picture [H, W, C] as the PNG file `path`, and the same bytes into the event file."""
        content, (height, width, channels) = save_png(picture, path), picture.shape
        image = Summary.Image(height=height, width=width, colorspace=channels, encoded_image_string=content)
        self._add(Event(step=step, summary=Summary(value=[Summary.Value(tag=tag, image=image)])))

    def flush(self) -> None:
        """Hand everything written so far to the system."""
        with self._lock:
            super().flush()

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        with self._lock:
            self.write(event.SerializeToString())


def _next_file(run_dir: Path) -> Path:
    """A name that TensorBoard, which reads files in the order of their names, reads last."""
    times = [re.match(r"\d+", path.name.removeprefix(EVENTS)) for path in run_dir.glob(f"{EVENTS}*")]
    newest = max((int(match[0]) for match in times if match), default=0)
    return run_dir / f"{EVENTS}{max(int(time.time()), newest + 1):010d}.{socket.gethostname()}.{os.getpid()}"
