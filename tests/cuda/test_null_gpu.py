"""The null GPU counts what programs ask of it, refuses what captures forbid, and is as large as it is told."""

import os
from pathlib import Path

import pytest

from tests.cuda.null_gpu.build import ENTRY_POINT, ROOT, environment

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cuda")]


@pytest.fixture(scope="module")
def found(program):
    return program("checks")


def test_work_of_every_kind_is_counted(found):
    counts = found["launches"]
    assert counts["triton kernel"] == counts["copy on the device"] == 1
    assert counts["kernel"] + counts.get("memset", 0) == 2  # before PyTorch 2.15, zeros are written by a kernel, too
    assert counts["product"] == 2  # a convolution and a product of matrices
    assert counts["wait: pageable copy to the host"] == 1


def test_convolutions_have_the_shapes_and_layouts_that_they_would_have(found):
    assert found["shapes"] == [
        [[2, 6, 8, 8], True],
        [[2, 6, 32, 32], True],
        [[2, 4, 16, 16], True],
        [[6, 4, 4, 4], True],
        [[4, 6, 4, 4], True],
    ]


def test_what_a_capture_records_becomes_nodes_of_its_graph(found):
    assert found["nodes"] == 4


@pytest.mark.parametrize("action", ["nothing", "fork and join", "afterwards"])
def test_captures_take_what_is_allowed(found, action):
    assert found["refusals"][action] == ""


@pytest.mark.parametrize("action", ["item", "pageable copy", "synchronize", "event from outside", "fork"])
def test_captures_refuse_what_is_not(found, action):
    assert "CUDA" in found["refusals"][action]


def test_memory_runs_out_and_comes_back(found):
    assert found["memory"] == {"free": 2**29, "error": "OutOfMemoryError", "free again": 2**30}


def test_a_wait_is_attributed_to_the_line_of_the_package_that_caused_it(found):
    assert found["places"] == ["elsewhere", "pggan/core/devices.py:synchronize"]


def test_workers_of_torch_compile_find_the_null_gpu_although_other_packages_install_a_module_tests(monkeypatch):
    from torch._inductor.utils import python_subprocess_env

    for name, value in environment(Path("library")).items():
        monkeypatch.setenv(name, value)
    assert python_subprocess_env()["PYTHONPATH"].split(os.pathsep)[:2] == [str(ROOT), str(ENTRY_POINT)]
