"""`pggan bench scaling`: figures that follow from the times, and a trace of a step of two ranks."""

import json
from contextlib import redirect_stdout
from io import StringIO

import pytest
from rich.console import Console

from pggan.cli.main import main
from pggan.performance import bench_scaling
from pggan.performance.bench_scaling import PARTS, rows_of, scaling_table
from tests.processes import in_processes, values_of

MEETING = ["distributed.rdzv_endpoint=node0:29500"]
TINY = ["stages=[8]", "batch=4", "steps=1", "model.fmap_base=64", "model.fmap_max=8", "json=true"]


def test_figures_follow_from_the_times():
    parts = {"compute": 0.5, "communication": 0.25, "idle": 0.125, "data": 0.125}
    seconds = {1: (3.0, 0.5, 0.5), 2: (0.6, 9.0, 0.8)}
    one, two = rows_of(8, 4, {size: [(whole, parts) for whole in found] for size, found in seconds.items()})
    assert one["images_per_second"] == 4 / 0.5
    assert two["images_per_second"] == 2 * 4 / 0.8
    assert (one["speedup"], two["speedup"]) == (1.0, 10 / 8)
    assert two["efficiency"] == 10 / 8 / 2
    assert two["milliseconds"] == {"compute": 500, "communication": 250, "idle": 125, "data": 125}


def test_one_rank_is_measured_in_place(capsys):
    assert main(["bench", "scaling", "processes=[1]", "devices=cpu", *TINY]) == 0
    (row,) = json.loads(capsys.readouterr().out)["stages"]
    assert row["ranks"] == row["speedup"] == 1
    assert set(row["milliseconds"]) == set(PARTS)
    assert sum(row["milliseconds"].values()) > 0


def printed(arguments):
    """What a command prints."""
    with redirect_stdout(StringIO()) as out:
        assert main(arguments) == 0
    return out.getvalue()


@pytest.mark.slow
def test_two_ranks_are_compared_with_one_and_leave_a_trace(tmp_path):
    arguments = ["bench", "scaling", "processes=[1,2]", "devices=cpu", f"trace={tmp_path / 'traces'}", *TINY]
    rows = json.loads(values_of(in_processes(2, printed, arguments))[0])["stages"]
    assert [row["ranks"] for row in rows] == [1, 2]
    assert all(row["milliseconds"]["communication"] > 0 for row in rows)
    for rank in (0, 1):
        trace = json.loads((tmp_path / "traces" / f"8x8-rank{rank}.json").read_text())
        names = {event.get("name") for event in trace["traceEvents"]}
        assert {"data", "begin all-reduce", "wait for the other ranks", "wait for gradients"} <= names
        assert any("gloo" in str(name) for name in names)


def test_as_many_ranks_are_started_as_the_largest_number_asked_for(monkeypatch):
    started = []
    monkeypatch.setattr(bench_scaling, "launch", lambda *arguments, **_: started.append(arguments) or 7)
    assert main(["bench", "scaling", "processes=[1,4]", "devices=cpu", "distributed.nnodes=2", *MEETING, *TINY]) == 7
    ((name, values, count),) = started
    assert (name, values["devices"], count) == ("bench scaling", "cpu", 2)  # on each of two machines


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("processes=[]", "numbers of ranks"),
        ("stages=[12]", "powers of two"),
        ("stages=[]", "for example [4,8,16]"),
        ("gradients.name=sparse", "fp32"),
        ("devices=tpu", "Did you mean 'cpu'"),
        ("batch=6", "does not divide"),
        ("batch=2", "which 2 ranks can't share"),
        ("loss.gama=1", "There is no key"),
    ],
)
def test_mistakes_are_refused(override, remedy, capsys, monkeypatch):
    monkeypatch.setattr(bench_scaling, "launch", None)  # nothing is started
    assert main(["bench", "scaling", override]) == 2
    assert remedy in capsys.readouterr().err


def test_the_table_fits_into_80_columns(capsys):
    parts = {"compute": 98.765, "communication": 12.345, "idle": 1.234, "data": 0.456}
    rows = rows_of(1024, 16, {1: [(34.5678, parts)], 16: [(123.456, parts)]})
    Console(width=80).print(scaling_table(rows))
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    for name in ("ranks", "all-reduce", "98,765", "123,456"):
        assert name in shown
