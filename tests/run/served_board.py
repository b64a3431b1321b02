"""TensorBoard as `pggan monitor` serves it, asked over HTTP for what its page asks for."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from tests.explore.browser import WAIT_SECONDS

STATUSES = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]


class Board:
    """The data of one TensorBoard."""

    def __init__(self, address: str) -> None:
        self.address = address

    def read(self, path: str, **query: object) -> bytes:
        """The answer to a request for `path`, below /data/."""
        with urlopen(f"{self.address}data/{path}?{urlencode(query)}") as answer:
            return answer.read()

    def ask(self, plugin: str, **query: object) -> Any:
        """The answer of a plugin: `ask("text/tags")`."""
        return json.loads(self.read(f"plugin/{plugin}", **query))

    def active_plugins(self) -> set[str]:
        """The names of the tabs that have something to show."""
        return {name for name, about in json.loads(self.read("plugins_listing")).items() if about["enabled"]}

    def trials(self) -> dict[str, Any]:
        """The rows of HParams by the names of their runs."""
        wanted = {"allowedStatuses": STATUSES, "startIndex": 0, "sliceSize": 100}
        address = f"{self.address}data/plugin/hparams/session_groups"
        with urlopen(Request(address, json.dumps(wanted).encode(), {"Content-Type": "application/json"})) as answer:
            return {group["name"]: group for group in json.load(answer)["sessionGroups"]}

    def steps(self, run: str) -> dict[str, list[int]]:
        """The steps of all points of a run, by tag."""
        found = {}
        for kind, is_list in (("scalars", True), ("histograms", True), ("images", False), ("text", False)):
            for tag in self.ask(f"{kind}/tags")[run]:
                points = self.ask(f"{kind}/{kind}", run=run, tag=tag)
                found[tag] = [point[1] if is_list else point["step"] for point in points]
        return found


@contextmanager
def served(folder: Path) -> Iterator[Board]:
    """TensorBoard on a folder of runs, in a process of its own."""
    words = [sys.executable, "-m", "pggan", "monitor", f"run={folder}", "port=0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        line = process.stdout.readline()
        yield Board(re.search(r"http://127\.0\.0\.1:\d+/", line)[0])
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def wait_for(holds: Callable[[], bool], what: str, seconds: float = 0.2) -> None:
    """Ask every few `seconds` whether something holds."""
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(seconds)
