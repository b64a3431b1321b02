"""`pggan doctor` looks at the machine, and says what is missing without failing itself."""

from math import ceil

import torch

from pggan.cli.main import main
from pggan.performance.doctor import CHECKS, Check


def test_one_screen_has_a_line_for_every_check(capsys):
    assert main(["doctor", "device=cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(ceil(len(line) / 80) for line in lines) <= 24
    for check in CHECKS:
        assert any(line.startswith(f"{check.what} ") for line in lines), check.what
    assert any(line.startswith("training   ok ") for line in lines)
    assert lines[-2] == "Training can run on cpu."
    assert lines[-1].startswith("Next: pggan train ")


def test_a_check_that_fails_is_a_row_with_the_reason_and_the_remedy():
    def fails(device):
        raise OSError("no such thing\nsecond line")

    row = Check("disk", fails, "Buy one.", needed=True).row(torch.device("cpu"))
    assert row == {"check": "disk", "verdict": "broken", "found": "OSError: no such thing", "remedy": "Buy one."}
