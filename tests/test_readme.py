"""What the README says is so: its commands run, its files exist."""

import re
import shlex
import subprocess
import tomllib
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from pggan.cli.commands import COMMANDS
from pggan.cli.main import main
from pggan.config.defaults import CONFIGS
from pggan.config.validation import names_of
from pggan.core.process import __version__
from pggan.core.text import NEXT

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
FENCED = re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
BLOCKS, PYTHON = ([block for name, block in FENCED if (name == "python") == wanted] for wanted in (False, True))
LINES = [
    line.removeprefix("$ ").removeprefix(".venv/bin/")
    for block in BLOCKS
    for line in block.splitlines()
    if line and line[0] != "#"
]

# What fetches, watches or installs.
NOT_RUN = r"make |source |pggan monitor|pip |git |cd |docker |.*fetch_orl"

SMALLER = {  # what makes a command a matter of a second, in this process
    "train": [
        "schedule.stable_images=8",
        "schedule.fade_images=8",
        "schedule.batch=4",
        "schedule.total_images=null",
        "schedule.lr_decay_images=0",
        "model.fmap_max=4",
        "devices=cpu",
    ],
    "prepare": ["num_workers=1"],
    "interpolate": ["frames=4", "device=cpu"],
    "sample": ["device=cpu"],
    "explore": ["device=cpu"],
    "timelapse": ["seconds=1"],
    "directions": ["device=cpu"],
    "project": ["steps=2", "device=cpu"],
    "evaluate": ["count=16", "extractor=pixels", "device=cpu"],
    "bench": ["model.fmap_max=4", "steps=1", "device=cpu", "stages=[4]"],
    "bench scaling": ["model.fmap_max=4", "steps=1", "processes=[1]"],
    "plan": ["schedule.final_resolution=4", "model.fmap_max=4", "devices=cpu"],
}


def test_every_linked_file_exists():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_every_file_of_the_tables_exists():
    for subpackage, row in re.findall(r"^\| `(pggan/\w+/)?(.*)", README, re.MULTILINE):
        for name in re.findall(r"`([\w/]+\.(?:py|yaml|md|toml))`", row):
            places = [ROOT / name, ROOT / "pggan" / name, *(ROOT / subpackage).rglob(Path(name).name)]
            assert any(place.is_file() for place in places), f"{name} of {subpackage or row}"


@pytest.mark.parametrize("group", ["experiment", "loss"])
def test_every_choice_that_the_readme_lists_exists_and_none_is_missing(group):
    row = next(line for line in README.splitlines() if f"| `{group}=` |" in line)
    assert set(re.findall(r"`(\w+)`", row.split("|")[3])) == {file.stem for file in (CONFIGS / group).glob("*.yaml")}


def test_the_source_distribution_has_the_files_that_tests_read():
    manifest = (ROOT / "MANIFEST.in").read_text().split()
    always = {"README.md", "pyproject.toml", "LICENSE", "NOTICE", "MANIFEST.in", "pggan"}
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    read = {name for name in re.findall(r'ROOT / "([^"/]+)', tests) if (ROOT / name).exists()}
    assert {"mkdocs.yml", "docs"} <= read
    assert read <= {*manifest, *always}


def test_every_library_that_is_declared_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = sum(project["optional-dependencies"].values(), project["dependencies"])
    pins = (ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
    assert {re.match(r"[\w-]+", one)[0].lower() for one in declared} <= {line.partition("==")[0] for line in pins}


def test_the_citation_is_of_this_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def test_the_makefile_has_the_targets_and_explains_them():
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("help", "setup", "demo", "test", "check"):
        assert re.search(rf"^{target} +\S", shown, re.MULTILINE)


@pytest.mark.slow
def test_the_commands_run_in_their_order_and_each_says_what_comes_next(tmp_path, make_pyramid, monkeypatch, capsys):
    """Each as written, made small, in this process; starting processes has tests of its own."""
    random = np.random.default_rng(0)
    for folder in ("photos", "data/orl"):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(16):
            shape = (92, 92) if folder == "data/orl" else (80, 70, 3)
            Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).save(tmp_path / folder / f"{number}.png")
    Image.fromarray(random.integers(0, 256, (80, 70, 3), dtype=np.uint8)).save(tmp_path / "photo.png")
    make_pyramid(tmp_path / "data" / "avatars-toon-head-4096-32px", resolution=32, images=70)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", lambda _: None)
    commands = [line for line in LINES if not re.match(NOT_RUN, line)]
    verbs = set()
    for line in commands:
        verbs.add(run_line(line))
        shown = capsys.readouterr()
        require_next_step(shown.out or shown.err)  # training prints on stderr alone
    assert verbs == {*COMMANDS} - {"import", "monitor"}  # see tests/importers, tests/run
    for block in PYTHON:
        exec(block, names := {})
    assert len(names["pictures"]) == 3
    for name in ("loop.webp", "walk.webp", "strip.png", "faces.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.width >= 64


@pytest.mark.slow
def test_the_pictures_of_the_pretrained_generator_are_what_their_commands_draw(tmp_path):
    shown = re.findall(r"!\[[^:]+: (pggan .*)\]\((.*\.png)\)", README)
    assert len(shown) == 2
    for command, file in shown:
        out = tmp_path / Path(file).name
        assert main([*shlex.split(command)[1:], f"out={out}", "device=cpu"]) == 0
        with Image.open(out) as drawn, Image.open(ROOT / file) as stored:
            assert drawn.size == stored.size
            # On another machine, a sum may be rounded otherwise, and a few values by one.
            assert np.abs(np.asarray(drawn, np.int16) - np.asarray(stored, np.int16)).max() <= 1


def run_line(line: str) -> str:
    """Run a line of the README made small; returns the command that it is."""
    words = shlex.split(line.replace("hours=2", "hours=0.004 schedule.final_resolution=32"))
    words = words[1:] if words[0] == "pggan" else ["train", *words[2:]]
    assert line.startswith(("pggan ", "python train.py ")), line
    verb = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
    assert main([*words, *SMALLER.get(verb, [])]) == 0, line
    return verb


def require_next_step(said: str) -> None:
    """The last line that a command has said names a command and keys that there are, or what another program does."""
    first, *words = shlex.split(said.strip().splitlines()[-1])
    assert first == NEXT, said
    if words[0] == "pggan":
        command = COMMANDS[words[1]]
        for word in words[2:]:
            key = word.partition("=")[0]
            assert key in {*command.groups, *names_of(command.schema_type)}, word
