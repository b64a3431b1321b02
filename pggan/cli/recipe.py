"""With `hours=`, choose values for the keys that the user has not set, and save these values in a run's recipe.yaml."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from pggan.cli.commands import Command
from pggan.cli.compose import compose, named_file, read_recipe, resumes
from pggan.core.atomic_io import atomic_write
from pggan.core.errors import UserError
from pggan.core.text import as_hydra_reads_it, key_of

if TYPE_CHECKING:
    from pggan.performance.recipe import Choice

RECIPE_FILE = "recipe.yaml"
OF_ONE_RUN = {"run_dir", "resume", "hours"}  # these keys make sense for one run only, so recipes never have them
OF_THE_MACHINE = {"devices", "threads"}  # a recipe has these keys only if experiment=FILE.yaml sets them
RECIPES = ("experiment", "debug")  # config groups whose files set keys of other config groups
GROUPS = (*RECIPES, "data", "model", "schedule", "loss", "augmentation", "gradients")
NAMED_GROUPS = ("loss", "augmentation")  # with loss=NAME, the program still chooses the keys loss.KEY
LENGTHS = {f"schedule.{key}_images" for key in ("stable", "fade", "lr_decay", "total")}
TOTAL = "schedule.total_images"


def with_choices(command: Command, values: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """The values of the command: `values`, or with hours= the composition of `overrides` and a chosen recipe.

    A run with a checkpoint keeps its recipe; a run without a checkpoint gets a new recipe.
    """
    if values.get("hours") is None or resumes(overrides):  # a resumed run keeps its configuration
        return values
    if command.name != "train":
        if values.get("device") is not None:
            problem = f"device={values['device']} is a GPU of another machine; hours= fits a run to this machine."
            raise UserError(problem, "Leave out one of them.")
        choices, _ = choose(command, values, overrides)
        return compose(command.name, [*overrides, *map(override_of, choices)])
    from pggan.checkpoints.read import checkpoints_of
    from pggan.config.train import TrainConfig
    from pggan.config.validation import validated
    from pggan.run.run_dir import choose_run_dir, lock_run_dir

    if values["resume"] not in ("auto", "never"):
        raise UserError("hours= is for a new run, but resume= continues a run.", "Leave out one of them.")
    config = validated(TrainConfig, values)
    run_dir = choose_run_dir(config.run_dir, config.name)
    file = run_dir / RECIPE_FILE
    if checkpoints_of(run_dir) and not file.exists():
        problem = f"hours= chooses the recipe of a new run, but the run in {run_dir} was started without hours=."
        raise UserError(problem, "Choose another run_dir=, or leave out hours=.")
    with lock_run_dir(run_dir):
        if not checkpoints_of(run_dir):  # overwrite a recipe.yaml left by a command that wrote no checkpoint
            choices, about = choose(command, values, overrides)
            write(file, recipe_of(overrides, values, choices), about)
    typed = [one for one in overrides if key_of(one) not in RECIPES]
    return compose(command.name, [f"experiment={file}", *typed]) | {"run_dir": str(run_dir)}


def choose(command: Command, values: dict[str, Any], overrides: list[str]) -> tuple[list["Choice"], list[str]]:
    """Choose and print config keys for a run of values["hours"] hours; returns choices and comments for recipe.yaml."""
    from dataclasses import fields

    from rich.console import Console
    from rich.table import Table

    from pggan.config.train import TrainConfig
    from pggan.config.validation import validated

    known = {*GROUPS, *(field.name for field in fields(TrainConfig))}  # keys that only `pggan plan` has are left out
    keys = [one for one in overrides if key_of(one).split(".")[0] in known]
    if any(key_of(one) == TOTAL for one in keys) and values["schedule"]["total_images"] is not None:
        raise UserError(f"hours= and {TOTAL}= both say when training ends.", "Leave out one of them.")
    given, scales = given_keys(keys, values)

    def composed(choices: list["Choice"]) -> TrainConfig:
        return validated(TrainConfig, compose("train", [*keys, *map(override_of, choices)]))

    config, console = composed([]), Console(stderr=True, highlight=False)
    from pggan.performance.hours import find_recipe  # imported late, because it imports torch

    with console.status("Choosing a recipe") as status:
        choices, about = find_recipe(config, given, composed, status.update, scales=scales)
    table = Table("", "", box=None, title=f"For {about}:", title_justify="left", title_style="", show_header=False)
    for one in choices:
        table.add_row(override_of(one), one.reason)
    console.print(table)
    title = f"Chosen for {about}. The command was: {shlex.join(['pggan', command.name, *overrides])}"
    return choices, [*wrap(title, 118), *(f"{override_of(one)}: {one.reason}" for one in choices)]


def override_of(choice: "Choice") -> str:
    """The override key=value of a choice, as on the command line."""
    return f"{choice.key}={as_hydra_reads_it(choice.value)}"


def given_keys(overrides: Sequence[str], values: dict[str, Any]) -> tuple[set[str], bool]:
    """The keys whose values hours= must not choose, and whether hours= scales the phase lengths of a recipe.

    If the user names no recipe, hours= must keep the keys of `overrides`.  If the user names a recipe by experiment= or
    debug=, hours= may choose only data.channels and the phase lengths (LENGTHS), unless the user typed them.
    """
    names = {two_parts(key_of(one)) for one in overrides}
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    every = {f"{table}.{key}" for table, keys in tables.items() for key in keys}
    of_groups = {key for key in every if key.partition(".")[0] in names - {*NAMED_GROUPS}}
    # If the user types a key such as loss.gamma, the loss is fixed, too, because other losses may not have this key.
    typed = names | of_groups | {name.partition(".")[0] for name in names}
    if not names & {*RECIPES}:
        return typed, False
    scales = "schedule.stable_images" not in typed
    free = {"data.channels", *(LENGTHS if scales else {TOTAL})} - typed
    return (every | tables.keys()) - free, scales


def two_parts(key: str) -> str:
    """Cut a key after its second part: 'schedule.batch.8' becomes 'schedule.batch'."""
    return ".".join(key.split(".")[:2])


def recipe_of(overrides: Sequence[str], values: dict[str, Any], choices: Sequence["Choice"]) -> dict[str, Any]:
    """The recipe of the user's `overrides` and the program's `choices`: values by full key, and choices by group.

    The keys of a recipe file (experiment=FILE.yaml) are copied, so the new recipe does not need that file.
    Args: values: the composed values, in which the values of `overrides` are numbers, lists and so on instead of text.
    """
    found: dict[str, Any] = {}
    for file in filter(None, map(named_file, overrides)):
        found |= read_recipe(file)
    for one in overrides:
        key = two_parts(key_of(one))
        section, _, name = key.rpartition(".")
        if key in GROUPS and named_file(one) is None:
            found[key] = one.partition("=")[2]
        elif key not in GROUPS and key not in OF_THE_MACHINE:
            found[key] = (values[section] if section else values)[name]
    found |= {choice.key: choice.value for choice in choices}
    return {key: value for key, value in found.items() if key not in OF_ONE_RUN}


def write(file: Path, recipe: dict[str, Any], about: Sequence[str] = ()) -> None:
    """Write `recipe` as an experiment file, with the lines `about` as comments."""
    import yaml

    groups = {f"override /{key}": recipe[key] for key in recipe if key in GROUPS[1:]}
    base = [recipe["experiment"]] if "experiment" in recipe else []
    content: dict[str, Any] = {"defaults": [*base, *({key: name} for key, name in groups.items())]}
    for key, value in recipe.items():
        section, _, name = key.rpartition(".")
        if key not in GROUPS:
            (content.setdefault(section, {}) if section else content)[name] = value
    lines = ["# @package _global_", *(f"# {line}" for line in about), yaml.safe_dump(content, sort_keys=False)]
    with atomic_write(file) as temporary:
        temporary.write_text("\n".join(lines))
