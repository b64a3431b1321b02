"""The table of recipes: rows that exist, measured by the commands that people use, and shown as medians."""

import io
import json
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from PIL import Image

import benchmarks.quality.__main__ as quality
from benchmarks.quality import measure, table
from benchmarks.quality.__main__ import RESULTS, is_measured
from benchmarks.quality.recipe import changes_since, measured_by, recipe_of
from benchmarks.quality.rows import ROWS, Row
from pggan.cli.main import main
from pggan.config import TrainConfig
from pggan.core.validation import validated
from tests.composed import composed

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_is_a_run_that_can_be_trained(row):
    validated(TrainConfig, composed("train", list(row.keys)))


def test_rows_that_are_compared_have_the_same_data():
    for question in {row.question for row in ROWS}:
        assert len({(row.data, row.metrics) for row in ROWS if row.question == question}) == 1, question


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "large"), [(False, 256), (True, 16)])
def test_a_row_is_trained_measured_and_drawn(tmp_path, monkeypatch, tiny_overrides, gpu, large):
    """On a GPU with its name; from LARGE on with a grid of fewer images."""

    def in_this_process(*arguments):
        shown = io.StringIO()
        with redirect_stdout(shown):
            assert main(arguments) == 0, shlex.join(arguments)
        return shown.getvalue()

    monkeypatch.setattr(measure, "pggan", in_this_process)
    monkeypatch.setattr(measure, "run_to_end", lambda command: in_this_process(*command[3:]))
    monkeypatch.setattr(measure, "COUNT", 32)
    monkeypatch.setattr(measure, "LARGE", large)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    row = Row("tiny", "does it work", "toy", tuple(map(str, tiny_overrides)), ("swd",), gpu=gpu)
    found = measure.measure(row, 3, tmp_path, tmp_path)
    assert json.loads((tmp_path / "tiny-3.json").read_text()) == found
    with Image.open(tmp_path / ("tiny-3.jpg" if large == 16 else "tiny-3.png")) as image:
        assert image.size == ((512, 512) if large == 16 else (1024, 1024))  # enlarged to 128x128 each
    assert (found["machine"] == "a GPU") == gpu
    assert (found["images"], found["resolution"], found["seed"]) == (160, 16, 3)
    assert any(name.startswith("swd") for name in found["figures"])


def test_rows_that_need_a_gpu_are_left_out_without_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(quality, "measure", lambda *_: pytest.fail("a row is trained that needs a GPU"))
    places = ["--work", str(tmp_path / "work"), "--results", str(tmp_path / "results")]
    monkeypatch.setattr(sys, "argv", ["quality", "--rows", "avatars-256", "--seeds", "4", *places])
    assert quality.main() == 0
    assert capsys.readouterr().out.startswith("avatars-256, seed 4: left out, as it needs a GPU\n")


def test_a_row_of_which_anything_has_changed_is_measured_again(tmp_path):
    row = Row("tiny", "does it work", "toy", ("experiment=demo", "schedule.batch=4"))
    assert not is_measured(row, 0, tmp_path)
    found = {"row": "tiny", "recipe": recipe_of(row), **measured_by(row)}
    (tmp_path / "tiny-0.json").write_text(json.dumps(found))
    assert is_measured(row, 0, tmp_path)
    assert not is_measured(row, 1, tmp_path)
    others = ({"metrics": ("swd",)}, {"extractors": ("pixels",)}, {"keys": ("experiment=demo",)})
    for other in others:
        assert not is_measured(row._replace(**other), 0, tmp_path)
    found["recipe"]["loss.gamma"] = 3  # by a file of the recipe, with the same keys
    assert changes_since(found, row) == ["loss.gamma"]
    for key in ("model.residual", "model.noise"):  # keys that there were not yet: one is as by default, one is not
        del found["recipe"][key]
    assert {*changes_since(found, row)} == {"loss.gamma", "model.residual"}
    (tmp_path / "tiny-0.json").write_text(json.dumps(found))
    assert not is_measured(row, 0, tmp_path)


def test_a_gamma_by_its_rule_is_compared_as_a_number():
    row = Row("tiny", "does it work", "toy", ("experiment=modern",))
    assert recipe_of(row)["loss.gamma"] == 1.6
    assert changes_since({"recipe": recipe_of(row)}, row) == []


def test_a_table_shows_medians_of_the_seeds_and_says_what_is_missing_or_of_an_earlier_recipe(tmp_path):
    rows = [row for row in ROWS if row.question == "growing or not, at equal time"]
    names = [row.name for row in rows]
    for row, values in zip(rows, ([3.0, 1.0, 2.0], [5.0]), strict=True):
        name, recipe = row.name, recipe_of(row)
        for seed, value in enumerate(values):
            found = {"row": name, "question": "", "data": "avatars", "recipe": recipe, "seed": seed, "images": 58512}
            found |= {
                "resolution": 32,
                "seconds": 300.0,
                "machine": "CPU, 2 threads",
                "figures": {"kid@x-512": value} | ({"swd@y-512": 4.0} if seed == 1 else {}),
            }
            if name == names[1]:
                found["recipe"] = recipe | {"loss.gamma": 0.5}
            (tmp_path / f"{name}-{seed}.json").write_text(json.dumps(found))
    shown = table.tables(tmp_path)
    assert f"|  | {names[0]} | {names[1]} |" in shown
    facts = ("data | avatars | avatars", "images | 58,512 | 58,512", "minutes | 5.0 | 5.0")
    for line in (*facts, "machine | CPU, 2 threads | CPU, 2 threads", "seeds | 0, 1, 2 | 0"):
        assert f"| {line} |" in shown
    assert "| `kid@x-512` | 2 (3, 1, 2) | 5 |" in shown
    assert "| `swd@y-512` | 4 (–, 4, –) | – |" in shown
    assert "| recipe | as it is | an earlier one: other `loss.gamma` |" in shown


def test_the_document_shows_what_was_measured():
    assert table.tables(RESULTS) in (ROOT / "docs/quality.md").read_text()
    for path in RESULTS.glob("*.json"):
        found = json.loads(path.read_text())
        (row,) = [row for row in ROWS if row.name == found["row"]]
        assert (found["question"], found["keys"], found["data"]) == (row.question, list(row.keys), row.data), path
