"""With `hours=`, choose values for keys that the user has not set, and write recipe.yaml into the run directory."""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from rich.console import Console

from pggan.checkpoints.generator_file import STATE_FILE, generator_path, read_generator_header, refusing_generators
from pggan.checkpoints.read import checkpoints_of, resolve_checkpoint
from pggan.cli.commands import Command
from pggan.cli.compose import compose, resumes
from pggan.cli.help import hang, meanings
from pggan.config.defaults import saved_config
from pggan.config.train import ModelConfig, TrainConfig
from pggan.config.validation import validated
from pggan.config.values import command_seconds
from pggan.core.architecture import Architecture
from pggan.core.atomic_io import atomic_write
from pggan.core.errors import UserError
from pggan.core.text import as_hydra_reads_it, key_of
from pggan.run.run_dir import beside, choose_run_dir, lock_run_dir

if TYPE_CHECKING:
    from pggan.performance.recipe import Choice

OF_ONE_RUN = {"run_dir", "resume", "hours", "grow"}  # other runs need other values, so recipe.yaml omits these keys
OF_THE_MACHINE = {"devices", "threads"}  # a user's values are not written to recipe.yaml: they fit only one machine
RECIPES = ("experiment", "debug")  # each choice in these config groups is a recipe with values for many keys
NAMED_GROUPS = ("loss", "augmentation", "gradients")  # config groups in which each choice has its own keys
# grow=RUN copies the configuration of RUN, and hours= then chooses new values for the keys in GROWING and LENGTHS.
GROWING = {
    *("augmentation.rampup_images", "ema.half_life_images", "ema.rampup", "checkpoint.every_images"),
    *("monitor.tick_images", "monitor.grid_images", "schedule.final_resolution"),
}
LENGTHS = {f"schedule.{key}_images" for key in ("stable", "fade", "lr_decay", "total")}
TOTAL = "schedule.total_images"


def with_choices(command: Command, values: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """Return `values` or, with hours=, a configuration for these hours, which `pggan train` writes to recipe.yaml."""
    if resumes(overrides):
        return values
    if values.get("hours") is None:
        if values.get("grow") is not None:
            raise UserError("grow= needs the hours that the new run may take.", "Add hours=1, for example.")
        return values
    base = [] if values["grow"] is None else base_of_growth(values["grow"], overrides)
    names = {key_of(one) for one in overrides}
    if values["init_from"] is not None and not names.intersection(RECIPES):
        final = int(values["schedule"]["final_resolution"]) if "schedule.final_resolution" in names else None
        base = base_of_transfer(values["init_from"], final)
    if command.name != "train":
        choices, _ = choose(command, values, overrides, base)
        reasons = [hang("  ", f"{override_of(one)}: {one.reason}.") for one in choices]
        more = reasons if values["details"] else ["  More        details=true explains each key."]
        print(*more, sep="\n", file=sys.stderr)
        return compose(command.name, [*base, *overrides, *map(override_of, choices)])
    if values["resume"] not in ("auto", "never"):
        raise UserError("hours= is for a new run, but resume= continues a run.", "Leave out one of them.")
    config = validated(TrainConfig, values)
    is_beside = config.run_dir is None and config.grow is not None
    run_dir = beside(Path(str(config.grow))) if is_beside else choose_run_dir(config.run_dir, config.name)
    file = run_dir / "recipe.yaml"
    if checkpoints_of(run_dir) and not file.exists():
        problem = f"run_dir={run_dir}: hours= is for a new run, but a run without hours= is already there."
        raise UserError(problem, "Choose another run_dir=, or leave out hours= to continue that run.")
    with lock_run_dir(run_dir):
        if not checkpoints_of(run_dir):  # a run with a checkpoint keeps its old recipe.yaml
            choices, about = choose(command, values, overrides, base)
            chosen = compose(command.name, [*base, *overrides, *map(override_of, choices)])
            left_out = OF_ONE_RUN | (OF_THE_MACHINE & names)
            write(file, {key: each for key, each in chosen.items() if key not in left_out}, choices, about)
            print(hang("  More        ", f"{file} explains each key."), file=sys.stderr)
    typed = [one for one in overrides if key_of(one) not in RECIPES]
    return compose(command.name, [f"experiment={file}", *typed]) | {"run_dir": str(run_dir)}


def base_of_growth(run: str, overrides: Sequence[str]) -> list[str]:
    """Return Hydra overrides for a new run that begins with the configuration, weights and resolution of the run `run`.

    Raises UserError if `run` has no checkpoint, or if `overrides` set experiment=, debug=, init_from= or keys model.*.
    """
    if fixed := [key for key in map(key_of, overrides) if key.split(".")[0] in (*RECIPES, "model", "init_from")]:
        key = fixed[0].replace("model.discriminator", "discriminator")  # an argument of pggan.train
        problem = f"grow={run} can't be combined with {key}=: grow= copies the networks and the recipe of {run}."
        raise UserError(problem, f"Leave out {key}=. For other networks, start a new run with init_from={run}.")
    checkpoint, _ = resolve_checkpoint(Path(run), "grow")
    saved, header = saved_config(checkpoint.directory / STATE_FILE), checkpoint.header
    side = header["resolution"] if header["alpha"] == 1 else header["resolution"] // 2
    saved["schedule"] |= {"first_resolution": side, "total_images": None}
    saved |= {"init_from": run, "allow_changes": []}
    found = [f"{group}={saved[group]['name']}" for group in NAMED_GROUPS]
    for name, value in saved.items():
        if name not in OF_ONE_RUN | OF_THE_MACHINE:
            keys = {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
            found += [f"{key}={as_hydra_reads_it(each)}" for key, each in keys.items() if not key.endswith(".name")]
    return found


def base_of_transfer(path: str, final: int | None) -> list[str]:
    """Return Hydra overrides with the architecture of `path`; `final`: the user's final resolution, or None."""
    from pggan.networks.efficientnet_lite0 import is_installed  # imported late, because it imports torch

    with refusing_generators(file := generator_path(path, "init_from")):
        header = read_generator_header(file)
    side = header["resolution"] if header["alpha"] == 1 else header["resolution"] // 2
    found = [f"schedule.{key}_resolution={min(side, final or side)}" for key in ("first", "final")]
    stored = asdict(Architecture.from_plain(header["architecture"]))
    networks = {name: value for name, value in stored.items() if name in ModelConfig.__annotations__}
    if networks["features"] is None or not is_installed():  # no usable features of D: hours= may choose model.features
        del networks["features"], networks["features_from"]
    else:
        networks["features"] = networks["features"].split("@")[0]
    return [*found, *(f"model.{name}={as_hydra_reads_it(value)}" for name, value in networks.items())]


def choose(
    command: Command, values: dict[str, Any], overrides: list[str], base: Sequence[str]
) -> tuple[list["Choice"], list[str]]:
    """Choose values for unset keys, so that training takes values["hours"] hours, and print a summary of the recipe.

    Returns: the chosen values, and lines of comments for recipe.yaml.
    Args: base: Hydra overrides with settings of the run in grow= or init_from=; empty without these two keys.
    """
    if any(key_of(one) == TOTAL for one in overrides) and values["schedule"]["total_images"] is not None:
        raise UserError(f"hours= and {TOTAL}= both say when training ends.", "Leave out one of them.")
    given, scales = given_keys(overrides, compose(command.name, [*base, *overrides]) if base else values)
    given |= {key_of(one) for one in base if one.startswith("model.")}

    def composed(choices: list["Choice"]) -> TrainConfig:
        keys = [*base, *overrides, *map(override_of, choices)]
        config: TrainConfig = validated(command.schema_type, compose(command.name, keys))
        return config

    config, console = composed([]), Console(stderr=True, highlight=False)
    from pggan.performance.costs import card_of  # imported late, because it imports torch
    from pggan.performance.hours import find_recipe
    from pggan.performance.recipe import two_digits
    from pggan.run.eta import until

    with console.status("Choosing a recipe") as status:
        card = card_of(values.get("device"))
        choices, about = find_recipe(config, given, composed, status.update, scales=scales, card=card)
    final, reasons = composed(choices), {one.key: f": {one.reason}" for one in choices}
    schedule = final.schedule.build()
    size = f"{schedule.final_resolution}x{schedule.final_resolution}"
    lines = [
        hang("", f"Recipe for {about.removesuffix('.')}:"),
        hang("  Resolution  ", f"{size}{reasons.get('schedule.final_resolution', ', as given')}."),
        hang("  Images      ", f"about {two_digits(schedule.total):,}{reasons.get('schedule.stable_images', '')}."),
        hang("  End         ", f"{until(3600 * (final.hours or 0) - command_seconds(), datetime.now())}."),
    ]
    print(*lines, sep="\n", file=sys.stderr)
    command_line = shlex.join(["pggan", command.name, *overrides])
    return choices, [*"\n".join(lines).splitlines(), *wrap(f"Command: {command_line}", 118)]


def override_of(choice: "Choice") -> str:
    """Return `choice` as a Hydra override key=value."""
    return f"{choice.key}={as_hydra_reads_it(choice.value)}"


def given_keys(overrides: Sequence[str], values: dict[str, Any]) -> tuple[set[str], bool]:
    """Return the keys that hours= must not change, and whether hours= scales the phase lengths of a recipe.

    hours= never changes a key that the user has set.  With experiment= or debug=, hours= changes only keys in LENGTHS;
    with grow=, only keys in LENGTHS and GROWING, and the keys of D's pretrained features, model.features*.
    """
    names = {".".join(key_of(one).split(".")[:2]) for one in overrides}  # schedule.batch.8= sets schedule.batch
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    every = {f"{table}.{key}" for table, keys in tables.items() for key in keys}
    of_groups = {key for key in every if key.partition(".")[0] in names - {*NAMED_GROUPS}}
    # If the user sets loss.gamma, hours= must not change loss= either, because another loss may have no gamma.
    typed = names | of_groups | {name.partition(".")[0] for name in names}
    if values["grow"] is not None:
        from pggan.performance.recipe import FEATURES_FROM

        is_plain = values["model"]["features"] is None and values["schedule"]["first_resolution"] < FEATURES_FROM
        free = GROWING | LENGTHS | ({"model.features", "model.features_from"} if is_plain else set())
        return (every | tables.keys()) - (free - typed), False
    if not names & {*RECIPES}:
        return typed, False
    scales = "schedule.stable_images" not in typed
    return (every | tables.keys()) - ((LENGTHS if scales else {TOTAL}) - typed), scales


def write(file: Path, values: dict[str, Any], choices: Sequence["Choice"] = (), about: Sequence[str] = ()) -> None:
    """Write `values` as YAML for experiment=; comments explain the recipe (`about`), each key and each choice."""
    groups = {group: values[group]["name"] for group in NAMED_GROUPS}
    content: dict[str, Any] = {"defaults": [{f"override /{group}": name} for group, name in groups.items()], **values}
    content |= {group: {key: value for key, value in values[group].items() if key != "name"} for group in groups}
    reasons = {one.key: f"{override_of(one)}: {one.reason}." for one in choices}
    explained, section = meanings(groups), ""
    lines = ["# @package _global_", *(f"# {line}" for line in about)]
    lines += [f"# {part}" for key in groups for part in wrap(reasons.get(key, ""), 118)]
    for line in OmegaConf.to_yaml(OmegaConf.create(content)).splitlines():
        if found := re.match(r"( {0,2})(\w+):", line):
            indent, name = found.groups()
            section = section if indent else f"{name}."
            key = f"{section}{name}" if indent else name
            texts = filter(None, (explained.get(key), reasons.get(key)))
            lines += [f"{indent}# {part}" for text in texts for part in wrap(text, 116)]
        lines.append(line)
    with atomic_write(file) as temporary:
        temporary.write_text("\n".join([*lines, ""]), "utf-8", "replace")  # a path can have bytes that are not UTF-8
