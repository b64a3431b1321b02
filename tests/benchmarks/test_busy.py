"""Steps beside other processes."""

import json
import subprocess
import sys
from argparse import Namespace

import pytest

from benchmarks import busy


@pytest.mark.slow
def test_two_ranks_take_steps_together_and_wait_while_nobody_asks():
    stepper = busy.Stepper(Namespace(resolution=4, batch=8), None, threads=1, ranks=2)
    try:
        found = busy.times_of({busy.RANKS: [stepper]}, ["quiet", "busy"], rounds=1)
        assert [process.poll() for process in stepper.started] == [None, None], "no twin, and nobody has failed"
    finally:
        stepper.end()
    assert list(found) == ["quiet", "busy"]
    assert all(times[busy.RANKS][0] > 0 for times in found.values())


def test_the_share_of_ranks_is_one_of_their_own_speed():
    own = str(busy.OWN)
    rows = busy.rows_of({"quiet": {own: [0.1], busy.RANKS: [0.2]}, "busy": {own: [0.4], busy.RANKS: [0.5]}})
    assert rows == {
        own: {"quiet_milliseconds": 100.0, "busy_milliseconds": 400.0, "busy_share": 0.5},
        busy.RANKS: {"quiet_milliseconds": 200.0, "busy_milliseconds": 500.0, "busy_share": 0.8},
    }


def test_figures_are_medians_of_the_processes_of_a_setting():
    own = str(busy.OWN)
    rows = busy.rows_of({"quiet": {own: [0.1, 0.3, 0.2], "the trainer's": [0.4, 0.1, 0.1]}})
    assert rows == {
        own: {"quiet_milliseconds": 200.0, "quiet_milliseconds_of_processes": [100.0, 300.0, 200.0]},
        "the trainer's": {"quiet_milliseconds": 100.0, "quiet_milliseconds_of_processes": [400.0, 100.0, 100.0]},
    }


def test_runs_of_a_command_are_timed_beside_busy_processes(monkeypatch, capsys):
    command = [sys.executable, "-c", "import time; time.sleep(0.1)"]
    monkeypatch.setattr(sys, "argv", ["busy", "--rounds", "2", "--command", *command])
    busy.main()
    found = json.loads(capsys.readouterr().out)
    times = found["times"]["command"]
    assert found["command"] == command
    assert min(times["quiet_milliseconds"], times["busy_milliseconds"]) >= 100
    assert times["busy_share"] == pytest.approx(2 * times["quiet_milliseconds"] / times["busy_milliseconds"], abs=0.02)


def test_a_command_that_fails_is_not_timed():
    with pytest.raises(subprocess.CalledProcessError):
        busy.Command([sys.executable, "-c", "raise SystemExit(1)"]).seconds()
