"""`pggan monitor` serves TensorBoard for a run, with settings for many pictures and for a live run."""

import threading
import webbrowser
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

from pggan.checkpoints.read import EVENTS, newest_run
from pggan.config.commands import MonitorConfig
from pggan.core.errors import UserError
from pggan.core.text import next_command

HOST = "127.0.0.1"
# By default, TensorBoard shows only 10 pictures per tag, which it picks at random.
SAMPLES = "images=1000,text=1000"


def run(config: MonitorConfig) -> int:
    """Serve TensorBoard until Ctrl-C; returns the exit code."""
    directory = Path(config.run)
    newest = newest_run(directory, EVENTS)
    address = serve(directory, config.port)
    print(f"{directory}: {address}\nPreview grids are in the tab Images.  Ctrl-C ends TensorBoard.", flush=True)
    if config.open:
        webbrowser.open(address)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print()
    print(next_command("sample", "seeds=0-63", run=newest))
    return 0


def serve(directory: Path, port: int | None) -> str:
    """Start TensorBoard in a thread; returns its address.  Raises UserError if its port is in use."""
    from tensorboard import program

    board = program.TensorBoard()
    arguments = [f"--logdir={directory}", f"--host={HOST}", f"--samples_per_plugin={SAMPLES}", "--reload_interval=10"]
    arguments += [f"--window_title=pggan {directory.name}"] + ([] if port is None else [f"--port={port}"])
    board.configure(["tensorboard", *arguments])
    try:
        with redirect_stderr(StringIO()):  # TensorBoard warns that its default data loader is experimental
            return str(board.launch())
    except program.TensorBoardServerException as error:
        raise UserError(f"TensorBoard can't use {HOST} with port={port}.", "Set another port=.") from error
