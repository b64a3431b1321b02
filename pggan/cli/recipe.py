"""`hours=`: the keys that are left to the program, chosen once and kept in recipe.yaml, an experiment file."""

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
OF_ONE_RUN = {"run_dir", "resume", "hours"}  # where it is, and how long it may take: a recipe says nothing about them
OF_THE_MACHINE = {"devices", "threads"}  # nor about these, unless a recipe does that was given
RECIPES = ("experiment", "debug")  # groups whose files have keys of all groups
GROUPS = (*RECIPES, "data", "model", "schedule", "loss", "augmentation", "gradients")
NAMED_GROUPS = ("loss", "augmentation")  # whose other keys stay free when one is chosen
LENGTHS = {f"schedule.{key}_images" for key in ("stable", "fade", "lr_decay", "total")}
TOTAL = "schedule.total_images"


def with_choices(command: Command, values: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """`values`, which `overrides` compose, or with hours= those that have the recipe for them.

    A run with a checkpoint keeps its recipe; one without is chosen a new one.
    """
    if values.get("hours") is None or resumes(overrides):  # as it was configured
        return values
    if command.name != "train":
        if values.get("device") is not None:
            problem = f"device={values['device']} is a card elsewhere; hours= chooses for the machine that it runs on."
            raise UserError(problem, "Leave out one of them.")
        choices, _ = choose(command, values, overrides)
        return compose(command.name, [*overrides, *map(override_of, choices)])
    from pggan.checkpoints.read import checkpoints_of
    from pggan.config.train import TrainConfig
    from pggan.config.validation import validated
    from pggan.run.run_dir import choose_run_dir, lock_run_dir

    if values["resume"] not in ("auto", "never"):
        raise UserError("hours= chooses the recipe of a new run; resume= continues one.", "Leave out one of them.")
    config = validated(TrainConfig, values)
    run_dir = choose_run_dir(config.run_dir, config.name)
    file = run_dir / RECIPE_FILE
    if checkpoints_of(run_dir) and not file.exists():
        problem = f"hours= chooses the recipe of a new run, and {run_dir} holds one that was given its recipe."
        raise UserError(problem, "Choose another run_dir=, or leave out hours=.")
    with lock_run_dir(run_dir):
        if not checkpoints_of(run_dir):  # a recipe without any is of a command that was refused, or stopped early
            choices, about = choose(command, values, overrides)
            write(file, recipe_of(overrides, values, choices), about)
    typed = [one for one in overrides if key_of(one) not in RECIPES]
    return compose(command.name, [f"experiment={file}", *typed]) | {"run_dir": str(run_dir)}


def choose(command: Command, values: dict[str, Any], overrides: list[str]) -> tuple[list["Choice"], list[str]]:
    """The keys that are chosen for the hours in `values`, which are shown, and the same in lines of text."""
    from dataclasses import fields

    from rich.console import Console
    from rich.table import Table

    from pggan.config.train import TrainConfig
    from pggan.config.validation import validated

    known = {*GROUPS, *(field.name for field in fields(TrainConfig))}  # `pggan plan` has more
    keys = [one for one in overrides if key_of(one).split(".")[0] in known]
    if any(key_of(one) == TOTAL for one in keys) and values["schedule"]["total_images"] is not None:
        raise UserError(f"hours= and {TOTAL}= both say when to end.", "Leave out one of them.")
    given, scales = given_keys(keys, values)

    def composed(choices: list["Choice"]) -> TrainConfig:
        return validated(TrainConfig, compose("train", [*keys, *map(override_of, choices)]))

    config, console = composed([]), Console(stderr=True, highlight=False)
    from pggan.performance.hours import find_recipe  # and torch

    with console.status("Choosing a recipe") as status:
        choices, about = find_recipe(config, given, composed, status.update, scales=scales)
    table = Table("", "", box=None, title=f"For {about}:", title_justify="left", title_style="", show_header=False)
    for one in choices:
        table.add_row(override_of(one), one.reason)
    console.print(table)
    title = f"Chosen for {about}. The command was: {shlex.join(['pggan', command.name, *overrides])}"
    return choices, [*wrap(title, 118), *(f"{override_of(one)}: {one.reason}" for one in choices)]


def override_of(choice: "Choice") -> str:
    """A choice as the command line has it."""
    return f"{choice.key}={as_hydra_reads_it(choice.value)}"


def given_keys(overrides: Sequence[str], values: dict[str, Any]) -> tuple[set[str], bool]:
    """The keys that are not left to the program, and whether lengths of a recipe are to be scaled.

    These are the keys of `overrides`, which compose `values`; with a recipe all keys, but for lengths, and for channels
    of images, that are not typed.
    """
    names = {two_parts(key_of(one)) for one in overrides}
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    every = {f"{table}.{key}" for table, keys in tables.items() for key in keys}
    of_groups = {key for key in every if key.partition(".")[0] in names - {*NAMED_GROUPS}}
    # An option belongs to the loss that has it, so with an option that loss is given, too.
    typed = names | of_groups | {name.partition(".")[0] for name in names}
    if not names & {*RECIPES}:
        return typed, False
    scales = "schedule.stable_images" not in typed
    free = {"data.channels", *(LENGTHS if scales else {TOTAL})} - typed
    return (every | tables.keys()) - free, scales


def two_parts(key: str) -> str:
    """The first two parts of a key: its table and its name."""
    return ".".join(key.split(".")[:2])


def recipe_of(overrides: Sequence[str], values: dict[str, Any], choices: Sequence["Choice"]) -> dict[str, Any]:
    """The recipe of `overrides`, which compose `values`, and of `choices`: values by key, files by group.

    A recipe that is named by its path is written out: the new one can do without its file.
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
    """Write an experiment file, with lines `about` it."""
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
