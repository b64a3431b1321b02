"""Write the pages of the site, as Markdown, into a folder: those of docs/, the README and every command's keys.

`make docs` runs this script and then the generator of the site, which only has to read a folder of Markdown.
"""

import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from pggan.cli.commands import COMMANDS, Command
from pggan.config.defaults import CONFIGS, choices_of
from pggan.config.validation import alternatives, described, kinds_of

ROOT = Path(__file__).parents[1]
MOVED = {"README.md": "index.md", "outputs/README.md": "outputs.md"}  # pages from outside docs/
RANK = "---\nsearch:\n  boost: {}\n---\n\n"  # at the top of a page, sets its rank in the site's search (others: 1)
ADVICE_FIRST = {"better-faces.md": 2, "quality.md": 0.2, "release.md": 0.1, "decisions.md": 0.001, "lab.md": 0.001}
INTRODUCTION = """# Keys of `pggan {name}`

{duty}

```
{example}
```

Keys are given as `key=value`; a key inside another one as `outer.inner=value`. `null` stands for nothing.
"""


def write_pages(folder: Path) -> None:
    """Write all pages and pictures into a folder, in place of what it held."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    for page in (ROOT / "docs").glob("*.md"):
        rank = RANK.format(ADVICE_FIRST.get(page.name, 1))
        (folder / page.name).write_text(rank + linked(page.read_text(), "docs"))
    for page, name in MOVED.items():
        (folder / name).write_text(linked((ROOT / page).read_text(), posixpath.dirname(page)))
    (folder / "keys").mkdir()
    for command in COMMANDS.values():
        (folder / "keys" / f"{command.name.replace(' ', '_')}.md").write_text(RANK.format(0.2) + reference(command))


def linked(text: str, folder: str) -> str:
    """A page of a folder of the repository with its links as the site needs them; files without a page become names."""

    def target(match: re.Match[str]) -> str:
        picture, words, link = match.groups()
        path, hash_sign, anchor = link.partition("#")
        path = posixpath.normpath(posixpath.join(folder, path)) if path else ""
        if "://" in link or not path:
            return match[0]
        if page := MOVED.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None):
            return f"{picture}[{words}]({page}{hash_sign}{anchor})"
        return words if path.removesuffix(".md") in words else f"{words} (`{path}`)"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", target, text)


def reference(command: Command) -> str:
    """Every key of a command, with type, default and meaning."""
    schema = command.schema_type
    parts = [INTRODUCTION.format(name=command.name, duty=command.duty, example=command.example)]
    parts.append(table(command.config_file.read_text(), schema))
    for group, default in command.groups.items():
        texts = {choice: (CONFIGS / group / f"{choice}.yaml").read_text() for choice in choices_of(group)}
        rows = [f"| `{choice}` | {heading(text)} |" for choice, text in texts.items()]
        parts.append("\n".join([f"## `{group}=`", "", "| choice | what it is |", "|---|---|", *rows]))
        shown: set[str] = set()
        for choice in sorted(texts, key=lambda name: name != default):  # the default first
            names = {key for key, _, _ in keys_of(texts[choice])}
            if not texts[choice].startswith("# @package") and not shown >= names:
                shown |= names
                kind = kinds_of(schema).get(group)
                parts.append(f"### Keys of `{group}={choice}`\n\n{table(texts[choice], kind, f'{group}.')}")
    return "\n\n".join(parts) + "\n"


def keys_of(text: str) -> Iterator[tuple[str, str, str]]:
    """Every key of a YAML text with its value there and the comment above it; `a.b` for a key b in a.

    A comment holds for all keys below it up to an empty line or another comment.
    """
    comment: list[str] = []
    above: list[tuple[int, str]] = []
    before = ""
    for line in text.splitlines():
        if line.strip().startswith("#"):
            comment = [*(comment if before.strip().startswith("#") else []), line.strip().removeprefix("#").strip()]
        elif not line.strip():
            comment = []
        elif found := re.match(r"( *)(\w+):(.*)$", line):
            depth = len(found[1])
            above = [(other, name) for other, name in above if other < depth] + [(depth, found[2])]
            if above[0][1] != "defaults":
                yield ".".join(name for _, name in above), found[3].strip(), " ".join(comment)
        before = line


def heading(text: str) -> str:
    """What the comment at the beginning of a YAML file says of the whole; empty where it belongs to the first key."""
    above = re.match(r"((?:#.*\n)+)(?:\n|defaults:|name:)", text)
    lines = [line.removeprefix("#").strip() for line in above[1].splitlines()] if above else []
    return cell(" ".join(line for line in lines if not line.startswith("@package")))


def table(text: str, schema: Any, outer: str = "") -> str:
    """A Markdown table of the keys of a YAML text."""
    rows = []
    for key, value, comment in keys_of(text):
        shown = f"`{value}`" if value and value != "???" else ""
        rows.append(f"| `{outer}{key}` | {kind_of(schema, key)} | {shown} | {cell(comment)} |")
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])


def cell(text: str) -> str:
    """A text for a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def kind_of(schema: Any, key: str) -> str:
    """The type of a key in words, found through the dataclasses."""
    for name in key.split("."):
        schema = next((part for part in alternatives(schema) if is_dataclass(part) and name in kinds_of(part)), None)
        if schema is None:
            return ""
        schema = kinds_of(schema)[name]
    return "section" if is_dataclass(alternatives(schema)[0]) else cell(described(schema))


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
