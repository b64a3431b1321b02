"""Imports go one way, and what must stay light or ignorant does."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "pggan"

# Lower layers first; a module imports only from layers below its own.
LAYERS = [
    {
        "errors",
        "architecture",
        "draws",
        "activation",
        "meter",
        "sparse",
        "plan.links",
        "plan.power",
        "__init__",
        "bench",
        "plan",
        "distributed",
        "distributed.connecting",
        "distributed.contact",
    },
    {"hydra_changes", "schedule", "schema", "files", "latents", "interruption", "columns", "winograd", "plan.scaling"},
    {"distributed.world", "distributed.division", "distributed.compression"},
    {"convolution", "values", "averages", "distributed.watchdog"},
    {"compute", "run_lock"},
    {"networks", "losses.base"},
    {"losses.wgan_gp", "losses.logistic", "losses.relativistic"},
    {"losses"},
    {"config.data", "config.compute", "config.method", "config.verbs", "config.workers"},
    {"config.gradients"},
    {"config.train", "config.bench"},
    {"config.scaling", "config.plan"},
    {"config", "pictures", "data", "data.index", "data.parallel", "data.levels"},
    {"device", "state", "run_dir", "pace", "data.pyramid", "data.arrays", "data.faces", "board", "distributed.meeting"},
    {"distributed.exchange", "distributed.agent"},
    {"distributed.shards", "distributed.compressed", "distributed.memory"},
    {"distributed.gradients"},
    {"data.images", "data.writer", "data.loader", "data.floats", "step", "checkpoint", "report"},
    {"distributed.sharing"},
    {"data.entries", "data.shards", "data.avatars", "reals", "rendering", "saving", "resuming", "preflight", "stepper"},
    {"rollback", "textbook", "cost", "plan.counting", "data.archives"},
    {"data.sources", "bench.ways", "bench.rates", "plan.phases"},
    {"data.named", "data.labels", "data.doctor", "data.records", "bench.data", "bench.steps"},
    {"data.planning"},
    {"data.build"},
    {"data.prepare"},
    {"fitting", "data.open", "sample", "interpolate", "inspect", "bench.command", "distributed.part"},
    {"plan.updates", "plan.starting"},
    {"plan.calibration"},
    {"plan.rest", "plan.tables"},
    {"loop", "bench.scaling", "plan.command"},
    {"run"},
    {"launch"},
    {"cli"},
    {"__main__", "distributed.worker"},
]
LAYER_OF = {name: number for number, layer in enumerate(LAYERS) for name in layer}


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return name.removesuffix(".__init__")


def imports_of(path: Path) -> set[str]:
    """The pggan modules that a file imports, at the top or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pggan":
            below = node.module.removeprefix("pggan").removeprefix(".")
            for alias in node.names:
                inner = f"{below}.{alias.name}".removeprefix(".")
                found.add(inner if inner in LAYER_OF else below or "__init__")
    return found


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py")}


def test_every_module_has_its_layer():
    assert set(MODULES) == set(LAYER_OF)


def test_imports_point_to_lower_layers_only():
    for name, path in MODULES.items():
        for imported in imports_of(path):
            assert LAYER_OF[imported] < LAYER_OF[name], f"{name} imports {imported}"


def test_nothing_but_the_command_line_launches_a_run():
    importers = [name for name, path in MODULES.items() if imports_of(path) & {"loop", "run", "launch"}]
    assert sorted(importers) == ["launch", "run"]


def test_few_files_know_of_several_processes():
    knowing = [name for name, path in MODULES.items() if "distributed.world" in imports_of(path)]
    assert sorted(name for name in knowing if not name.startswith("distributed.")) == [
        "averages",
        "bench.scaling",
        "device",
        "launch",
        "loop",
        "plan.calibration",
        "plan.command",
        "plan.starting",
        "plan.updates",
        "report",
        "rollback",
        "run",
    ]


def test_the_step_knows_no_files_and_no_configuration():
    assert imports_of(MODULES["step"]) == {
        "compute",
        "distributed.exchange",
        "draws",
        "losses.base",
        "networks",
        "schedule",
        "state",
    }
    assert imports_of(MODULES["networks"]) == {"activation", "architecture", "compute", "convolution", "draws"}


def test_the_configuration_is_importable_without_torch():
    configuration = [name for name in MODULES if name.split(".")[0] == "config"]
    for name in ("errors", "architecture", "schedule", "schema", "values", *configuration, "losses", "cli"):
        tree = ast.parse(MODULES[name].read_text())
        top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not any("torch" in ast.unparse(node) for node in top), name


def test_each_idea_is_defined_once():
    source = "\n".join(path.read_text() for path in MODULES.values())
    for definition in ("def fade(", "def minibatch_stddev(", "class GradientPenalty", "def pixel_norm("):
        assert source.count(definition) == 1, definition


def test_nothing_is_unpickled():
    for name, path in MODULES.items():
        source = path.read_text()
        for forbidden in ("torch.load", "pickle", "_target_", "instantiate", "eval(", "exec("):
            assert forbidden not in source, f"{name}: {forbidden}"
