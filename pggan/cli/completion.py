"""Completion in the shell: `eval "$(pggan --completion bash)"` or zsh; `pggan --completion fish | source`."""

import re
from dataclasses import is_dataclass
from enum import EnumMeta
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pggan.cli.commands import COMMANDS, Command
from pggan.config.files import CONFIGS, choices_of
from pggan.core.errors import UserError, nearest

# bash and zsh split words at '=', so that only what comes after the last one is replaced.
BASH = """_pggan() {
  local line="${COMP_LINE:0:COMP_POINT}" word
  COMPREPLY=()
  while IFS= read -r word; do
    case "${COMP_WORDBREAKS}${ZSH_VERSION:+=}" in
      *=*) case "${line##* }" in *=*) word="${word#*=}" ;; esac ;;
    esac
    COMPREPLY+=("$word")
  done < <(pggan --complete "$line")
  case "${COMPREPLY[*]}" in *=) compopt -o nospace 2>/dev/null ;; esac
}
complete -o default -F _pggan pggan
"""
SHELLS = {
    "bash": BASH,
    "zsh": f"autoload -U +X compinit && compinit; autoload -U +X bashcompinit && bashcompinit\n{BASH}",
    "fish": "complete -c pggan -a '(pggan --complete (commandline -cp))'\n",
}


def script(shell: str) -> str:
    """The lines that a shell evaluates; raises UserError for an unknown one."""
    if shell not in SHELLS:
        raise UserError(f"There is no completion for '{shell}'.", nearest(shell, SHELLS))
    return SHELLS[shell]


def candidates(line: str) -> list[str]:
    """Completions of the last word of the command `line`: commands, `key=`, or `key=value`; nothing for paths."""
    words = line.split()[1:]
    last = "" if line.endswith(" ") or not words else words[-1]
    before = words[: len(words) - bool(last)]
    name = next((" ".join(before[:count]) for count in (2, 1) if " ".join(before[:count]) in COMMANDS), None)
    if name is None:
        found = [command for command in COMMANDS if " " not in command]
    else:
        key, equals, _ = last.partition("=")
        found = keys_of(COMMANDS[name], key)
        found += [f"{key}={value}" for value in values_of(COMMANDS[name], key)] if equals else []
        found += [one.split()[1] for one in COMMANDS if one.startswith(f"{name} ") and len(before) == 1]
    return [candidate for candidate in found if candidate.startswith(last)]


def keys_of(command: Command, key: str) -> list[str]:
    """Every key of `command` as `key=`, those of its default groups too, and the files of a group that `key` names."""
    files = [("", file) for file in command.config_files]
    files += [(f"{group}.", CONFIGS / group / f"{choice}.yaml") for group, choice in command.groups.items()]
    found = [f"{group}=" for group in command.groups]
    for prefix, file in files:
        section = prefix
        text = file.read_text() if file.is_file() else ""
        for indent, word, value in re.findall(r"^( *)(\w+):(.*)$", text, re.MULTILINE):
            if word == "defaults":
                continue
            if not indent and not value.strip():
                section = f"{prefix}{word}."
            elif indent or value.strip():
                found.append(f"{section if indent else prefix}{word}=")
    return [*found, *(f"{key}={choice}" for choice in choices_of(key) if key in command.groups)]


def values_of(command: Command, key: str) -> list[str]:
    """The values of a `key` that takes one of a few words, or true and false; none of any other."""
    from pggan import config as schemas  # takes a third of a second, which names of keys do without

    kind: Any = getattr(schemas, command.schema)
    for name in key.split("."):
        section = next((part for part in alternatives(kind) if is_dataclass(part)), None)
        kind = section and get_type_hints(section).get(name)
    words = [name for part in alternatives(kind) if isinstance(part, EnumMeta) for name in part.__members__]
    return [*words, *["false", "true"] * (bool in alternatives(kind))]


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The types of a union; else `kind` alone."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
