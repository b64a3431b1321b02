"""The kit for the first GPU runs to its end: what it measures here means nothing, but every part has measured it.

Parts that do the same on a CPU are in tests/benchmarks/test_first_gpu.py.
"""

import pytest

from benchmarks.first_gpu.parts import PARTS

NAMES = [part.name for part in PARTS if part.cuda_only or part.name in ("stages", "kernels")]

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cuda")]


@pytest.fixture(scope="module")
def found(program, tmp_path_factory):
    return program("first_gpu", str(tmp_path_factory.mktemp("first_gpu")), ",".join(NAMES))


def test_every_part_is_there_and_no_item_has_failed(found):
    assert found["complete"]
    assert list(found["parts"]) == NAMES
    for name, part in found["parts"].items():
        failed = {item: figures["traceback"] for item, figures in part["items"].items() if "failed" in figures}
        assert part["items"], name
        assert not failed, name


def test_captured_steps_are_as_expected_because_bits_are_the_same_however_little_is_calculated(found):
    assert found["parts"]["capture"]["verdict"] == "as expected"
