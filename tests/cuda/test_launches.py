"""Launches, copies, graph nodes and memory of a step are those of the table, which a change must justify."""

import pytest
import torch

from tests.cuda.launches import WRITE, read

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cuda")]


def test_steps_ask_of_the_device_what_the_table_says(program):
    table = read()
    if table["torch"] != torch.__version__:
        pytest.skip(f"the table is for PyTorch {table['torch']}, this is {torch.__version__}")
    found = program("launches")
    names = table["rows"].keys() | found.keys()
    changes = [
        f"{name}: {key} {table['rows'].get(name, {}).get(key)} -> {found.get(name, {}).get(key)}"
        for name in sorted(names)
        for key in sorted(table["rows"].get(name, {}).keys() | found.get(name, {}).keys())
        if table["rows"].get(name, {}).get(key) != found.get(name, {}).get(key)
    ]
    assert not changes, f"`{WRITE}` writes the table anew; the commit says why:\n" + "\n".join(changes)


def test_no_step_of_the_table_waits_for_the_device():
    waits = {name: (row["waits"], row["replay_waits"]) for name, row in read()["rows"].items()}
    assert set(waits.values()) == {(0, 0)}, waits
