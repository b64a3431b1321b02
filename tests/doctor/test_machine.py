"""What is installed, compared with what this program requires."""

import pytest
import torch
from packaging.requirements import Requirement

from pggan.performance.doctor import machine
from pggan.performance.doctor.finding import Verdict

CPU = torch.device("cpu")


@pytest.fixture
def required(monkeypatch):
    """Let the program require these."""

    def install(*texts):
        monkeypatch.setattr(machine, "own_requirements", lambda: [Requirement(text) for text in texts])

    return install


def test_an_installation_without_a_checkout_knows_what_it_requires(monkeypatch, tmp_path):
    in_checkout = machine.own_requirements()
    assert {"torch", "numpy"} <= {one.name for one in in_checkout if one.marker is None}
    texts = [str(one) for one in in_checkout]
    monkeypatch.setattr(machine, "requires", lambda name: {"pggan": texts}[name])
    monkeypatch.setattr(machine, "PACKAGE", tmp_path / "site-packages" / "pggan")
    assert list(map(str, machine.own_requirements())) == texts


def test_a_library_that_is_missing_or_too_old_is_named_with_the_command_that_installs_it(required):
    required("numpy>=1.0", "pillow>=1000", "not-there>=2", 'never>=1; extra == "more"')
    found = machine.libraries(CPU)
    assert found.verdict is Verdict.broken
    assert "not-there missing" in found.found
    assert "numpy" not in found.found
    assert found.remedy == 'pip install "pillow>=1000" "not-there>=2"'


def test_an_extra_is_there_when_all_its_parts_are(required):
    required('numpy>=1.0; extra == "one"', 'numpy>=1.0; extra == "two"', 'not-there; extra == "two"')
    found = machine.extras(CPU)
    assert (found.found, found.verdict) == ("one; not two", Verdict.none)
    assert found.remedy == 'pip install "pggan[two]"'


def test_a_torchvision_of_another_pytorch_is_reported(monkeypatch):
    wanted = [Requirement("torch==1.0")]
    monkeypatch.setattr(machine, "_requirements", lambda name: wanted)
    assert machine.pytorch(CPU).verdict is Verdict.limited
    wanted.clear()
    assert machine.pytorch(CPU).verdict is Verdict.ok


@pytest.mark.parametrize("check", [machine.memory, machine.disk])
def test_little_space_is_reported(monkeypatch, check):
    for name in ("ENOUGH_MEMORY", "ENOUGH_DISK"):
        monkeypatch.setattr(machine, name, 2**60)
    found = check(CPU)
    assert found.verdict is Verdict.limited
    assert found.remedy


def test_a_compiler_that_is_missing_is_no_reason_not_to_train(monkeypatch):
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    assert machine.compiler(CPU).verdict is Verdict.none
