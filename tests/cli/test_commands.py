"""The commands: a YAML and a schema each, with the same keys, and every key explained."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pggan import config
from pggan.cli.main import main
from pggan.config.validation import validated
from pggan.config.values import CONFIGS, choices_of
from pggan.core.process import __version__
from pggan.performance.recipe import FALLING_SHARE
from tests.composed import composed

ROOT = Path(__file__).parents[2]
FILES = sorted(CONFIGS.rglob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_key_that_a_file_introduces_is_explained(path):
    lines = path.read_text().splitlines()
    inherits = "defaults" in (yaml.safe_load(path.read_text()) or {}) and path.parent != CONFIGS
    if inherits or path.parent.name in ("experiment", "debug"):  # a variation of a file that explains its keys
        assert lines[0].startswith("#")
        return
    explained = False
    for line in lines:
        if line.startswith(("defaults:", "  - ", "name: ")):
            continue
        if re.match(r" *#", line):
            explained = True
        elif not line.strip():
            explained = False
        else:
            assert explained, f"{path.name}: no comment above '{line.strip()}'"


def test_the_wheel_lists_every_package():
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "pggan").rglob("__init__.py")}
    assert listed == found | {"pggan.configs"}


@pytest.mark.parametrize("choice", [f"experiment={name}" for name in choices_of("experiment")] + ["debug=smoke"])
def test_every_recipe_composes_and_has_a_name_of_its_own(choice):
    checked = validated(config.TrainConfig, composed("train", [choice]))
    assert checked.name == choice.partition("=")[2]
    assert checked.schedule.build().phases[0].end > 0
    assert checked.data.path is None or "avatars" not in choice


def test_the_official_presets_differ_in_the_schedule_alone():
    one = validated(config.TrainConfig, composed("train", ["experiment=celebahq_1024"]))
    eight = validated(config.TrainConfig, composed("train", ["experiment=celebahq_1024_8gpus"]))
    assert replace(eight, schedule=one.schedule, name=one.name) == one
    assert eight.schedule.build().phases[0].batch == 512


def test_the_demo_is_the_recipe_of_the_avatars_with_smaller_batches_and_fewer_images():
    demo, avatars = (
        validated(config.TrainConfig, composed("train", [f"experiment={e}"])) for e in ("demo", "avatars_32")
    )
    fewer = {key: getattr(demo.schedule, key) for key in ("stable_images", "lr_decay_images")} | {"batch": 8}
    assert demo == replace(avatars, name="demo", schedule=replace(avatars.schedule, **fewer))
    ends = [recipe.schedule.build().phases[-1].end for recipe in (demo, avatars)]
    assert ends == [48_500, 65_000]
    shares = [recipe.schedule.lr_decay_images / recipe.schedule.stable_images[32] for recipe in (demo, avatars)]
    assert shares == pytest.approx([FALLING_SHARE] * 2, abs=0.001)


def test_the_citation_is_of_this_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


@pytest.mark.slow
@pytest.mark.parametrize("choice", [f"experiment={name}" for name in choices_of("experiment")] + ["debug=overfit"])
def test_the_first_phase_of_every_recipe_trains_at_reduced_size(choice, toy_data, tmp_path):
    smaller = ["schedule.final_resolution=16", "schedule.batch=4", "schedule.total_images=8", "model.fmap_max=4"]
    data = [f"data.path={toy_data}", "data.channels=null", "devices=cpu", "schedule.lr_decay_images=0"]
    assert main(["train", choice, *smaller, *data, f"run_dir={tmp_path / 'run'}"]) == 0
    assert (tmp_path / "run" / "generator.safetensors").is_file()
