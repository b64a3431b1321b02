"""The null GPU, built once: one worker of pytest-xdist takes all its tests."""

from pathlib import Path

import pytest

from tests.cuda.null_gpu.build import build, missing


@pytest.fixture(scope="session")
def null_gpu(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of the null GPU; skips where it can't be built."""
    if reason := missing():
        pytest.skip(f"the null GPU needs {reason}")
    kept = getattr(pytestconfig, "cache", None)  # None if pytest runs without its cache
    return build(tmp_path_factory.mktemp("null_gpu") if kept is None else kept.mkdir("null_gpu"))
