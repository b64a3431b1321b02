"""The table of recipes: rows that exist, measured by the commands that people use, and shown as medians."""

import json
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.quality import measure, table
from benchmarks.quality.__main__ import RESULTS, is_measured
from benchmarks.quality.rows import ROWS, Row
from tests.composed import train_config

ROOT = Path(__file__).parents[2]


@pytest.mark.rare
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_is_a_run_that_can_be_trained(row):
    train_config(*row.keys)


def test_rows_that_are_compared_have_the_same_data():
    for question in {row.question for row in ROWS}:
        assert len({(row.data, row.metrics) for row in ROWS if row.question == question}) == 1, question


@pytest.mark.rare
def test_a_row_is_trained_measured_and_drawn(tmp_path, tiny_overrides):
    row = Row("tiny", "does it work", "toy", tuple(map(str, tiny_overrides)), ("swd",))
    assert not is_measured(row, 3, tmp_path)
    found = measure.measure(row, 3, tmp_path, tmp_path)
    assert json.loads((tmp_path / "tiny-3.json").read_text()) == found
    with Image.open(tmp_path / "tiny-3.png") as image:
        assert image.size == (1024, 1024)
    assert (found["images"], found["resolution"], found["seed"]) == (160, 16, 3)
    assert any(name.startswith("swd") for name in found["figures"])
    assert is_measured(row, 3, tmp_path)
    assert not is_measured(row._replace(keys=("experiment=demo",)), 3, tmp_path)


def test_the_document_shows_what_was_measured():
    assert table.tables(RESULTS) in (ROOT / "docs/quality.md").read_text()
    for path in RESULTS.glob("*.json"):
        found = json.loads(path.read_text())
        (row,) = [row for row in ROWS if row.name == found["row"]]
        assert (found["question"], found["data"]) == (row.question, row.data), path
