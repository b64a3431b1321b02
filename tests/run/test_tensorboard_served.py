"""What TensorBoard shows of a run that was stopped and broken off on its way, beside one that has not come to its end.

TensorBoard is asked over HTTP for what its page asks for, and three of its tabs are looked at in a real browser.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from pggan.core.errors import EXIT_INTERRUPTED
from pggan.run import train
from pggan.run.report import GROWTH, LAYOUT
from tests.conftest import watch_steps
from tests.explore.browser import CHROMIUM, open_browser

pytestmark = pytest.mark.rare

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
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(seconds)


RESUMED = ["monitor.grid_images=32", "checkpoint.every_images=1000"]
RESUMED += ["evaluation.metrics=[swd]", "evaluation.interval_images=48", "evaluation.count=16"]
# Together, the two runs have a curve for every chart.
UNFINISHED = ["loss=logistic", "augmentation=ada", "precision=fp16"]
EVALUATIONS = [48, 96, 144, 160]
TICKS = sorted({32, 64, 128, *EVALUATIONS})
STARTS = [0, 41, 97]  # the first image of each process
BORDERS = {1: 0.0, 33: 0.0, 65: 1.0, 97: 1.0, 129: 2.0}  # the first image of each phase, and the growth there
MEAN = "metrics/swd/mean@patches-16"

TABS = {
    "timeseries",
    "scalars",
    "custom_scalars",
    "images",
    "histograms",
    "distributions",
    "text",
    "hparams",
    "projector",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny_config) -> Path:
    """A folder of two runs.

    `resumed` was told to stop at 40 images, and broke off at 136, from where it went back to its evaluation at 96.
    `unfinished` was told to stop at 104.
    """

    def break_off() -> None:
        raise RuntimeError("broken off")

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    folder = tmp_path_factory.mktemp("runs")
    resumed = tiny_config(f"run_dir={folder / 'resumed'}", *RESUMED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        after_step = watch_steps(patch)
        after_step(lambda state: state.images == 40 and stop())
        assert train.run(resumed) == EXIT_INTERRUPTED
        after_step(lambda state: state.images == 136 and break_off())
        with pytest.raises(RuntimeError, match="broken off"):
            train.run(resumed)
        after_step(lambda state: state.images == 104 and stop())
        assert train.run(tiny_config(f"run_dir={folder / 'unfinished'}", *UNFINISHED)) == EXIT_INTERRUPTED
        after_step(lambda state: None)
        assert train.run(resumed) == 0
    return folder


@pytest.fixture(scope="module")
def recorded(runs) -> dict[str, dict[int, float]]:
    """The numbers of the resumed run in metrics.jsonl, by name and images."""
    found: dict[str, dict[int, float]] = {}
    for line in map(json.loads, (runs / "resumed" / "metrics.jsonl").read_text().splitlines()):
        for name, value in line.items():
            found.setdefault(name, {})[line["images"]] = value
    return found


@pytest.fixture(scope="module")
def board(runs):
    def last(run: str) -> int:
        return max(board.ask("scalars/scalars", run=run, tag="G/loss"))[1] if run in board.ask("scalars/tags") else 0

    with served(runs) as board:
        # TensorBoard already answers while it still reads the files.
        wait_for(lambda: board.active_plugins() >= TABS, "the plugins")
        wait_for(lambda: last("resumed") >= 160 and last("unfinished") >= 96, "the last numbers")
        yield board


@pytest.fixture(scope="module")
def steps(board) -> dict[str, list[int]]:
    """Those of all points of the resumed run, by tag."""
    return board.steps("resumed")


def test_every_point_is_there_once_and_none_is_lost(board, steps, recorded):
    assert {tag: found for tag, found in steps.items() if found != sorted({*found})} == {}
    assert (steps["G/loss"], steps["score_histogram/fakes"], steps[MEAN]) == (TICKS, TICKS, EVALUATIONS)
    assert (steps["phases/text_summary"], steps["run/command/text_summary"]) == (list(BORDERS), STARTS)
    for tag in board.ask("scalars/tags")["resumed"]:
        points = {step: value for _, step, value in board.ask("scalars/scalars", run="resumed", tag=tag)}
        borders = BORDERS if tag == "schedule/growth" else {}
        expected = recorded[re.sub("^(schedule|speed|health)/", "", tag)] | borders
        assert points == pytest.approx(expected, rel=1e-6), tag  # float32


def test_hparams_compare_the_runs_with_their_final_metrics(board, recorded):
    trials = board.trials()
    chosen = {name: (trial["hparams"]["loss.name"], trial["hparams"]["precision"]) for name, trial in trials.items()}
    assert chosen == {"resumed": ("wgan_gp", "auto"), "unfinished": ("logistic", "fp16")}
    ends = {name: [session["status"] for session in trial["sessions"]] for name, trial in trials.items()}
    assert ends == {"resumed": ["STATUS_SUCCESS"], "unfinished": ["STATUS_UNKNOWN"]}
    (final,) = (value for value in trials["resumed"]["metricValues"] if value["name"]["tag"] == MEAN)
    assert (final["trainingStep"], final["value"]) == (160, pytest.approx(recorded[MEAN][160], rel=1e-6))


# Elements of a page, also in the shadow trees and frames that TensorBoard is made of.
FIND = """
window.find = (selector, node = document) => [...node.querySelectorAll("*")].flatMap((element) => [
  ...(element.matches(selector) ? [element] : []),
  ...[element.shadowRoot, element.contentDocument].flatMap((inner) => inner ? window.find(selector, inner) : []),
]);
window.charts = (selector, line) => find(selector).filter(
  (chart) => find(line, chart.shadowRoot).some((path) => path.getAttribute("d"))
).length;
"""
CHARTS = sum(len([*GROWTH, *charts]) for charts in LAYOUT.values())


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_tabs_show_every_chart_the_images_and_the_points(board, tmp_path):
    with open_browser(tmp_path) as page:
        for tab, shown in {
            "custom_scalars": f"charts('tf-custom-scalar-multi-line-chart-card', 'path.line') == {CHARTS}",
            "images": "find('img').filter((image) => image.naturalWidth == 48).length == 8",
            "projector": "find('canvas').length > 0 && document.body && find('*').some((one) => one.innerText == '96')",
        }.items():
            page.open(f"{board.address}#{tab}", 1400, 1000)
            page.wait("location.href.startsWith('http') && document.readyState == 'complete'")
            page.run(FIND)
            wait_for(lambda condition=shown: page.run(condition), tab, seconds=0.5)  # to search such a page takes long
            assert [line for line in page.log if board.address in line] == []
        assert any("/sprite_image?" in address for address in page.requests)
