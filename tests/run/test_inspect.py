"""`pggan inspect`: what runs, checkpoints, generators and data sets hold."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from pggan.cli.main import main


def test_it_counts_levels_bytes_and_classes(labelled_data, capsys):
    assert main(["inspect", f"data={labelled_data}", "json=true"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["images"] == 48
    assert facts["level_bytes"] == {str(level): 48 * level * level * 3 for level in (4, 8, 16)}
    assert facts["bytes"] == sum(file.stat().st_size for file in labelled_data.iterdir())
    assert facts["class_images"] == {"class-0": 16, "class-1": 16, "class-2": 16}
    assert facts["source"] == {"kind": "test"}


def test_the_contact_sheet_shows_images_spread_over_the_set(make_pyramid, tmp_path):
    pyramid = make_pyramid(tmp_path / "set", images=100)
    sheet = tmp_path / "sheet.png"
    assert main(["inspect", f"data={tmp_path / 'set'}", f"sheet={sheet}"]) == 0
    with Image.open(sheet) as picture:
        pixels = np.asarray(picture)
    assert pixels.shape == (16 * 6, 16 * 8, 3)
    np.testing.assert_array_equal(pixels[:16, 16:32], pyramid.read(16, np.array([100 // 48]))[0])


@pytest.mark.slow
def test_inspect_prints_the_licence_and_the_data_that_a_file_states(capsys):
    assert main(["inspect", "run=pretrained:avatars64", "json=true"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["license"] == "apache-2.0"
    assert "Johan Melin" in facts["data_statement"]


def test_inspect_prints_what_a_run_holds(finished_run, tmp_path, monkeypatch, capsys):
    assert main(["inspect", f"run={finished_run}", "json=true"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["images"], facts["resolution"], facts["alpha"], facts["phase"]) == (160, 16, 1.0, "16x16 stable")
    assert set(facts["parameters"]) == {"generator", "discriminator"}
    assert len(facts["state_sha256"]) == 64
    assert facts["picture"] == str(finished_run / "samples" / "fakes-000000160.png")
    assert facts["hours"] > 0
    assert main(["inspect", f"run={finished_run / 'checkpoints' / '000000128'}"]) == 0
    assert "16x16 fade" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished_run, "a [raw] :cat: [", symlinks=True)
    assert main(["inspect", "run='a [raw] :cat: ['"]) == 0
    assert "a [raw] :cat: [/checkpoints/000000160 " in capsys.readouterr().out


@pytest.mark.slow
def test_it_is_answered_without_importing_torch(finished_run, labelled_data, tmp_path):
    """Which takes seconds."""
    places = [f"run={finished_run}", f"run={finished_run / 'checkpoints' / '000000128'}"]
    places += [f"run={finished_run / 'generator.safetensors'}"]
    lines = [["inspect", place] for place in [*places, f"data={labelled_data}"]]
    lines[-1].append(f"sheet={tmp_path / 'sheet.png'}")
    code = f"import sys; from pggan.cli.main import main; print([main(line) for line in {lines}])"
    code += "; print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-2:] == ["[0, 0, 0, 0]", "False"]
