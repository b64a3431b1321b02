"""`pggan doctor` looks at the machine, and says what is missing without failing itself."""

import json
from math import ceil

import pytest
import torch

from pggan.cli.main import main
from pggan.core.architecture import Precision
from pggan.core.errors import EXIT_FAILED
from pggan.performance import doctor
from pggan.performance.doctor import Finding, Verdict

CPU = torch.device("cpu")


def test_one_screen_has_a_line_for_every_check(capsys):
    assert main(["doctor", "device=cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(ceil(len(line) / 80) for line in lines) <= 24
    for name in doctor.checks(CPU):
        assert any(line.startswith(f"{name} ") for line in lines), name
    assert lines[-2] == "Training can run on cpu."
    assert lines[-1].startswith("Next: pggan train ")


def test_the_same_as_json(capsys):
    assert main(["doctor", "device=cpu", "json=true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["can_train"], found["device"]) == (True, "cpu")
    assert {row["check"]: row["verdict"] for row in found["checks"]}["training"] == "ok"


@pytest.mark.parametrize(("name", "code", "last"), [("disk", 0, "Next: "), ("training", EXIT_FAILED, "Training can't")])
def test_a_check_that_fails_is_a_line_with_the_reason(capsys, monkeypatch, name, code, last):
    def fails(device):
        raise OSError("no such thing\nsecond line")

    monkeypatch.setattr(doctor, "checks", lambda device: {name: fails})
    assert main(["doctor", "device=cpu"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(maxsplit=2)[2] == "OSError: no such thing"
    assert lines[-1].startswith(last)


def test_a_precision_whose_products_are_wrong_is_no_use(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: torch.mm(a, b) * (1 if a.dtype == torch.double else 2))
    assert doctor.products(Precision.fp32, CPU).verdict is Verdict.broken
    assert doctor.products(Precision.bf16, CPU).verdict is Verdict.limited


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda name: "0.0.1")
    finding = doctor.libraries(CPU)
    assert finding.verdict is Verdict.broken
    assert finding.remedy.startswith('pip install "')
    assert isinstance(doctor.extras(CPU), Finding)
