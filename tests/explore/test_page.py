"""The page in a real browser: its mathematics beside that of Python, its controls, and what it refuses."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image

from pggan.sampling import explore
from pggan.sampling.generate import seed_latents
from pggan.sampling.images import enlarge, shrink
from pggan.sampling.latents import load_vectors, move, path_through, save_vectors
from pggan.sampling.marks import mark_in

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def downloads(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("downloads")
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    return folder


@pytest.fixture
def page(browser, server):
    """The page as it is after its first face."""
    browser.open(f"http://127.0.0.1:{server.server_port}/")
    browser.wait("document.title === 'faces.v2 · pggan' && document.querySelector('#title').textContent === 'seed 0'")
    browser.wait("document.querySelector('#face').ariaBusy === 'false'")
    yield browser
    assert browser.log == []


def shows(page, expected, tolerance=0):
    """Wait until the face is `expected`; the page draws when it comes to it."""
    wanted = [*expected.astype(int).flatten().tolist()]
    page.wait(f"""(() => {{
      const canvas = document.querySelector("#face");
      if (canvas.width !== {expected.shape[0]}) return false;
      const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      return {json.dumps(wanted)}.every(
        (value, i) => Math.abs(data[Math.floor(i / 3) * 4 + (i % 3)] - value) <= {tolerance});
    }})()""")


def show_seed(page, seed):
    page.set("#seed", str(seed))
    page.click("#seeds button[type=submit]")
    page.wait(f"document.querySelector('#title').textContent === 'seed {seed}'")


@pytest.mark.parametrize(("name", "kind", "last"), [("through", "slerp", 49), ("loop", "loop", 50)])
def test_paths_are_those_of_python(page, name, kind, last):
    keys = seed_latents([1, 2, 3, 4], 24)
    found = page.run(f"""(async () => {{
      const keys = {json.dumps(keys.tolist())}.map((key) => Float32Array.from(key));
      const path = (await import("./latents.js")).{name};
      return Array.from({{ length: 50 }}, (_, frame) => [...path(keys, frame / {last})]);
    }})()""")
    assert torch.allclose(torch.tensor(found), path_through(keys, kind, 50), rtol=1e-6, atol=1e-6)


def test_a_seed_shows_the_face_that_python_draws(page, generator):
    show_seed(page, 7)
    shows(page, generator.render(generator.latents([7]))[0])
    page.click("#back")
    page.wait("document.querySelector('#title').textContent === 'seed 0'")
    shows(page, generator.render(generator.latents([0]))[0])
    assert page.run("document.querySelector('#back').disabled")


def test_growth_truncation_and_class_are_those_of_python(page, generator):
    latents = generator.latents([0])
    assert page.text("#growth + output") == "8→16, 0.53"
    assert page.run("document.querySelector('#growth').max") == "2"  # what was trained, and no more
    shows(page, generator.render(latents)[0])
    page.set("#growth", 0)
    shows(page, shrink(generator.render(latents), 4)[0], tolerance=2)
    page.set("#growth", 1)
    page.set("#truncation", 0.5)
    page.set("#class", "2")
    shows(page, shrink(generator.render(latents, truncation=0.5, label=2), 2)[0], tolerance=2)


def test_random_drags_keys_and_neighbours_change_the_face(page):
    faces = [page.run("document.querySelector('#face').toDataURL()")]

    def changed(act):
        """A drag draws several faces: what comes next is compared with the last one."""
        act()
        page.wait(f"document.querySelector('#face').toDataURL() !== {json.dumps(faces[-1])}")
        page.wait("document.querySelector('#face').ariaBusy === 'false'")
        faces.append(page.run("document.querySelector('#face').toDataURL()"))

    changed(lambda: page.click("#random"))
    assert page.text("#title").startswith("seed ")
    page.wait("[...document.querySelectorAll('#lattice canvas')].every((canvas) => canvas.width === 16)")
    changed(lambda: page.click("#lattice button:first-child"))
    x, y = (page.run(f"document.querySelector('#face').getBoundingClientRect().{side} + 99") for side in "xy")
    changed(lambda: page.mouse((x, y), (x + 40, y), (x + 90, y + 60)))
    page.run("document.activeElement.blur()")
    for key in ("ArrowLeft", "ArrowDown", "r", "b"):
        changed(lambda key=key: page.key(key))
    assert len({*faces}) >= 7  # the last two: there and back
    before = page.run("document.querySelector('#lattice canvas').toDataURL()")
    page.click("#turn")
    page.wait(f"document.querySelector('#lattice canvas').toDataURL() !== {json.dumps(before)}")


def test_a_face_is_chosen_from_a_contact_sheet_and_mixed_with_another(page, generator):
    page.click("#sheet")
    page.click("#turn")
    page.wait("document.querySelector('#lattice button').title === 'seed 25'")
    page.click("#lattice button:nth-child(13)")
    shows(page, generator.render(generator.latents([37]))[0])
    page.click("#hold")
    page.click("#lattice button:first-child")
    page.wait("document.querySelector('#title').textContent === 'seed 25'")
    page.set("#mix", 0.25)
    half_way = generator.render(path_through(generator.latents([25, 37]), "slerp", 5))[1]
    shows(page, half_way, tolerance=1)
    assert page.text("#title") == "seed 25, 25 % seed 37"


def test_the_address_keeps_the_face_the_sliders_and_the_view(page, generator):
    show_seed(page, 7)
    page.click("#hold")
    show_seed(page, 4)
    page.set("#truncation", 0.5)
    page.set("#growth", 1)
    page.set("#mix", 0.5)
    page.set("#direction-2", 2)
    page.click("#sheet")
    page.click("#smooth")
    page.wait("location.hash.includes('sheet=1') && document.querySelector('#face').ariaBusy === 'false'")
    face = page.run("document.querySelector('#face').toDataURL()")
    address, title = page.run("location.href"), page.text("#title")
    page.open(address)
    page.wait(f"document.querySelector('#face').toDataURL() === {json.dumps(face)}")
    assert page.text("#title") == title == "seed 4, 50 % seed 7, moved"
    page.wait("document.querySelector('#lattice button').title === 'seed 0'")
    assert not page.run("document.querySelector('#smooth').checked")
    page.run("location.hash = 'seed=3'")
    shows(page, generator.render(generator.latents([3]))[0])


@pytest.mark.parametrize("damage", ["seed=7x", "held-seed=-1", "growth=abc", "sheet=2", "turned=1e9"])
def test_a_damaged_address_is_told_and_the_rest_of_it_is_shown(browser, server, generator, damage):
    browser.open(f"http://127.0.0.1:{server.server_port}/#truncation=0.5&{damage}")
    browser.wait("document.querySelector('#message p').textContent.startsWith('This address is damaged')")
    shows(browser, generator.render(generator.latents([0]), truncation=0.5)[0], tolerance=60)
    assert browser.log == []


def test_names_of_directions_are_typed_and_stay(page):
    page.set("#directions .slider:nth-child(2) .name", "a smile", "change")
    page.wait("document.querySelector('#directions .slider:nth-child(2) [type=range]').ariaLabel === 'a smile'")
    page.open(page.run("location.href"))
    page.wait("document.querySelector('#directions .slider:nth-child(2) .name').value === 'a smile'")
    assert page.run("document.querySelector('#directions .name').placeholder") == "Direction 1"


def test_the_face_of_a_photo_is_found_and_what_is_no_photo_is_refused(page, generator, tmp_path, monkeypatch):
    monkeypatch.setattr(explore, "STEPS", 20)
    generator.sample([1500])[0].resize((90, 60)).save(tmp_path / "a photo.png")
    page.choose_file("#open", tmp_path / "a photo.png")
    shows(page, generator.project(tmp_path / "a photo.png", steps=20).image)
    page.wait("document.querySelector('#search').hidden")
    assert page.text("#title") == "a photo.png"
    assert not page.run("document.querySelector('#photo').hidden")
    drop = """(() => {{
      const dataTransfer = new DataTransfer();
      {add}
      document.body.dispatchEvent(new DragEvent("drop", {{ dataTransfer, bubbles: true, cancelable: true }}));
    }})()"""
    page.log.clear()
    for add, hint in (
        ("dataTransfer.items.add(new File(['a text'], 'a.txt'))", "a.txt can't be used."),
        ("dataTransfer.setData('text/plain', 'a text')", "Nothing to open."),
        ("dataTransfer.items.add(new File([new ArrayBuffer(1e8 + 1)], 'b.jpg'))", "b.jpg is larger than 100 MB."),
        ("dataTransfer.items.add(new File([new ArrayBuffer(99)], 'c.safetensors'))", "c.safetensors can't be used."),
    ):
        page.run(drop.format(add=add))
        page.wait(f"document.querySelector('#message p').textContent.startsWith({json.dumps(hint)})")
    page.log.clear()  # the browser itself notes that the server has refused a file
    page.click("#back")
    shows(page, generator.render(generator.latents([0]))[0])
    assert page.run("document.querySelector('#photo').hidden")


def test_what_is_saved_is_what_is_seen(page, downloads, generator):
    for selector in ("#png", "#latent"):
        page.click(selector)
    page.wait_for_files(downloads, ["seed-0.png", "seed-0.safetensors"])
    expected = generator.render(generator.latents([0]))[0]
    assert np.array_equal(picture(downloads / "seed-0.png"), expected)
    assert str(mark_in(downloads / "seed-0.png")["description"]).endswith("run=faces, the page, seed 0")
    (downloads / "seed-0.png").unlink()
    page.set("#size", "enlarged", "change")
    page.click("#smooth")
    page.click("#png")
    page.wait_for_files(downloads, ["seed-0.png"])
    assert np.array_equal(picture(downloads / "seed-0.png"), enlarge(expected[None], 32)[0])
    latents = load_vectors("latents", downloads / "seed-0.safetensors", 20)
    assert torch.equal(latents, generator.latents([0]))


def picture(path):
    with Image.open(path) as opened:
        return np.asarray(opened.convert("RGB"))


def test_a_film_of_keyframes_plays_and_is_exported(page, downloads, generator):
    assert page.run("document.querySelector('#play').disabled")
    page.click("#keep")
    show_seed(page, 3)
    page.click("#keep")
    page.click("#keep-random")
    page.wait("document.querySelectorAll('#keyframes canvas').length === 3")
    page.wait("[...document.querySelectorAll('#keyframes canvas')].every((canvas) => canvas.width === 16)")
    page.click("#keyframes li:nth-child(3) .remove")
    page.click("#keyframes li:nth-child(1) .later")
    page.set("#playhead", 0)
    shows(page, generator.render(generator.latents([3]))[0])  # the first keyframe now
    page.click("#play")
    page.wait("document.querySelector('#playhead').value > 0.05")
    assert page.text("#play") == "Pause"
    page.run("document.activeElement.blur()")
    page.key(" ")
    assert page.text("#play") == "Play"
    page.click("#closed")
    page.set("#seconds", "0.4")
    page.set("#fps", "10")
    assert page.run("document.querySelector('#kind').value") == (".mp4" if find_spec("av") else ".webp")
    page.set("#kind", ".webp", "change")
    page.click("#smooth")
    page.click("#export")
    page.wait_for_files(downloads, ["film.webp"])
    latents = path_through(generator.latents([3, 0]), "slerp", 4)
    with Image.open(downloads / "film.webp") as film:
        assert film.n_frames == 4
        for number, expected in enumerate(generator.render(latents)):
            film.seek(number)
            assert np.abs(np.asarray(film.convert("RGB"))[16::32, 16::32].astype(int) - expected).mean() < 8
    page.click("#keyframes li:nth-child(2) .show")
    shows(page, generator.render(generator.latents([0]))[0])
    page.click("#clear")
    assert page.run("document.querySelector('#export').disabled")


def test_a_file_of_latents_is_opened_and_moved_along_directions(page, server, tmp_path, generator):
    save_vectors("latents", seed_latents([11, 12], 20), tmp_path / "two.safetensors", {})
    page.choose_file("#open", tmp_path / "two.safetensors")
    page.wait("document.querySelectorAll('#keyframes li').length === 2")
    shows(page, generator.render(generator.latents([11]))[0])
    page.set("#direction-1", 2)
    direction = torch.tensor(np.frombuffer(server.files["directions.bin"], "<f4")[:20].copy())
    shows(page, generator.render(move(generator.latents([11]), direction, 2.0))[0], tolerance=1)
    page.click("#reset")
    shows(page, generator.render(generator.latents([11]))[0])


def test_a_server_that_has_ended_is_told(page):
    page.run("window.fetch = () => Promise.reject(new TypeError('refused'))")
    page.click("#random")
    page.wait("!document.querySelector('#message').hidden")
    assert "still running" in page.text("#message p")


def test_the_page_fits_a_phone_and_asks_nothing_of_others(page):
    address = page.run("location.href")
    page.open(address, 360, 740, 2)
    page.wait("document.querySelector('#title').textContent === 'seed 0'")
    assert page.run("document.documentElement.scrollWidth") == 360
    page.run("document.querySelector('#directions .slider:last-child').scrollIntoView({block: 'end'})")
    assert 0 <= page.run("document.querySelector('#face').getBoundingClientRect().top") < 500  # stays in sight
    assert page.requests
    assert all(request.startswith((address, "blob:", "about:", "data:")) for request in page.requests), page.requests
