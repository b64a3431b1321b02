"""Why overrides can't be composed, in terms of the one at fault, with what was probably meant.  Without torch."""

import re
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from pggan.cli.commands import Command
from pggan.config.validation import named_tables
from pggan.config.values import choices_of
from pggan.config.withdrawn import withdrawal  # WITHDRAWN is the table there
from pggan.core.errors import UserError, nearest, nearest_name

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

MAX_LISTED = 20

# What other programs call it, and what it is here.
SYNONYMS = {
    "batch": "schedule.batch=, in images per update",
    "batch_size": "schedule.batch=, in images per update",
    "dataset": "data.path=",
    "epochs": "schedule.total_images=, in images shown",
    "fp16": "precision=fp16",
    "gamma": "loss.gamma=, with loss=logistic or loss=relativistic",
    "gpus": "devices=",
    "kimg": "schedule.total_images=, in images: 25000 kimg are 25000000",
    "lambda": "loss.penalty_weight=, with loss=wgan_gp",
    "lr": "schedule.learning_rate_g= and schedule.learning_rate_d=",
    "mirror": "data.mirror=",
    "outdir": "run_dir=",
    "psi": "truncation=",
    "resolution": "schedule.final_resolution=",
    "workers": "devices=, one rank each",
}


def explained(command: Command, words: Sequence[str], values: Any, error: Exception, *, several: bool) -> UserError:
    """The error of Hydra in terms of the override at fault; `values` are those of the chosen files, unresolved.

    Args: several: whether overrides may have values for several jobs.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import MissingConfigException, OverrideParseException

    from pggan.config.values import flatten

    if isinstance(error, OverrideParseException):
        return unreadable(str(error.override))
    if isinstance(error, MissingConfigException):
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        return missing_choice(group, choice, error.options or [])
    # All keys, those of tables included: a.b.c gives a, a.b and a.b.c.
    known = {part for key, _ in flatten(values) for part in accumulate(key.split("."), "{}.{}".format)}
    known |= set(command.groups)
    overrides = OverridesParser.create().parse_overrides([*words])
    found = (wrong(command, one, known, several=several) for one in overrides)
    other = UserError(" ".join(str(error).split("\n")[:2]), "See --help for the keys and their values.")
    return next(filter(None, found), other)


def wrong(command: Command, override: "Override", known: Collection[str], *, several: bool) -> UserError | None:
    """The error of an override of what is not one of the `known` keys, or not in this form; None if it may be right."""
    key, given = override.key_or_group, override.input_line
    parent, _, last = key.rpartition(".")
    if override.is_sweep_override() and not several:
        return UserError(f"'{given}' are several choices for one run.", "Use one, or add --multirun to run each.")
    if parent in known and last.isdecimal():
        return UserError(f"'{given}' can't be given like this.", f"Write '{parent}={{{last}: …}}' (in quotes).")
    if key not in known and not key.startswith("hydra"):
        return withdrawal(key) or UserError(f"There is no key '{key}'.", suggestion(command, key, known))
    if key in command.groups and not override.is_sweep_override() and not isinstance(override.value(), str):
        return UserError(f"There is no {given}.", nearest(str(override.value()), choices_of(key)))
    return None


def unreadable(override: str) -> UserError:
    """The error for an override that Hydra's grammar refuses, with the same one quoted for the shell and for Hydra."""
    key, equals, value = override.partition("=")
    remedy = "Write key=value; quote values with spaces, commas, brackets or '=': \"data.path='my, photos'\"."
    if equals and re.fullmatch(r"[\w.]+", key) and value.startswith("~"):
        remedy = f"The shell does not replace ~ here: {key}={value.replace('~', '$HOME', 1)}"
    elif equals and re.fullmatch(r"[\w.]+", key) and not re.search(r"['\"$`\\]", value):
        remedy = f"Values with spaces, brackets, '=' or letters like ä are quoted twice: \"{key}='{value.strip()}'\""
    return UserError(f"'{override}' can't be read.", remedy)


def missing_choice(group: str, choice: str, options: Sequence[str]) -> UserError:
    """The error for a file that a config group has not."""
    remedy = nearest(choice, options)
    if group == "data" and not remedy.startswith("Did"):
        remedy = f"Images of your own are data.path={choice}; data= takes: {', '.join(sorted(options))}."
    return withdrawal(f"{group}={choice}") or UserError(f"There is no {group}={choice}.", remedy)


def suggestion(command: Command, key: str, known: Collection[str]) -> str:
    """A sentence that suggests a key for the unknown `key`: its name here, a key of this name, or the nearest one."""
    of_choices = keys_of_choices(command, known)
    if key in of_choices:
        return f"It is a key of {' and '.join(of_choices[key])}."
    names = {*known, *of_choices}
    here = {name: text for name, text in SYNONYMS.items() if text.partition("=")[0] in names}
    table, _, last = key.rpartition(".")
    if last in here and here[last].startswith(table):
        return f"Here it is {here[last]}."
    found = next((name for name in sorted(known) if name.endswith(f".{key}")), None) or nearest_key(key, names, here)
    if found in here:
        return f"Here it is {here[found]}."
    if found is not None:
        choices = f", of {' and '.join(of_choices[found])}" if found in of_choices else ""
        return f"Did you mean '{found}'{choices}?"
    return f"Valid names: {', '.join(sorted(known))}." if len(known) <= MAX_LISTED else "--help lists the keys."


def nearest_key(key: str, names: Collection[str], here: Collection[str]) -> str | None:
    """The key most like `key`: first in its own table, then among all `names` and those of other programs."""
    table, _, last = key.rpartition(".")
    beside = [name.rpartition(".")[2] for name in names if table and name.rpartition(".")[0] == table]
    if found := nearest_name(last, beside):
        return f"{table}.{found}"
    return nearest_name(key, {*names, *here} - {table})


def keys_of_choices(command: Command, known: Collection[str]) -> dict[str, list[str]]:
    """Keys that are not `known` because another loss, augmentation or kind of gradients has them, and these."""
    found: dict[str, list[str]] = {}
    for table, choices in named_tables(command.schema_type).items():
        for name, schema in choices.items():
            for key in schema.__dataclass_fields__:
                if f"{table}.{key}" not in known:
                    found.setdefault(f"{table}.{key}", []).append(f"{table}={name}")
    return found
