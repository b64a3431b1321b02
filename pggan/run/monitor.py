"""`pggan monitor` serves TensorBoard with the most important charts of a run at the top of the page."""

import json
import threading
from collections.abc import Iterator
from contextlib import redirect_stderr, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from signal import SIGTERM, default_int_handler, signal
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from tensorboard import default, program
from tensorboard.plugins.projector.projector_plugin import ProjectorPlugin
from yaml import safe_load

from pggan.checkpoints.read import CONFIG_FILE, EVENTS, newest_run
from pggan.config.commands import MonitorConfig
from pggan.core.errors import UserError
from pggan.core.process import open_in_browser
from pggan.core.quality import PART
from pggan.core.text import next_command
from pggan.run.summary import METRIC, records_of

HOST = "127.0.0.1"
SAMPLES = "images=1000,text=1000"  # by default, TensorBoard shows only 10 random pictures per tag
MAX_FACES = 4  # TensorBoard pins at most ten charts or pictures, so fakes are pinned for the newest 4 runs only
PINNED = ("scores/reals", "scores/fakes", "speed/images_per_second", "speed/eta_seconds")


class RereadingProjector(ProjectorPlugin):  # type: ignore[misc]
    """TensorBoard's projector plugin, changed to read the points from disk at every request."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.context = context

    def get_plugin_apps(self) -> dict[str, Any]:
        return {route: partial(self.answer, route) for route in super().get_plugin_apps()}

    def answer(self, route: str, *request: Any) -> Any:
        return ProjectorPlugin(self.context).get_plugin_apps()[route](*request)

    def is_active(self) -> bool:
        return True


def run(config: MonitorConfig) -> int:
    """Serve TensorBoard until Ctrl-C; returns the exit code."""
    directory = Path(config.run)
    newest = newest_run(directory, EVENTS)
    signal(SIGTERM, default_int_handler)  # SIGTERM now acts as Ctrl-C, so the temporary folder is removed
    with TemporaryDirectory(prefix="pggan-monitor-") as folder:
        logdir = directory
        if any(directory.glob(EVENTS)):  # TensorBoard would call this run ".", so a symlink gives the run its name
            logdir = Path(folder)
            (logdir / directory.resolve().name).symlink_to(directory.resolve(), target_is_directory=True)
        address = serve(logdir, directory.resolve().name, config.port) + cockpit(directory)
        print(f"{directory}: {address}\nPinned: fakes, quality, scores, speed.  Ctrl-C ends TensorBoard.", flush=True)
        if config.open:
            open_in_browser(address)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
    print(f"\n{next_command('sample', 'seeds=0-63', run=newest)}")
    return 0


def cockpit(directory: Path) -> str:
    """Return a suffix for TensorBoard's URL, which pins charts of the runs in `directory` and turns smoothing off."""
    events = sorted(directory.rglob(EVENTS), key=lambda path: path.stat().st_mtime, reverse=True)
    runs = [*dict.fromkeys(path.parent for path in events)]
    top = directory.resolve().name if directory in runs else ""  # see the symlink in the function `run`
    names = [Path(top, path.relative_to(directory)) for path in runs[:MAX_FACES]]
    faces = {"plugin": "images", "tag": "images/averaged_fakes", "sample": 0}
    cards: list[dict[str, Any]] = [{**faces, "runId": f"defaultExperimentId/{name}"} for name in names]
    cards += [{"plugin": "scalars", "tag": tag} for tag in (*qualities(runs[0]), *PINNED)]
    return f"?pinnedCards={quote(json.dumps(cards, separators=(',', ':'), ensure_ascii=False))}&smoothing=0#timeseries"


def qualities(run_dir: Path) -> Iterator[str]:
    """Yield the TensorBoard tags of a run's quality metrics, even before the first evaluation."""
    names = (name for record in reversed(records_of(run_dir)) for name in record if name.startswith(METRIC))
    known = [name for name in names if not PART.fullmatch(name.removeprefix(METRIC).partition("@")[0])]
    if known:
        yield from dict.fromkeys(known)
    elif (file := run_dir / CONFIG_FILE).is_file():
        config = safe_load(file.read_text("utf-8"))
        wanted, images = config["evaluation"], config["versions"].get("images", 0)
        for name in wanted["metrics"]:
            value = {"swd": "swd/mean@patches", "ms_ssim": "ms_ssim@5scales"}.get(name, f"{name}@{wanted['extractor']}")
            yield f"{METRIC}{value}-{min(wanted['count'] or images, images)}"


def serve(logdir: Path, title: str, port: int | None) -> str:
    """Start TensorBoard in a thread, and return the URL; raises UserError if the port is in use."""
    plugins = [RereadingProjector if plugin is ProjectorPlugin else plugin for plugin in default.get_plugins()]
    board = program.TensorBoard(plugins)
    arguments = [f"--logdir={logdir}", f"--host={HOST}", f"--samples_per_plugin={SAMPLES}", "--reload_interval=10"]
    arguments += [f"--window_title=pggan {title}"] + ([] if port is None else [f"--port={port}"])
    board.configure(["tensorboard", *arguments])
    try:
        with redirect_stderr(StringIO()):  # hides TensorBoard's warning about an experimental data loader
            return str(board.launch())
    except program.TensorBoardServerException as error:
        raise UserError(f"TensorBoard can't use {HOST} with port={port}.", "Set another port=.") from error
