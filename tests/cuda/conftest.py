"""The null GPU, built once, and the programs that run on it: one worker of pytest-xdist takes all their tests."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cuda.null_gpu.build import build, missing, started


@pytest.fixture(scope="session")
def null_gpu(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of the null GPU; skips where it can't be built."""
    if reason := missing():
        pytest.skip(reason)
    kept = getattr(pytestconfig, "cache", None)  # None if pytest runs without its cache
    return build(tmp_path_factory.mktemp("null_gpu") if kept is None else kept.mkdir("null_gpu"))


@pytest.fixture(scope="session")
def program(null_gpu: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """What a program of `programs/` prints as JSON: `program(name, *arguments)`."""
    folder = tmp_path_factory.mktemp("programs")
    errors = folder / "errors.txt"
    with errors.open("w") as file:
        server = started(null_gpu, "tests.cuda.programs", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file)

    def run(name: str, *arguments: str) -> Any:
        result = folder / f"{name}.json"
        server.stdin.write(json.dumps([name, arguments, str(result)]) + "\n")
        server.stdin.flush()
        code = server.stdout.readline().strip()
        said = result.read_text() if result.exists() else ""
        assert code == "0", f"{name} ended with {code}:\n{said[-2000:]}\n{errors.read_text()[-8000:]}"
        return json.loads(said)

    with server:
        yield run
