"""Recipes as files: what was written comes back as overrides, and keys that are given have priority."""

import pytest

from pggan.cli.compose import compose
from pggan.cli.main import main
from pggan.cli.recipe_file import (
    Difference,
    overrides_of,
    read_recipe,
    with_recipes,
    write_recipe,
)
from pggan.core.errors import UserError

DIFFERENCES = [
    Difference("experiment", "avatars_32", "given", is_group=True),
    Difference("loss", "relativistic", "because", is_group=True),
    Difference("schedule.stable_images", {4: 100, 8: 200}, "it: is # quoted nowhere", is_group=False),
    Difference("schedule.final_resolution", 8, "small", is_group=False),
    Difference("schedule.total_images", None, "open", is_group=False),
    Difference("data.path", "it's [mine], yes", "given", is_group=False),
    Difference("data.mirror", value=True, reason="why not", is_group=False),
    Difference("checkpoint.milestones", [100, 200], "given", is_group=False),
    Difference("seed", 7, "given", is_group=False),
    Difference("loss.gamma", 0.25, "a number", is_group=False),
]


@pytest.fixture
def recipe(tmp_path):
    write_recipe(tmp_path / "recipe.yaml", "Chosen for a test.", DIFFERENCES)
    return tmp_path / "recipe.yaml"


def test_a_recipe_is_read_as_it_was_written_with_a_reason_on_each_line(recipe):
    assert sorted(read_recipe(recipe)) == sorted(overrides_of(DIFFERENCES))
    lines = recipe.read_text().splitlines()
    assert lines[:2] == ["# @package _global_", "# Chosen for a test."]
    assert all(" # " in line for line in lines[2:] if not line.endswith(":"))


def test_a_recipe_composes_and_given_keys_have_priority(recipe):
    values = compose("train", with_recipes([f"experiment={recipe}", "seed=9", "loss.gamma=3"]))
    assert (values["seed"], values["loss"]["name"], values["loss"]["gamma"]) == (9, "relativistic", 3)
    assert values["schedule"]["stable_images"][8] == 200
    assert values["schedule"]["total_images"] is None
    assert (values["data"]["path"], values["data"]["mirror"]) == ("it's [mine], yes", True)
    assert values["model"]["fmap_base"] == 256  # of the experiment


def test_what_is_no_recipe_is_refused(tmp_path, capsys):
    for name, text in {"none.yaml": None, "list.yaml": "- a", "bad.yaml": "a: [1"}.items():
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match=name):
            read_recipe(tmp_path / name)
    assert main(["train", f"experiment={tmp_path}/none.yaml"]) == 2
    assert "recipe.yaml" in capsys.readouterr().err
