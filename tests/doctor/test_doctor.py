"""`pggan doctor` looks at the machine, and says what is missing without failing itself."""

from math import ceil

from pggan.cli.main import main
from pggan.performance.doctor import CHECKS


def test_one_screen_has_a_line_for_every_check(capsys):
    assert main(["doctor", "device=cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(ceil(len(line) / 80) for line in lines) <= 24
    for what, *_ in CHECKS:
        assert any(line.startswith(f"{what} ") for line in lines), what
    assert any(line.startswith("training   ok ") for line in lines)
    assert lines[-2] == "Training can run on cpu."
    assert lines[-1].startswith("Next: pggan train ")


def test_a_check_that_fails_is_a_line_with_the_reason_and_the_remedy(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").write_text("a file")  # run directories would be in a folder of this name
    assert main(["doctor", "device=cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("disk "))
    assert lines[at].startswith("disk       limited  NotADirectoryError: ")
    assert lines[at + 1].strip() == "Set run_dir= to a directory on a disk with more space."
