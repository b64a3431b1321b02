"""One check of the machine, and what it finds."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import torch


class Verdict(StrEnum):
    """The meaning of a finding for training."""

    ok = "ok"
    none = "none"  # this machine does not have it, and training does without
    limited = "limited"  # training runs, but the remedy makes it better
    broken = "broken"  # training can't run


class Finding(NamedTuple):
    """The result of a check."""

    found: str
    verdict: Verdict = Verdict.ok
    remedy: str = ""


@dataclass(frozen=True)
class Check:
    """Something that is looked at or tried; an exception counts as a finding."""

    name: str
    look: Callable[[torch.device], Finding]
    failed: Verdict = Verdict.limited  # the verdict when it raises
    remedy: str = ""  # … and what to do then

    def finding(self, device: torch.device) -> Finding:
        """The result of the check on `device`; never raises an Exception."""
        try:
            return self.look(device)
        except Exception as error:  # whatever fails is what this command is to report
            lines = str(error).strip().splitlines()
            return Finding(
                f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}", self.failed, self.remedy
            )
