"""Why overrides can't be composed, in terms of the one at fault, with what was probably meant.  Without torch."""

import re
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

from pggan.config.files import choices_of, roots
from pggan.core.errors import UserError, nearest, nearest_name
from pggan.core.withdrawn import withdrawal  # WITHDRAWN is the table there

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

# Settings of Hydra that this program decides itself.
OWN_SETTINGS = {
    "hydra.run.dir": "run_dir= names the run directory.",
    "hydra.sweep.dir": "run_dir= names the directory of a sweep.",
    "hydra.sweep.subdir": "Runs of a sweep are named by what differs; 'run_dir=outputs/${seed}' names them otherwise.",
    "hydra.job.chdir": "Commands run in the working directory, and paths start there.",
    "hydra.verbose": "train.log in the run directory holds every line.",
}
OF_SWEEPS = ("hydra=", "hydra/launcher", "hydra.launcher.", "hydra/sweeper", "hydra.sweeper.")


def is_of_jobs(override: str) -> bool:
    """Whether `override` is a setting of Hydra's launchers and sweepers, or a file of such settings."""
    return override.startswith(OF_SWEEPS)


def refuse_typos(overrides: list[str], *, sweeps: bool) -> None:
    """Raise UserError for an empty value, and for a setting of Hydra that would be ignored.

    Args: sweeps: whether Hydra runs several jobs, where launcher and sweeper count.
    """
    for override in overrides:
        key, equals, value = override.partition("=")
        if equals and not value.strip():
            remedy = f"If a shell variable was meant, it is not set; for no value: {key}=null."
            raise UserError(f"{key}= has no value.", remedy)
        if not re.match(r"hydra\b", key) or key == "hydra.searchpath":
            continue
        if is_of_jobs(override):
            if not sweeps:
                raise UserError(f"{key}= has no effect on a single run.", "Add --multirun.")
        else:
            remedy = OWN_SETTINGS.get(key, "Of Hydra's settings, searchpath, launcher and sweeper are used.")
            raise UserError(f"{key}= has no effect.", remedy)


def unreadable(override: str) -> UserError:
    """The error for an override that Hydra's grammar refuses, with the same one quoted for the shell and for Hydra."""
    key, equals, value = override.partition("=")
    remedy = "Write key=value; quote values with spaces, commas, brackets or '=': \"data.path='my, photos'\"."
    if equals and re.fullmatch(r"[\w.]+", key) and value.startswith("~"):
        remedy = f"The shell does not replace ~ here: {key}={value.replace('~', '$HOME', 1)}"
    elif equals and re.fullmatch(r"[\w.]+", key) and not re.search(r"['\"$`\\]", value):
        remedy = f"Values with spaces, brackets, '=' or letters like ä are quoted twice: \"{key}='{value.strip()}'\""
    return UserError(f"'{override}' can't be read.", remedy)


def explanation(overrides: list[str], values: Any, groups: set[str], error: Exception) -> UserError:
    """Why composing failed, in terms of the override at fault; `values` are those of the chosen `groups`."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from pggan.config.describe import flatten

    # All keys, those of tables included: a.b.c gives a, a.b and a.b.c.
    known = groups | {part for key, _ in flatten(values) for part in accumulate(key.split("."), "{}.{}".format)}
    for override in OverridesParser.create().parse_overrides(overrides):
        key, given = override.key_or_group, override.input_line
        if override.is_sweep_override():
            return UserError(f"'{given}' are several choices for one run.", "Use one, or add --multirun to run each.")
        if isinstance(error, ValueError) and choices_of(key) and not isinstance(override.value(), str):
            return UserError(f"There is no {given}.", nearest(str(override.value()), choices_of(key)))
        parent, _, last = key.rpartition(".")
        if parent in known and last.isdecimal():
            return UserError(f"'{given}' can't be given like this.", f"Write '{parent}={{{last}: …}}' (in quotes).")
        if key not in known and not key.startswith("hydra"):
            return withdrawal(key) or UserError(f"There is no key '{key}'.", suggestion(key, known))
    return UserError(" ".join(str(error).split("\n")[:2]), "See --help for the keys and their values.")


def suggestion(key: str, known: Collection[str]) -> str:
    """A sentence that suggests a key for the unknown `key`: its name here, a key of this name, or the nearest one."""
    of_choices = keys_of_choices(known)
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


def keys_of_choices(known: Collection[str]) -> dict[str, list[str]]:
    """Keys that are not `known` because other files of their config groups have them, and these, as overrides."""
    found: dict[str, list[str]] = {}
    for group in {name.partition(".")[0] for name in known if "." in name}:
        for choice in choices_of(group):
            for key in sorted({f"{group}.{name}" for name in names_in(group, choice)}.difference(known)):
                found.setdefault(key, []).append(f"{group}={choice}")
    return found


def names_in(group: str, choice: str, folder: str | None = None, seen: frozenset[str] = frozenset()) -> set[str]:
    """The names that the file of `choice` in a config group, and the files there that it is based on, give values.

    Args: folder: of configuration files of one's own, where it is looked for, too; seen: files that are left out.
    """
    file = next((file for root in roots(folder) if (file := root / group / f"{choice}.yaml").is_file()), None)
    if file is None:
        return set()
    text = re.sub(r"#.*", "", file.read_text())
    names = {*re.findall(r"^(\w+):", text, re.MULTILINE)} - {"defaults"}
    listed = re.search(r"^defaults:(.*(?:\n\s*- .*)*)", text, re.MULTILINE)  # one below another, or in brackets
    seen |= {choice}
    bases = set[str]() if listed is None else {*re.findall(r"\w+", listed[1])} - seen
    return names.union(*(names_in(group, base, folder, seen) for base in bases))


def missing_choice(group: str, choice: str, options: Sequence[str]) -> UserError:
    """The error for a file that a config group has not."""
    if error := withdrawal(f"{group}={choice}"):
        return error
    remedy = nearest(choice, options)
    if group == "data" and not remedy.startswith("Did"):
        remedy = f"Images of your own are data.path={choice}; data= takes: {', '.join(sorted(options))}."
    return UserError(f"There is no {group}={choice}.", remedy)
