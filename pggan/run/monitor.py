"""`pggan monitor`: TensorBoard on a run, with settings that suit it."""

import socket
import sys
import threading
import webbrowser
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

from pggan.config.commands import MonitorConfig
from pggan.core.errors import UserError
from pggan.core.text import next_command

OUTPUTS = Path("outputs")
EVENTS = "events.out.tfevents.*"
LOCAL = ("127.0.0.1", "localhost", "::1")
# TensorBoard would keep 10 pictures of a tag, chosen by chance.
SAMPLES = "images=1000,text=1000,histograms=1000"


def run(config: MonitorConfig) -> int:
    """Serve TensorBoard until Ctrl-C; returns the exit code."""
    directory = newest_run(OUTPUTS) if config.run is None else run_to_show(Path(config.run))
    address = serve(directory, config.host, config.port)
    if config.host not in LOCAL:
        print(f"Everyone who reaches {config.host} can see {directory}.", file=sys.stderr)
    print(f"{directory}: {address}\nGrids are under Images.  Ctrl-C ends it.", flush=True)
    if config.open:
        webbrowser.open(address)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print()
    print(next_command("sample", "seeds=0-63", run=newest_run(directory)))
    return 0


def newest_run(outputs: Path) -> Path:
    """The run below `outputs` that was written to last; raises UserError when there is none."""
    files = {path: path.stat().st_mtime for path in outputs.rglob(EVENTS)}
    if not files:
        remedy = "Name one: run=DIRECTORY. Training writes to outputs/ where run_dir= names no other place."
        raise UserError(f"There is no run below {outputs.absolute()}.", remedy)
    return max(files, key=files.__getitem__).parent


def run_to_show(path: Path) -> Path:
    """`path`, if it is a run or a folder of runs; raises UserError otherwise."""
    if not path.is_dir():
        raise UserError(f"run={path} is no directory.", "Name the run_dir of a training, or a folder of several.")
    if next(path.rglob(EVENTS), None) is None:
        raise UserError(f"There is no run in run={path}: no {EVENTS}.", "Name the run_dir of a training.")
    return path


def serve(directory: Path, host: str, port: int | None) -> str:
    """Start TensorBoard in a thread; returns its address.  Raises UserError when it can't be served there."""
    where = f"host={host}" + ("" if port is None else f" port={port}")
    try:
        socket.create_server((host, port or 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        problem = f"TensorBoard can't be served at {where}: {error.strerror or error}."
        raise UserError(problem, "Set another port= or host=.") from error
    try:
        from tensorboard import program
    except ImportError as error:
        raise UserError(f"TensorBoard can't be imported: {error}.", "pip install tensorboard") from error
    board = program.TensorBoard()
    arguments = [f"--logdir={directory}", f"--host={host}", f"--samples_per_plugin={SAMPLES}", "--reload_interval=10"]
    arguments += [f"--window_title=pggan {directory.name}"] + ([] if port is None else [f"--port={port}"])
    board.configure(["tensorboard", *arguments])
    try:
        with redirect_stderr(StringIO()):  # TensorBoard calls its usual way of reading files an experiment
            return str(board.launch())
    except program.TensorBoardServerException as error:
        problem = f"TensorBoard can't be served at {where}: {error.msg}"
        raise UserError(problem, "Set another port= or host=.") from error
