"""`pggan doctor` looks at the machine, and says what is missing without failing itself."""

import json
from math import ceil

import torch
from packaging.requirements import Requirement

from pggan.cli.main import main
from pggan.performance.doctor import Finding, Verdict, checks, fits, looked

CPU = torch.device("cpu")


def test_one_screen_has_a_line_for_every_check(capsys):
    assert main(["doctor", "device=cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(ceil(len(line) / 80) for line in lines) <= 24
    for name in checks(CPU):
        assert any(line.startswith(f"{name} ") for line in lines), name
    assert lines[-2] == "Training can run on cpu."
    assert lines[-1].startswith("Next: pggan train ")


def test_the_same_as_json(capsys):
    assert main(["doctor", "device=cpu", "json=true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["can_train"], found["device"]) == (True, "cpu")
    assert {row["check"]: row["verdict"] for row in found["checks"]}["training"] == "ok"


def test_a_check_that_fails_is_a_finding_with_the_reason():
    def fails(device):
        raise OSError("no such thing\nsecond line")

    assert looked(fails, CPU, Verdict.broken) == Finding("OSError: no such thing", Verdict.broken)


def test_libraries_have_to_be_there_in_versions_that_fit():
    assert fits(Requirement("torch>=2"))
    assert not fits(Requirement("torch<1"))
    assert not fits(Requirement("no-such-library"))
