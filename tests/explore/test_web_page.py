"""The page of static files in a real browser: the same pixels as PyTorch's, without a server of ours."""

import json
import shutil

import numpy as np
import pytest

from pggan.cli.main import main
from pggan.interop.web import ARCHIVE, cache_folder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(browser, generator_file, tmp_path_factory):
    runtime = cache_folder() / ARCHIVE
    if not runtime.is_file():  # tests fetch nothing
        pytest.skip("needs ONNX Runtime Web in the cache, where pggan export format=web puts it")
    folder = tmp_path_factory.mktemp("web") / "page"
    assert main(["export", "format=web", f"run={generator_file}", f"out={folder}", f"runtime={runtime}"]) == 0
    return folder


@pytest.fixture(scope="module")
def page(browser, folder, serve_folder):
    browser.open(address := serve_folder(folder))
    browser.wait("document.querySelector('#title').textContent === 'seed 0'")
    browser.wait("document.querySelector('#face').ariaBusy === 'false'")
    browser.address = address
    return browser


def draw(page, seeds, look):
    """The images [N, R, R, C] of seeds that the page's own renderer draws."""
    rows = page.run(f"""(async () => {{
      const model = await (await fetch("model.json")).json();
      globalThis.renderer ??= new (await import("./renderers.js")).RENDERERS.browser(model);
      const images = [];
      for (const seed of {json.dumps(seeds)}) {{
        images.push(await renderer.image(await renderer.latentOfSeed(seed), {json.dumps(look)}));
      }}
      return images.map((image) => [...image.data]);
    }})()""")
    return np.array(rows, np.uint8).reshape(len(seeds), 16, 16, 4)[..., :3]


def test_pixels_are_those_of_pytorch(page, generator):
    seeds, look = [0, 7, 999], {"truncation": 0.6, "label": 2}
    found, expected = draw(page, seeds, look).astype(int), generator.render(generator.latents(seeds), **look)
    assert np.abs(found - expected).max() <= 1  # where rounding turns


def test_the_controls_work_without_a_server(page):
    page.set("#growth", 1)
    page.wait("document.querySelector('#face').width === 8")
    page.wait("[...document.querySelectorAll('#lattice canvas')].every((canvas) => canvas.width === 8)")
    for _ in range(2):
        page.click("#keep-random")
    page.wait("document.querySelectorAll('#keyframes li').length === 2")
    page.click("#play")
    page.wait("document.querySelector('#playhead').value > 0.05")
    assert page.run("document.querySelector('#saving').offsetParent") is None
    assert page.run("document.querySelector('#export').disabled")  # for the Enter key
    page.click("#play")
    assert page.run("document.querySelector('#directions .name').readOnly")  # nobody keeps names
    page.run("""document.ondrop({ preventDefault() {}, dataTransfer: { files: [new File(["x"], "a.jpg")] } })""")
    page.wait("document.querySelector('#message p').textContent.includes('`pggan explore` can')")
    page.set("#seed", "1000")
    page.click("#seeds button[type=submit]")
    page.wait("document.querySelector('#message p').textContent.includes('0 to 999')")
    assert len(page.requests) > 10  # and none of them went to others
    assert [one for one in page.requests if not one.startswith((page.address, "blob:", "about:", "data:"))] == []
    assert page.log == []


@pytest.mark.parametrize(
    ("file", "hint"), [("generator.onnx", "can't be drawn"), ("ort.wasm.bundle.min.mjs", "missing")]
)
def test_a_folder_that_is_not_whole_is_told(browser, folder, serve_folder, tmp_path, file, hint):
    part = tmp_path / "part"
    shutil.copytree(folder, part)
    (part / file).unlink()
    browser.open(serve_folder(part))
    browser.wait("!document.querySelector('#message').hidden")
    assert hint in browser.text("#message p")
