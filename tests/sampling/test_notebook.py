"""The cells of docs/latents.ipynb run, in their order."""

import json
from pathlib import Path

import pytest

from pggan.sampling.latents.latents import load_latents

NOTEBOOK = Path(__file__).parents[2] / "docs" / "latents.ipynb"


@pytest.mark.slow
def test_the_cells_of_the_notebook_run_in_their_order(run_dir, tmp_path, monkeypatch):
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "demo").symlink_to(run_dir)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
            assert cell["outputs"] == []
    assert names["found"].psnr > 20
    assert load_latents(tmp_path / "found.safetensors", 8).shape == (1, 8)
