"""`pggan monitor`, and what TensorBoard shows of a run in a real browser."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from pggan.config import MonitorConfig
from pggan.core.errors import UserError
from pggan.run import monitor
from tests.explore.browser import CHROMIUM, WAIT_SECONDS, open_browser

# All elements and all text of a page, also in the shadow trees and frames that TensorBoard is made of.
FIND = """
window.find = (selector, node = document) => [...node.querySelectorAll("*")].flatMap((element) => [
  ...(element.matches(selector) ? [element] : []),
  ...[element.shadowRoot, element.contentDocument].flatMap((inner) => inner ? window.find(selector, inner) : []),
]);
window.words = () => {
  const found = [];
  const read = (node) => {
    if (node.nodeType == Node.TEXT_NODE) found.push(node.data);
    for (const inner of [node.shadowRoot, node.contentDocument]) if (inner) read(inner);
    node.childNodes.forEach(read);
  };
  read(document.body);
  return found.join(" ");
};
"""


def run_at(outputs: Path, name: str, seconds: float) -> Path:
    file = outputs / name / "events.out.tfevents.1.host.1"
    file.parent.mkdir(parents=True)
    file.touch()
    os.utime(file, (seconds, seconds))
    return file.parent


def test_the_newest_run_is_the_one_written_to_last(tmp_path):
    newest = run_at(tmp_path, "faces/b", 2000.0)
    run_at(tmp_path, "faces/c", 1000.0)
    assert monitor.newest_run(tmp_path) == newest
    assert monitor.run_to_show(tmp_path) == tmp_path


def test_it_ends_with_ctrl_c_and_says_what_comes_next(tmp_path, monkeypatch, capsys):
    class Interrupted:
        def wait(self):
            raise KeyboardInterrupt

    run_at(tmp_path, "a", 1.0)
    monkeypatch.setattr(monitor, "serve", lambda *_: "http://here/")
    monkeypatch.setattr(monitor.threading, "Event", Interrupted)
    assert monitor.run(MonitorConfig(run=str(tmp_path), host="127.0.0.1", port=None, open=False)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Next: pggan sample run={tmp_path / 'a'} seeds=0-63"


@pytest.mark.parametrize(("name", "problem"), [("nothing", "no directory"), ("empty", "There is no run in")])
def test_what_is_no_run_is_refused(tmp_path, name, problem):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=problem):
        monitor.run_to_show(tmp_path / name)
    with pytest.raises(UserError, match="There is no run below"):
        monitor.newest_run(tmp_path)


def test_a_port_that_is_taken_is_named(finished_run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = MonitorConfig(run=str(finished_run), host="127.0.0.1", port=port, open=False)
        with pytest.raises(UserError, match=f"host=127.0.0.1 port={port}"):
            monitor.run(config)


def test_a_port_that_cannot_be_is_refused():
    with pytest.raises(UserError, match="port=65536"):
        MonitorConfig(run=None, host="127.0.0.1", port=65536, open=False)


@pytest.fixture(scope="module")
def address(finished_run):
    """Of TensorBoard on a run, as the command serves it."""
    words = [sys.executable, "-m", "pggan", "monitor", f"run={finished_run}", "port=0"]
    board = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        line = board.stdout.readline()
        yield re.search(r"http://127\.0\.0\.1:\d+/", line)[0]
    finally:
        board.terminate()
        board.wait()
        board.stdout.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


def active_plugins(address: str) -> set[str]:
    with urlopen(f"{address}data/plugins_listing") as answer:
        return {name for name, about in json.load(answer).items() if about["enabled"]}


def wait_for(holds: Callable[[], bool], what: str) -> None:
    """Ask twice a second: to search such a page takes it long."""
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.5)


TABS = {
    "custom_scalars": "find('svg path.line').length > 8",
    "images": "find('img').filter((image) => image.naturalWidth > 0).length >= 4",
    "histograms": "find('vz-histogram-timeseries').some((chart) => find('path', chart.shadowRoot).length > 0)",
    "text": "words().includes('Phase 5 of 5: 16x16 stable')",
    "hparams": "words().includes('loss.penalty_resolution')",
    "projector": "find('canvas').length > 0 && words().includes('features_of_D')",
    "timeseries": "find('card-view').length > 4",
}


@pytest.mark.slow
def test_every_tab_of_tensorboard_is_filled(address, page):
    # TensorBoard already serves its page while it still reads the files.
    wait_for(lambda: {*TABS} <= active_plugins(address), "the plugins")
    for tab, condition in TABS.items():
        page.open("about:blank")
        page.wait("location.href == 'about:blank'")
        page.open(f"{address}#{tab}", 1400, 1000)
        page.wait("location.href.startsWith('http') && document.readyState == 'complete'")
        page.run(FIND)
        wait_for(lambda condition=condition: page.run(condition), tab)
    assert [line for line in page.log if address in line] == []
