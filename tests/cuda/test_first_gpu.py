"""The kit for the first GPU runs to its end: what it measures here means nothing, but every part has measured it."""

import pytest

from benchmarks.first_gpu.parts import PARTS

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cuda")]


@pytest.fixture(scope="module")
def found(program, tmp_path_factory):
    return program("first_gpu", str(tmp_path_factory.mktemp("first_gpu")))


def test_every_part_is_there_and_no_item_has_failed(found):
    assert found["complete"]
    assert list(found["parts"]) == [part.name for part in PARTS]
    for name, part in found["parts"].items():
        failed = {item: figures["traceback"] for item, figures in part["items"].items() if "failed" in figures}
        assert part["items"], name
        assert not failed, name


def test_captured_steps_are_as_expected_because_bits_are_the_same_however_little_is_calculated(found):
    assert [found["parts"][part]["verdict"] for part in ("capture", "resume")] == ["as expected"] * 2
