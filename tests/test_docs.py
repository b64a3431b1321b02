"""What the README and the documentation say is so: commands run, links lead somewhere, the site is built."""

import re
import shlex
import subprocess
import sys
import tomllib
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pggan
from pggan.cli.commands import COMMANDS
from pggan.cli.compose import named_file
from pggan.cli.main import main
from pggan.config.defaults import choices_of
from pggan.config.validation import validated
from pggan.core.text import NEXT
from tests.composed import composed

ROOT = Path(__file__).parents[1]
PAGES = {path: path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
README = PAGES[ROOT / "README.md"]
GUIDE = PAGES[ROOT / "docs" / "guide.md"]
MAPS = README + (ROOT / "CONTRIBUTING.md").read_text()  # the tables that say what is where
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OF_A_RUN = "experiment=folder_256"  # in place of a recipe.yaml, which only the run of a reader has

SMALLER = {  # what makes a command a matter of a second, in this process
    "train": [
        *("schedule.stable_images=8", "schedule.fade_images=8", "schedule.batch=4", "schedule.total_images=null"),
        *("schedule.lr_decay_images=0", "model.fmap_max=4", "devices=cpu"),
    ],
    "prepare": ["num_workers=1"],
    "interpolate": ["frames=4", "device=cpu"],
    "sample": ["device=cpu"],
    "explore": ["device=cpu", "open=false"],
    "timelapse": ["seconds=1"],
    "directions": ["device=cpu"],
    "project": ["steps=2", "device=cpu"],
    "evaluate": ["count=16", "extractor=pixels", "device=cpu"],
    "bench": ["model.fmap_max=4", "steps=1", "device=cpu", "stages=[4]"],
    "bench scaling": ["model.fmap_max=4", "steps=1", "processes=[1]"],
    "plan": ["schedule.final_resolution=4", "model.fmap_max=4", "devices=cpu"],
}


def blocks(text: str, *, python: bool = False) -> list[str]:
    """What a page has between fences: commands, or Python."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [block for language, block in fenced if (language == "python") == python]


def command_lines(text: str) -> list[str]:
    """The commands of a page that are this program's."""
    lines = "".join(blocks(text)).replace("\\\n", " ").replace(".venv/bin/", "").splitlines()
    return [line.split("  #")[0] for line in lines if re.match(r"(pggan|python train\.py) ", line) and "…" not in line]


def name_and_words(line: str) -> tuple[str, list[str]]:
    """The command of a line, and the words after it."""
    words = shlex.split(line)
    words = words[1:] if words[0] == "pggan" else ["train", *words[2:]]
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
    return name, words[len(name.split()) :]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        path, _, anchor = target.partition("#")
        if not path.startswith("https://"):
            file = page.parent / path if path else page
            assert file.exists(), target
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE) if anchor else []
            anchors = {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}
            assert not anchor or anchor in anchors, target


def test_every_file_of_the_tables_exists():
    for subpackage, row in re.findall(r"^\| `(pggan/\w+/)?(.*)", MAPS, re.MULTILINE):
        for name in re.findall(r"`([\w/]+\.(?:py|yaml|md|toml))`", row):
            places = [ROOT / name, ROOT / "pggan" / name, *(ROOT / subpackage).rglob(Path(name).name)]
            assert any(place.is_file() for place in places), f"{name} of {subpackage or row}"


def test_every_test_that_a_page_names_exists():
    for command in re.findall(r"`pytest ([^`]+)`", "".join(PAGES.values())):
        paths, _, words = " ".join(command.split()).partition(" -k ")
        files = [
            file for path in paths.split() for file in ([ROOT / path] if ".py" in path else (ROOT / path).glob("*.py"))
        ]
        names = " ".join(re.findall(r"^def (test_\w+)", "".join(file.read_text() for file in files), re.MULTILINE))
        assert names, command
        assert all(word in names for word in re.findall(r"\w+", words) if word != "or"), command


def test_the_pages_list_every_recipe_and_every_loss():
    rows = PAGES[ROOT / "docs" / "recipes.md"].partition("| `experiment=` |")[2].partition("\n\n")[0].splitlines()[2:]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])} == {*choices_of("experiment")}
    row = next(line for line in GUIDE.splitlines() if "| `loss=` |" in line)
    assert {*re.findall(r"`(\w+)`", row.split("|")[2])} == {*choices_of("loss")}


def test_libraries_are_pinned_and_every_extra_to_install_exists():
    """No package index has the program, so that `pip install pggan` would fetch nothing, or what is not ours."""
    declared = sum(PROJECT["optional-dependencies"].values(), PROJECT["dependencies"])
    pins = (ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
    assert {re.match(r"[\w-]+", one)[0].lower() for one in declared} <= {line.partition("==")[0] for line in pins}
    installed = re.findall(r"""pip install (?:-e )?["']?(\.|pggan)(?:\[([\w,]+)\])?""", "".join(PAGES.values()))
    assert {where for where, _ in installed} == {"."}
    assert {extra for _, names in installed for extra in names.split(",")} <= {*PROJECT["optional-dependencies"]}


@pytest.mark.slow
@pytest.mark.parametrize("line", sorted({line for text in PAGES.values() for line in command_lines(text)}))
def test_every_command_in_the_documentation_is_accepted(line, monkeypatch):
    monkeypatch.chdir(ROOT)
    name, words = name_and_words(line)
    overrides = [OF_A_RUN if named_file(word) else word for word in words if not word.startswith(("-", "hydra"))]
    if "--multirun" in words:
        overrides = [re.sub(r"=([^,]+),.*", r"=\1", word) for word in overrides]  # the first job
    validated(COMMANDS[name].schema_type, composed(name, overrides))


@pytest.mark.slow
def test_the_first_commands_of_the_guide_run_in_their_order_and_each_says_what_comes_next(
    tmp_path, make_pyramid, monkeypatch, capsys
):
    """Each as written, made small, in this process; starting processes has tests of its own."""
    random = np.random.default_rng(0)
    for folder in ("photos", "data/orl"):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(16):
            shape = (92, 92) if folder == "data/orl" else (80, 70, 3)
            Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).save(tmp_path / folder / f"{number}.png")
    (tmp_path / "photo.png").symlink_to("photos/0.png")
    make_pyramid(tmp_path / "data" / "avatars-toon-head-4096-32px", resolution=32, images=70)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", lambda _: None)
    given = set()
    for line in command_lines(GUIDE.partition("## The keys")[0]):
        name, words = name_and_words(line.replace("hours=2", "hours=0.004 schedule.final_resolution=32"))
        if name != "monitor":  # see tests/run
            given.add(name)
            smaller = [key for key in SMALLER.get(name, []) if "grow=" not in line or not key.startswith("model.")]
            assert main([*name.split(), *words, *smaller]) == 0, line
            shown = capsys.readouterr()  # training prints on stderr alone
            last = (shown.out or shown.err).strip().splitlines()[-1]
            assert re.match(f"{NEXT}|{ {'train': 'Go on '}.get(name) }", last), line
    assert given == {*COMMANDS} - {"bench", "bench scaling", "import", "monitor", "plan"}
    for name in ("loop.webp", "faces.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.width >= 64


@pytest.mark.slow
def test_the_pictures_of_the_pretrained_generator_are_what_their_commands_draw(tmp_path):
    drawn = r"!\[[^:\]]+: (pggan (?:sample|interpolate) run=pretrained:.*)\]\((.*\.png)\)"
    shown = sorted({*re.findall(drawn, "".join(PAGES.values()))})
    assert len(shown) == 3
    for command, file in shown:
        out = tmp_path / Path(file).name
        assert main([*shlex.split(command)[1:], f"out={out}", "device=cpu"]) == 0
        with Image.open(out) as drawn, Image.open(ROOT / "docs" / file) as stored:
            assert drawn.size == stored.size
            # On another machine, a sum may be rounded otherwise, and a few values by one.
            assert np.abs(np.asarray(drawn, np.int16) - np.asarray(stored, np.int16)).max() <= 1


@pytest.mark.slow
def test_the_python_of_the_pages_runs_on_what_their_commands_write(finished_run, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra export")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "hf_hub_download", lambda name, file, **_: f"{Path(name).name}/{file}")
    for form, out in (("onnx", "faces.onnx"), ("hf", "faces")):
        assert main(["export", f"run={finished_run}", f"format={form}", f"out={out}"]) == 0
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "photos").symlink_to(finished_run)
    monkeypatch.setattr(pggan, "train", lambda *words, **objects: pggan.load("outputs/photos"), raising=False)
    names = {path.name: {} for path in PAGES}
    for path, text in PAGES.items():
        for block in blocks(text, python=True):
            exec(block, names[path.name])
    assert names["export.md"]["images"].shape == (4, 3, 16, 16)
    assert names["export.md"]["generator"].resolution == 16
    assert len(names["python.md"]["pictures"]) == 8
    assert names["python.md"]["again"].shape == (1, 16, 16, 3)


@pytest.mark.slow
def test_the_site_has_every_page_and_is_built_without_a_warning_and_asks_no_other_host(tmp_path):
    pytest.importorskip("material", reason="needs the extra docs")
    configuration = (ROOT / "mkdocs.yml").read_text()
    (tmp_path / "mkdocs.yml").write_text(configuration)
    for command in (
        "scripts.site_pages {0}/build/pages",
        "mkdocs build --strict --quiet -f {0}/mkdocs.yml -d {0}/site",
    ):
        words = [sys.executable, "-W", "ignore", "-m", *command.format(tmp_path).split()]
        subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    site = tmp_path / "site"
    listed = re.findall(r"([\w/-]+)\.md", configuration.partition("\nnav:")[2])
    keys = {f"keys/{name.replace(' ', '_')}" for name in COMMANDS}
    assert {*listed} == {"index", "outputs", *keys, *(path.stem for path in PAGES if path.name != "README.md")}
    assert all((site / f"{name}.html").is_file() for name in listed)
    loaded = r"<(?:script|img|iframe)[^>]* src=\"?https?:|<link[^>]* rel=\"?stylesheet[^>]* href=\"?https?:"
    for page in site.rglob("*.html"):
        assert not re.search(loaded, page.read_text()), page
    for page in (site / "keys").glob("*.html"):
        for cells in re.findall(r"<tr>\s*<td><code>(.*?)</tr>", page.read_text(), re.DOTALL):
            assert re.sub(r"<[^>]*>|\s", "", cells.rpartition("<td>")[2]), f"{page.name} does not explain {cells[:40]}"
    table = (site / "keys" / "train.html").read_text()
    for key in ("schedule.final_resolution", "monitor.tick_images", "loss.gamma", "ema.half_life_images"):
        assert f"<code>{key}</code>" in table, key
