"""The documentation: its commands can be given as written, its links lead somewhere, and it builds as a site."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from pggan.cli.commands import COMMANDS
from pggan.cli.compose import named_file
from pggan.cli.main import main
from pggan.config.validation import validated
from tests.composed import composed

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {path.name: path.read_text() for path in sorted(DOCS.glob("*.md"))}
FENCED = {name: re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE) for name, text in PAGES.items()}
BLOCKS = [block for blocks in FENCED.values() for _, block in blocks]
OF_A_RUN = "experiment=folder_256"  # in place of a recipe.yaml, which only the run of a reader has
PYTHON = {name: [block for language, block in blocks if language == "python"] for name, blocks in FENCED.items()}
COMMAND_LINES = sorted(
    {
        line.split("  #")[0]
        for block in BLOCKS
        for line in block.replace("\\\n", " ").splitlines()
        if re.match(r"(pggan|python train\.py) ", line) and "…" not in line
    }
)


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMAND_LINES)
def test_every_command_in_the_documentation_is_accepted(line, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = shlex.split(line)
    words = words[1:] if words[0] == "pggan" else ["train", *words[2:]]
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
    words = words[len(name.split()) :]
    overrides = [word for word in words if not word.startswith(("-", "hydra"))]
    if "--multirun" in words:
        overrides = [re.sub(r"=([^,]+),.*", r"=\1", word) for word in overrides]  # the first job
    given = [OF_A_RUN if named_file(word) else word for word in overrides]
    validated(COMMANDS[name].schema_type, composed(name, given))


@pytest.mark.slow
def test_the_python_of_the_pages_runs_on_what_their_commands_write(finished_run, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra export")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "hf_hub_download", lambda name, file, **_: f"{Path(name).name}/{file}")
    for form, out in (("onnx", "faces.onnx"), ("hf", "faces")):
        assert main(["export", f"run={finished_run}", f"format={form}", f"out={out}"]) == 0
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "photos").symlink_to(finished_run)
    names = {name: {} for name in PAGES}
    for name, blocks in PYTHON.items():
        for block in blocks:
            exec(block, names[name])
    assert names["export.md"]["images"].shape == (4, 3, 16, 16)
    assert names["export.md"]["generator"].resolution == 16
    assert len(names["python.md"]["pictures"]) == 8
    assert names["python.md"]["again"].shape == (1, 16, 16, 3)


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(name):
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[name]):
        path, _, anchor = target.partition("#")
        if path.startswith("https://"):
            continue
        assert (DOCS / path).exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", (DOCS / (path or name)).read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}, (
                target
            )


def test_every_extra_to_install_exists_and_is_installed_from_the_checkout():
    """No package index has the program, so that `pip install pggan` would fetch nothing, or what is not ours."""
    written = "".join([(ROOT / "README.md").read_text(), *PAGES.values()])
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = re.findall(r"""pip install (?:-e )?["']?(\.|pggan)(?:\[([\w,]+)\])?""", written)
    assert {where for where, _ in installed} == {"."}
    assert {extra for _, names in installed for extra in names.split(",")} <= {*extras}


def test_every_page_and_every_command_is_in_the_table_of_contents():
    def pages(entry):
        if isinstance(entry, str):
            return [entry]
        return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in pages(part)]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    references = {f"keys/{name.replace(' ', '_')}.md" for name in COMMANDS}
    assert sorted(listed) == sorted({"index.md", "outputs.md", *PAGES, *references})


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_asks_no_other_host(tmp_path):
    pytest.importorskip("material", reason="needs the extra docs")
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    loaded = r"<(?:script|img|iframe)[^>]* src=\"?https?:|<link[^>]* rel=\"?stylesheet[^>]* href=\"?https?:"
    for page in tmp_path.rglob("*.html"):
        assert not re.search(loaded, page.read_text()), page
    for page in (tmp_path / "keys").glob("*.html"):
        for cells in re.findall(r"<tr>\s*<td><code>(.*?)</tr>", page.read_text(), re.DOTALL):
            assert re.sub(r"<[^>]*>|\s", "", cells.rpartition("<td>")[2]), f"{page.name} does not explain {cells[:40]}"
    table = (tmp_path / "keys" / "train.html").read_text()
    for key in ("schedule.final_resolution", "monitor.tick_images", "loss.gamma", "ema.half_life_images"):
        assert f"<code>{key}</code>" in table, key
