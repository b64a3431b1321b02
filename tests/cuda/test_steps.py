"""Steps run on CUDA, are captured and replayed while networks grow, never make the host wait, and launch no more."""

import json

import pytest
import torch

from tests.cuda.launches import TABLE, run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cuda")]


@pytest.mark.parametrize("every", ["", pytest.param("every", marks=pytest.mark.rare)], ids=["one", "every"])
def test_steps_are_captured_and_replayed_in_every_phase_and_steady_ones_never_wait(null_gpu, every):
    """Nor do they make a pageable copy, or take memory from the system."""
    for outcome in run(null_gpu, "steps", every):
        about = outcome["about"]
        assert "error" not in outcome, f"{about}: {outcome['error']}"
        assert (outcome["notices"], outcome["steady"]) == ([], []), about
        assert outcome["replays"] == [about["reg_interval"] if about["graphs"] == "on" else 0] * 3, about


def test_steps_ask_of_the_device_what_the_table_says(null_gpu):
    table = json.loads(TABLE.read_text())
    if table["torch"] != torch.__version__:
        pytest.skip(f"the table is for PyTorch {table['torch']}, this is {torch.__version__}")
    rows, found = table["rows"], run(null_gpu, "launches")
    changes = [
        f"{name}: {key} {rows.get(name, {}).get(key)} -> {found.get(name, {}).get(key)}"
        for name in sorted(rows.keys() | found.keys())
        for key in sorted(rows.get(name, {}).keys() | found.get(name, {}).keys())
        if rows.get(name, {}).get(key) != found.get(name, {}).get(key)
    ]
    text = "`python -m tests.cuda.launches` writes the table anew; the commit says why:\n"
    assert not changes, text + "\n".join(changes)
    assert {(row["waits"], row["replay_waits"]) for row in rows.values()} == {(0, 0)}


@pytest.mark.rare
def test_training_goes_on_with_one_notice_where_a_capture_does_not_fit_or_is_not_allowed(null_gpu):
    found = run(null_gpu, "memory")
    for outcome in found.values():
        assert "error" not in outcome, outcome["error"]
    small, waits = found["graphs_that_do_not_fit"], found["waits_inside_a_capture"]
    assert small["notices"] == ["CUDA graphs do not fit into the memory at 32x32: this phase continues without them."]
    assert (small["smaller"], small["replays"]) == (16, 1)  # the size to try; the next phase is captured again
    (notice,) = waits["notices"]
    assert notice.startswith("Training continues without CUDA graphs: ")
    assert (waits["same_stream"], waits["grown_bytes"]) == (True, 0)  # memory that steps give back is used again
