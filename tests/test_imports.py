"""The direction of imports among the subpackages, and what must stay light, ignorant or safe."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pggan"
# The lowest first, as CONTRIBUTING lists them: a subpackage imports only from itself and from those before it.
SUBPACKAGES = re.findall(r"^\| `pggan/(\w+)/[\w{},/]*` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
FILES = sorted(PACKAGE.rglob("*.py"))
SOURCES = {path: path.read_text() for path in FILES}
TREES = {path: ast.parse(source) for path, source in SOURCES.items()}


def subpackage_of(path: Path) -> str:
    """The subpackage of a file; empty for __init__ and __main__ of the package."""
    return path.relative_to(PACKAGE).parent.as_posix().removeprefix(".")


@cache
def imported_files(path: Path) -> set[Path]:
    """The files of the package that a file imports, at the top or inside functions."""
    found = set()
    for node in ast.walk(TREES[path]):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for module in modules:
            if module.split(".")[0] == "pggan":
                place = ROOT / Path(*module.split("."))
                found |= {file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()}
    return found - {PACKAGE / "__init__.py"}


def test_the_readme_and_the_wheel_have_every_subpackage():
    assert {subpackage_of(path) for path in FILES} == {"", *SUBPACKAGES}
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert set(listed) == {"pggan", "pggan.configs", *(f"pggan.{name}" for name in SUBPACKAGES)}
    assert sorted(path.name for path in PACKAGE.glob("*.py")) == ["__init__.py", "__main__.py"]


def test_a_subpackage_imports_only_from_those_before_it():
    for path in FILES:
        if subpackage := subpackage_of(path):
            allowed = SUBPACKAGES[: SUBPACKAGES.index(subpackage) + 1]
            wrong = [imported for imported in imported_files(path) if subpackage_of(imported) not in allowed]
            assert not wrong, f"{path.relative_to(ROOT)} imports {wrong[0].relative_to(ROOT)}"


def test_no_file_imports_itself_through_others():
    order: list[Path] = []
    visiting: list[Path] = []

    def visit(path: Path) -> None:
        assert path not in visiting, " -> ".join(str(p.relative_to(PACKAGE)) for p in [*visiting, path])
        if path not in order:
            visiting.append(path)
            for imported in sorted(imported_files(path) - {path}):
                visit(imported)
            visiting.pop()
            order.append(path)

    for path in FILES:
        visit(path)


def test_the_step_and_the_networks_know_no_rank_no_files_and_no_configuration():
    for name in ("training/step.py", "training/inputs.py"):
        subpackages = {subpackage_of(imported) for imported in imported_files(PACKAGE / name)}
        assert subpackages <= {"core", "networks", "losses", "optim", "training"}, name
        assert not re.search(r"\b(rank0|is_main|world_size)\b", SOURCES[PACKAGE / name])
    for path in (PACKAGE / "networks").glob("*.py"):
        assert {subpackage_of(imported) for imported in imported_files(path)} <= {"core", "ops", "networks"}


@pytest.mark.slow
def test_a_run_and_its_steps_import_neither_torchvision_nor_the_compiler():
    """They would take seconds of every start."""
    program = """
import sys, torch, pggan.data.prepare, pggan.run.train
from pggan.optim.updates import Adam
weight = torch.ones(3, requires_grad=True)
optimizer = Adam([weight])
weight.grad = torch.ones(3)
optimizer.step(0.1)
sys.exit(", ".join({"torchvision", "torch._dynamo"} & sys.modules.keys()) or 0)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_is_unpickled_but_by_one_parser_that_looks_up_names_in_a_list_of_its_own():
    """Of files that other programs wrote with `torch.save`, tensors are read, by the reader that runs no code."""
    for path in FILES:
        source = SOURCES[path].replace('torch.load(path, map_location="cpu", weights_only=True)', "")
        parser = path == PACKAGE / "interop" / "restricted_pickle.py"
        named = {"pickle.Unpickler", "pickle.UnpicklingError"} if parser else set()
        assert set(re.findall(r"(?<![\w.])pickle\.\w+", source)) == named, path
        assert parser == bool(re.search(r"^\s*(import|from) (pickle|dill)\b", source, re.MULTILINE)), path
        assert not parser or "def find_class(" in source
        for forbidden in ("torch.load", "_target_", "instantiate", "eval(", "exec("):
            assert forbidden not in source, f"{path}: {forbidden}"
