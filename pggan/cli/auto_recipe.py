"""`hours=`: the values of a command with the keys that are left to the program, chosen once and kept in recipe.yaml."""

import shlex
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pggan.cli.commands import Command
from pggan.cli.compose import compose, own_config
from pggan.cli.recipe_file import (
    RECIPE_FILE,
    RECIPE_GROUPS,
    Difference,
    keys_of_recipe,
    merged,
    named_file,
    overrides_of,
    read_recipe,
    with_recipes,
    write_recipe,
)
from pggan.config.values import flatten
from pggan.core.errors import UserError
from pggan.core.text import key_of

if TYPE_CHECKING:
    from pggan.performance.recipe import Choice

OF_ONE_RUN = {"run_dir", "resume", "hours"}  # where it is, and how long it may take: a recipe says nothing about them
NOT_IN_RECIPES = OF_ONE_RUN | {"devices", "threads"}  # nor about the machine, unless a recipe does that was given
GROUPS = ("experiment", "debug", "data", "model", "schedule", "loss", "augmentation", "gradients")
NAMED_GROUPS = ("loss", "augmentation")  # whose other keys stay free when one is chosen
TOTAL = "schedule.total_images"


@dataclass(frozen=True)
class GivenKeys:
    """Which keys are not left to the program: keys of the command line, and of the recipes that it names."""

    command_keys: frozenset[str]
    recipe_keys: frozenset[str]

    @classmethod
    def of(cls, overrides: Sequence[str], folder: str | None = None) -> "GivenKeys":
        """Args: folder: of configuration files of one's own."""
        typed: set[str] = set()
        recipes: set[str] = set()
        for one in overrides:
            name = key_of(one)
            typed.add(f"{name}.name" if name in NAMED_GROUPS else name)
            if name in RECIPE_GROUPS:
                recipes |= keys_of_recipe(name, one.partition("=")[2], folder)
        # An option belongs to the loss that has it, so with an option that loss is given, too.
        options = {key.partition(".")[0] for key in typed | recipes}
        recipes |= {f"{group}.name" for group in NAMED_GROUPS if group in options}
        return cls(frozenset(typed), frozenset(recipes))

    def in_command(self, key: str) -> bool:
        """Whether the command line has `key`, a part of it, or the group that it is in."""
        return _hold(self.command_keys, key)

    def has(self, key: str) -> bool:
        """Whether `key` is typed, or a recipe that the command line names has it, be it with the default's value."""
        return self.in_command(key) or _hold(self.recipe_keys, key)


def _hold(keys: frozenset[str], key: str) -> bool:
    return any(one == key or one.startswith(f"{key}.") or key.startswith(f"{one}.") for one in keys)


class Recipe(NamedTuple):
    """The title of a recipe, and its differences to the defaults: chosen keys and given ones, with reasons."""

    title: str
    differences: list[Difference]


def with_choices(command: Command, values: dict[str, Any], overrides: list[str], folder: str | None) -> dict[str, Any]:
    """`values`, which `overrides` compose, or with hours= those that have the recipe for them.

    Args: folder: of configuration files of one's own.
    A run with a checkpoint keeps its recipe; one without is chosen a new one.  Raises UserError where the hours are too
    short.
    """
    if values.get("hours") is None or own_config(command, overrides) is not None:  # a run resumes as it was configured
        return values
    if command.name != "train":
        if values.get("device") is not None:
            problem = f"device={values['device']} is a card elsewhere; hours= chooses for the machine that it runs on."
            raise UserError(problem, "Leave out one of them.")
        recipe = recipe_for(command, values, overrides, folder)
        return compose(command.name, merged(overrides_of(recipe.differences), overrides))
    from pggan.checkpoints.read import checkpoints_of
    from pggan.config import TrainConfig
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
            write_recipe(file, *recipe_for(command, values, overrides, folder))
        kept = read_recipe(file)
    return compose(command.name, merged(kept, overrides)) | {"run_dir": str(run_dir)}


def recipe_for(command: Command, values: dict[str, Any], overrides: list[str], folder: str | None) -> Recipe:
    """The recipe for the hours in `values`, which is also shown."""
    from dataclasses import fields

    from rich.console import Console
    from rich.table import Table

    from pggan.cli.inputs import require_training_inputs
    from pggan.config import TrainConfig
    from pggan.config.validation import validated

    given = GivenKeys.of(overrides, folder)

    known = {*GROUPS, *(field.name for field in fields(TrainConfig))}  # `pggan plan` has more
    keys = [one for one in overrides if key_of(one).split(".")[0] in known]

    def composed(choices: list["Choice"]) -> TrainConfig:
        found = overrides_of([Difference(*choice, is_group=choice.key in GROUPS) for choice in choices])
        return validated(TrainConfig, compose("train", merged(found, keys)))

    if TOTAL in given.command_keys and values["schedule"]["total_images"] is not None:
        raise UserError(f"hours= and {TOTAL}= both say when to end.", "Leave out one of them.")
    require_training_inputs(composed([]))
    from pggan.performance.hours import find_recipe  # and torch

    console = Console(stderr=True, highlight=False)
    with console.status("Choosing a recipe") as status:
        choices, about = find_recipe(composed([]), values["hours"], given, composed, status.update)
    title = f"Chosen for {about}. The command was: {shlex.join(['pggan', command.name, *overrides])}"
    table = Table("", "", box=None, title=f"For {about}:", title_justify="left", title_style="", show_header=False)
    chosen = [Difference(*choice, is_group=choice.key in GROUPS) for choice in choices]
    for override, choice in zip(overrides_of(chosen), choices, strict=True):
        table.add_row(override, choice.reason)
    console.print(table)
    return Recipe(title, [*differences_of(keys, values, {choice.key for choice in choices}), *chosen])


def differences_of(overrides: Sequence[str], values: dict[str, Any], chosen: Set[str]) -> list[Difference]:
    """The lines of a recipe for `overrides`, without the keys that are `chosen`; `values` are composed.

    Recipes that they name by their paths are written out, so that it can do without their files.
    """
    typed = {key_of(one) for one in overrides if named_file(one) is None}
    found = []
    for one in with_recipes(overrides):
        key = key_of(one)
        is_typed = key in typed
        # Else it is an option of another choice.
        is_there = key in GROUPS or any(f"{one}.".startswith(f"{key}.") for one, _ in flatten(values))
        if is_there and key not in chosen | (NOT_IN_RECIPES if is_typed else OF_ONE_RUN):
            found.append(of_override(one, values, "given" if is_typed else "of the given recipe"))
    return found


def of_override(override: str, values: dict[str, Any], reason: str) -> Difference:
    """An override as a line of a recipe; `values` are composed."""
    key = key_of(override)
    if key in GROUPS:
        return Difference(key, override.partition("=")[2], reason, is_group=True)
    value: Any = values
    for name in key.split("."):
        value = value[name]
    return Difference(key, value, reason, is_group=False)
