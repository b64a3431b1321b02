"""The null GPU, built once, and the programs that run on it, each once however many processes pytest has."""

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cuda.null_gpu.build import build, missing, run_module


@pytest.fixture(scope="session")
def null_gpu(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of the null GPU; skips where it can't be built."""
    if reason := missing():
        pytest.skip(reason)
    kept = getattr(pytestconfig, "cache", None)  # None if pytest runs without its cache
    return build(tmp_path_factory.mktemp("null_gpu") if kept is None else kept.mkdir("null_gpu"))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder of all workers of pytest-xdist."""
    folder = tmp_path_factory.getbasetemp()
    return folder if worker_id == "master" else folder.parent


@pytest.fixture(scope="session")
def program(null_gpu: Path, shared: Path) -> Callable[..., Any]:
    """What a program of `programs/` prints as JSON: `program(name, *arguments)`."""

    def run(name: str, *arguments: str) -> Any:
        result = shared / f"null_gpu_{name}.json"
        with (shared / f"null_gpu_{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not result.exists():
                result.write_text(run_module(null_gpu, f"tests.cuda.programs.{name}", *arguments))
        return json.loads(result.read_text())

    return run
