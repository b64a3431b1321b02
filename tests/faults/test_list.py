"""The list of faults in docs/reliability.md says what there is."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "reliability.md").read_text()
ROWS = {int(row[0]): row[1] for row in re.findall(r"^\| (\d+) \| .* \| (.*) \|$", DOCUMENT, re.MULTILINE)}


def injected() -> dict[int, set[str]]:
    """Which faults the tests inject, by number, with the files that do."""
    found: dict[int, set[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for number in re.findall(r"^@pytest\.mark\.fault\((\d+)\)$", path.read_text(), re.MULTILINE):
            found.setdefault(int(number), set()).add(path.name)
    return found


def test_the_list_has_all_forty():
    assert sorted(ROWS) == list(range(1, 41))


def test_each_fault_is_injected_where_the_list_says_so():
    for number, files in injected().items():
        assert {name for name in re.findall(r"`(test_\w+\.py)`", ROWS[number])} == files, number
    assert sorted(injected()) == sorted(ROWS)


def test_the_commands_of_the_promises_find_their_tests():
    for path in re.findall(r"(tests/[\w/]+\.py)", DOCUMENT):
        assert (ROOT / path).is_file()
