"""The subpackages, the direction of their imports, and what must stay light or ignorant."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pggan"
README = (ROOT / "README.md").read_text()

# The lowest first.  A subpackage imports only from itself and from those before it, and a folder in one is one, too.
SUBPACKAGES = [
    "core",
    "ops",
    "networks",
    "losses",
    "distributed",
    "optim",
    "config",
    "data",
    "training",
    "checkpoints",
    "sampling",
    "interop",
    "metrics",
    "run",
    "performance",
    "cli",
]
FOLDERS_ALONE: set[str] = set()  # hold nothing but subpackages
DOORS = ["__init__.py", "__main__.py"]
FILES = sorted(PACKAGE.rglob("*.py"))
SOURCES = {path: path.read_text() for path in FILES}
TREES = {path: ast.parse(source) for path, source in SOURCES.items()}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
CLASSES = [node for tree in TREES.values() for node in tree.body if isinstance(node, ast.ClassDef)]
DOCUMENTED = {  # the documented methods of each class
    node.name: {inner.name for inner in node.body if isinstance(inner, FUNCTIONS) and ast.get_docstring(inner)}
    for node in CLASSES
}
OF_TORCH = {"forward", "backward", "jvp", "setup_context"}


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


def test_nothing_but_the_entry_points_lies_outside_of_a_subpackage():
    assert sorted(path.name for path in PACKAGE.glob("*.py")) == DOORS
    assert {subpackage_of(path) for path in FILES} == {"", *FOLDERS_ALONE, *SUBPACKAGES}
    for folder in FOLDERS_ALONE:
        assert [path.name for path in (PACKAGE / folder).glob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_subpackage_imports_only_from_those_before_it(path):
    subpackage = subpackage_of(path)
    if not subpackage:
        return
    allowed = (
        set() if subpackage in FOLDERS_ALONE else {*FOLDERS_ALONE, *SUBPACKAGES[: SUBPACKAGES.index(subpackage) + 1]}
    )
    for imported in imported_files(path):
        assert subpackage_of(imported) in allowed, f"{subpackage} imports {imported.relative_to(PACKAGE)}"


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


@pytest.mark.parametrize("subpackage", [*SUBPACKAGES, *sorted(FOLDERS_ALONE)])
def test_every_subpackage_says_its_duty_in_one_sentence(subpackage):
    duty = ast.get_docstring(TREES[PACKAGE / subpackage / "__init__.py"]) or ""
    assert re.fullmatch(r"\S[^\n]+\.", duty.split("\n\n")[0].replace("\n", " ")), subpackage


def test_the_readme_lists_the_subpackages_in_the_order_of_their_imports():
    listed = re.findall(r"^\| `pggan/(\w+)/[\w{},/]*` \|", README, re.MULTILINE)
    assert listed == list(dict.fromkeys(subpackage.split("/")[0] for subpackage in SUBPACKAGES))


def test_the_wheel_has_every_subpackage():
    listed = re.search(r"^packages = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    assert listed is not None
    packages = {".".join(path.parent.relative_to(ROOT).parts) for path in FILES}
    assert set(re.findall(r'"([\w.]+)"', listed[1])) == packages | {"pggan.configs"}


def bases_of(node: ast.ClassDef) -> set[str]:
    """The names of the classes that a class inherits from, directly or not."""
    direct = {ast.unparse(base).split("[")[0] for base in node.bases}
    return direct.union(*(bases_of(other) for other in CLASSES if other.name in direct))


def public_objects(path: Path) -> list[tuple[str, ast.AST]]:
    """The module, its public classes and functions, and the public methods of these classes, with their names.

    Methods that a base class documents are left out: what it says holds.
    """
    found: list[tuple[str, ast.AST]] = [("module", TREES[path])]
    for node in TREES[path].body:
        if isinstance(node, (ast.ClassDef, *FUNCTIONS)) and not node.name.startswith("_"):
            found.append((node.name, node))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            bases = bases_of(node)
            inherited = set().union(*(DOCUMENTED.get(base, set()) for base in bases)) | (OF_TORCH if bases else set())
            methods = [inner for inner in node.body if isinstance(inner, FUNCTIONS)]
            found += [
                (f"{node.name}.{method.name}", method)
                for method in methods
                if not method.name.startswith("_") and method.name not in inherited
            ]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_every_public_object_has_a_docstring(path):
    missing = [name for name, node in public_objects(path) if not ast.get_docstring(node)]  # type: ignore[arg-type]
    assert not missing


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_docstring_begins_with_the_noun_or_the_verb(path):
    """Not with a pronoun that stands for it: "That of the heads" says nothing to a reader who begins there."""
    texts = {name: ast.get_docstring(node) or "" for name, node in public_objects(path)}  # type: ignore[arg-type]
    assert not {name: text for name, text in texts.items() if re.match(r"(What|That|Those|Of|As)\b", text)}


def test_only_a_run_and_its_command_open_a_run():
    importers = [path for path in FILES if PACKAGE / "run" / "compose.py" in imported_files(path)]
    assert [path.relative_to(PACKAGE).as_posix() for path in importers] == ["run/train.py"]


def test_the_step_and_the_networks_know_no_rank_no_files_and_no_configuration():
    for name in ("training/step.py", "training/inputs.py"):
        subpackages = {subpackage_of(imported) for imported in imported_files(PACKAGE / name)}
        allowed = {"core", "networks", "losses", "optim", "training"}
        assert subpackages <= allowed, name
        assert not re.search(r"\b(rank0|is_main|world_size)\b", SOURCES[PACKAGE / name])
    for path in (PACKAGE / "networks").glob("*.py"):
        assert {subpackage_of(imported) for imported in imported_files(path)} <= {"core", "ops", "networks"}


def test_the_configuration_is_importable_without_torch():
    light = [*(PACKAGE / "config").glob("*.py"), *(PACKAGE / "cli").glob("*.py")]

    names = ("errors", "architecture", "schedule", "text", "process", "atomic_io")
    for path in [*light, *(PACKAGE / "core" / f"{name}.py" for name in names)]:
        top = [node for node in TREES[path].body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not any("torch" in ast.unparse(node) for node in top), path


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


def test_each_idea_is_defined_once():
    source = "\n".join(SOURCES.values())
    for definition in (
        "def fade(",
        "def minibatch_stddev(",
        "class GradientPenalty",
        "def pixel_norm(",
        "def synchronize(",
        "def try_lock(",
        "def resolve_checkpoint(",
        "def available_cores(",
        "def free_memory(",
        "def free_bytes(",
        "def is_checkpoint(",
        "def to_float(",
        "def contact_sheet(",
        "def draw_batch(",
        "def draw_in_batches(",
        "def draw_seeds(",
        "class Flops",
    ):
        assert source.count(definition) == 1, definition
    # Whoever draws the faces of seeds 0, 1, 2 … does it by `draw_seeds`; metrics have seeds and classes of their own.
    drawing = {f"{subpackage_of(path)}/{path.name}" for path in FILES if "draw_in_batches(" in SOURCES[path]}
    assert drawing == {"sampling/generate.py", "metrics/images.py"}
    assert len(re.findall(r"(?:cuda|mps)\.synchronize\(", source)) <= 3  # core/devices.py, a capture


def test_nothing_is_unpickled():
    """Of files that other programs wrote with `torch.save`, tensors are read, by the reader that runs no code."""
    for path in FILES:
        source = SOURCES[path].replace('torch.load(path, map_location="cpu", weights_only=True)', "")
        pickle = () if subpackage_of(path) == "interop" else ("pickle",)
        for forbidden in ("torch.load", "_target_", "instantiate", "eval(", "exec(", *pickle):
            assert forbidden not in source, f"{path}: {forbidden}"


def test_one_parser_of_pickles_looks_up_names_in_a_list_of_its_own():
    users = {path.name: re.findall(r"(?<![\w.])pickle\.\w+", SOURCES[path]) for path in FILES}
    assert {name: found for name, found in users.items() if found} == {"restricted_pickle.py": ["pickle.Unpickler"]}
    importers = [path.name for path in FILES if re.search(r"^\s*(import|from) (pickle|dill)\b", SOURCES[path], re.M)]
    assert importers == ["restricted_pickle.py"]
    assert "def find_class(" in SOURCES[PACKAGE / "interop" / "restricted_pickle.py"]
