"""TensorBoard in a real browser: what `pggan monitor` serves of a run is to be seen."""

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.rare

# Elements of a page, also in the shadow trees and frames that TensorBoard is made of.
FIND = """
window.find = (selector, node = document) => [...node.querySelectorAll("*")].flatMap((element) => [
  ...(element.matches(selector) ? [element] : []),
  ...[element.shadowRoot, element.contentDocument].flatMap((inner) => inner ? window.find(selector, inner) : []),
]);
"""
SHOWN = {
    "images": "find('img').filter((image) => image.naturalWidth > 0).length >= 4",
    "projector": "find('canvas').length > 0 && find('*').some((one) => /^(48|96)$/.test(one.innerText))",  # points
}


def test_the_charts_the_images_and_the_points_of_a_run_are_shown(browser, finished_run):
    words = [sys.executable, "-m", "pggan", "monitor", f"run={finished_run}", "port=0", "open=false"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            cockpit = re.search(r"http://127\.0\.0\.1:\d+/\S+", process.stdout.readline())[0]
            address = cockpit.partition("?")[0]
            browser.open(cockpit, 1400, 1000)
            browser.wait("document.readyState == 'complete'")
            browser.run(FIND)
            browser.wait("find('*').some((one) => one.innerText === '5 cards')")  # this run has no metrics
            browser.wait("find('input').some((one) => one.type === 'number' && one.value === '0')")  # smoothing
            assert browser.run(f"document.body.innerText.includes('{finished_run.name}')")  # not "."
            for tab, condition in SHOWN.items():
                browser.open(f"{address}#{tab}", 1400, 1000)
                browser.wait("location.href.startsWith('http') && document.readyState == 'complete'")
                browser.run(FIND)
                browser.wait(condition)
                assert [line for line in browser.log if address in line] == []
            assert any("/sprite_image?" in request for request in browser.requests)
        finally:
            process.terminate()
