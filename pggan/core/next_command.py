"""The last line of every command: what to do next."""

import re
import shlex
from collections.abc import Mapping

NEXT = "Next:"


def next_command(command: str, *words: str, **values: object) -> str:
    """The line that names a `pggan` command to be given next, as a shell takes it.

    Args: words: overrides and flags as the command takes them; values: by key, placed before them, any text or lists.
    """
    given = [as_typed({key: value}) for key, value in values.items()]
    return " ".join([NEXT, "pggan", command, *given, *map(_as_a_shell_reads_it, words)])


def as_typed(values: Mapping[str, object]) -> str:
    """Overrides of `values`, any text or lists by key, as they are typed into a shell."""
    return " ".join(_as_a_shell_reads_it(f"{key}={as_hydra_reads_it(value)}") for key, value in values.items())


def as_hydra_reads_it(value: object) -> str:
    """A value as an override of Hydra's has it: in quotes where its characters mean something there."""
    if isinstance(value, list):
        return f"[{','.join(map(as_hydra_reads_it, value))}]"
    if re.fullmatch(r"[\w./:+@-]+", text := str(value)):
        return text
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"


def _as_a_shell_reads_it(word: str) -> str:
    """`word`, in double quotes where that suffices: Hydra's own quotes are single ones."""
    if re.search(r"[\"$`\\!]", word) or "'" not in word:
        return word if re.fullmatch(r"[\w./:,+@=\[\]-]+", word) else shlex.quote(word)
    return f'"{word}"'
