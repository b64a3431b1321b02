"""What the heads of the recipes say about time and memory."""

import re

import pytest

from benchmarks.recipes import Stated, compare
from pggan.cli.commands import CONFIGS, choices_of


@pytest.mark.parametrize("recipe", choices_of("experiment"))
def test_every_head_says_the_time_and_the_memory_or_whose_it_has(recipe):
    text = (CONFIGS / "experiment" / f"{recipe}.yaml").read_text()
    head = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
    has_figures = re.search(r"\b(hours?|minutes|seconds)\b", head) and re.search(r"\d [GM]iB\b", head)
    assert ("Predicted" in head) == (Stated.of(recipe) is not None), "it would not be compared"
    base = re.search(r"^defaults:\n  - (\w+)$", text, re.MULTILINE)
    assert has_figures or (base is not None and base[1] in head)


def test_a_head_is_compared_in_as_many_digits_as_it_has():
    stated = Stated.of("celebahq_1024_4gpus")
    assert stated == ("h200", 4, "2.0", "hours", "3.5", "GiB")
    runs = [
        {"scaling": scaling, "devices": devices, "reduction": "fp32", "hours": hours}
        for scaling, devices, hours in (("strong", 1, 6.6), ("strong", 4, 1.94), ("weak", 4, 3.0))
    ]
    plan = {"scaling": {"runs": runs}, "total": {"peak_memory_bytes": 9 * 2**30}}
    part = {"total": {"peak_memory_bytes": 3.46 * 2**30}}
    assert stated.predicted(plan, part) == ("1.9", "3.5")
    assert Stated.of("demo") is None


@pytest.mark.slow
def test_a_head_is_what_is_planned():
    """The recipe that is counted the fastest; `python -m benchmarks.recipes` compares all."""
    ((line, same),) = compare(["cifar10_32"])
    assert same, line
