"""What TensorBoard shows of a run that was stopped and broken off on its way, beside one that has not come to its end.

What its page asks for is looked at over HTTP, and that the page shows it, in a real browser.
"""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from pggan.core.errors import EXIT_INTERRUPTED
from pggan.run import train
from pggan.run.tensorboard import GROWTH, LAYOUT
from tests.conftest import watch_steps
from tests.explore.browser import CHROMIUM, Page, open_browser
from tests.run.served_board import Board, served, wait_for

pytestmark = pytest.mark.rare

RESUMED = ["monitor.grid_images=32", "checkpoint.every_images=1000"]
RESUMED += ["evaluation.metrics=[swd]", "evaluation.interval_images=48", "evaluation.count=16"]
# Together, the two runs have a curve for every chart.
UNFINISHED = ["loss=logistic", "augmentation=ada", "precision=fp16"]
EVALUATIONS = [48, 96, 144, 160]
TICKS = sorted({32, 64, 128, *EVALUATIONS})
STARTS = [0, 41]  # the first image of each process: the second, which broke off, and the third have the same
BORDERS = {1: 0.0, 33: 0.0, 65: 1.0, 97: 1.0, 129: 2.0}  # the first image of each phase, and the growth there
MEAN = "metrics/swd/mean@patches-16"
CHARTS = sum(len([*GROWTH, *charts]) for charts in LAYOUT.values())

# Elements of a page, also in the shadow trees and frames that TensorBoard is made of; and all text that can be seen.
FIND = """
window.find = (selector, node = document) => [...node.querySelectorAll("*")].flatMap((element) => [
  ...(element.matches(selector) ? [element] : []),
  ...[element.shadowRoot, element.contentDocument].flatMap((inner) => inner ? window.find(selector, inner) : []),
]);
window.charts = (selector, line) => find(selector).filter(
  (chart) => find(line, chart.shadowRoot).some((path) => path.getAttribute("d"))
).length;
window.words = () => {
  const found = [];
  const read = (node) => {
    if (node.nodeType == Node.TEXT_NODE) found.push(node.data);
    if (node.nodeType == Node.ELEMENT_NODE && (node.matches("style, script") || !node.checkVisibility())) return;
    for (const inner of [node.shadowRoot, node.contentDocument]) if (inner) read(inner);
    node.childNodes.forEach(read);
  };
  read(document.body);
  return found.join(" ").replace(/\\s+/g, " ");
};
"""
NOTHING = r"No (?:dashboards are active|[\w ]+ data was found|matches for|metrics are enabled|runs are in)"
TABS = {
    "timeseries": r"/resumed [-\d.e]+ [-\d.e]+ 160 /.test(words())",
    "scalars": "charts('tf-scalar-card', 'path.line') > 8",
    "custom_scalars": f"charts('tf-custom-scalar-multi-line-chart-card', 'path.line') == {CHARTS}",
    "images": "find('img').filter((image) => image.naturalWidth == 48 && image.naturalHeight == 32).length == 8",
    "histograms": "charts('vz-histogram-timeseries', 'path.outline') == 5",
    "distributions": "charts('vz-distribution-chart', 'path.area') == 5",
    "text": "words().includes('Phase 5 of 5: 16x16 stable')",
    "hparams": "/Trial ID .* resumed .* unfinished /.test(words())",
    "projector": "find('canvas').length > 0 && words().includes('Points: 96')",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny_config) -> Path:
    """A folder of two runs.

    `resumed` was told to stop at 40 images, and broke off at 136, from where it went back to 40.  `unfinished` was told
    to stop at 104.
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
        wait_for(lambda: {*TABS} <= board.active_plugins(), "the plugins")
        wait_for(lambda: last("resumed") >= 160 and last("unfinished") >= 96, "the last numbers")
        yield board


@pytest.fixture(scope="module")
def steps(board) -> dict[str, list[int]]:
    """Those of all points of the resumed run, by tag."""
    return board.steps("resumed")


# ---- what the page asks for ------------------------------------------------------------------------------


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


# ---- what the page shows ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


def show(page: Page, board: Board, tab: str) -> None:
    page.open(f"{board.address}#{tab}", 1400, 1000)
    page.wait("location.href.startsWith('http') && document.readyState == 'complete'")
    page.run(FIND)
    wait_for(lambda: page.run(TABS[tab]), tab, seconds=0.5)  # to search such a page takes it long


@pytest.mark.parametrize("tab", TABS)
def test_every_tab_is_filled(board, page, tab):
    show(page, board, tab)
    assert re.findall(NOTHING, page.run("words()")) == []
    assert [line for line in page.log if board.address in line] == []
    assert tab != "projector" or any("/sprite_image?" in address for address in page.requests)
