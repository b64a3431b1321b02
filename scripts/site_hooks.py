"""What `mkdocs build` adds to docs/: the README as the first page, a reference of every key, links to code."""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from pggan.cli.commands import COMMANDS, Command
from pggan.config.defaults import CONFIGS, choices_of
from pggan.config.validation import alternatives, described, kinds_of

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "outputs/README.md": "outputs.md"}  # of files outside docs/
BACKGROUND = {"lab.md", "decisions.md", "quality.md"}  # the search ranks these pages below those with advice
INTRODUCTION = """# Keys of `pggan {name}`

{duty}

```
{example}
```

Keys are given as `key=value`; a key inside another one as `outer.inner=value`. `null` stands for nothing.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    for file, name in PAGES.items():
        files.append(File.generated(config, name, content=from_root(file)))
    for command in COMMANDS.values():
        files.append(File.generated(config, page_name(command), content=reference(command)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave docs/ to the page that a file has become, or to the repository where it has an address."""
    if page.file.src_uri in BACKGROUND or page.file.src_uri.startswith("keys/"):
        page.meta["search"] = {"boost": 0.2}
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def outside(match: re.Match[str]) -> str:
        text, target = match.groups()
        path, hash_sign, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(folder, path))
        if "://" in target or target.startswith("#") or path.startswith("docs/"):
            return match[0]
        if path in PAGES:
            return f"[{text}]({PAGES[path]}{hash_sign}{anchor})"
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path})" if config.repo_url else f"{text} (`{path}`)"

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", outside, markdown)


def from_root(file: str) -> str:
    """The text of a page that lies outside docs/, with links as they are seen from docs/."""

    def moved(match: re.Match[str]) -> str:
        path = posixpath.join(posixpath.dirname(file), match[1])
        return f"]({path.removeprefix('docs/') if path.startswith('docs/') else f'../{path}'})"

    return re.sub(r"\]\((?!https?:|#)([^)]+)\)", moved, (ROOT / file).read_text())


def page_name(command: Command) -> str:
    """The file of a command's page."""
    return f"keys/{command.name.replace(' ', '_')}.md"


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
            if not texts[choice].startswith("# @package") and not shown >= (names := names_in(texts[choice])):
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


def names_in(text: str) -> set[str]:
    """The names of the keys of a YAML text."""
    return {key for key, _, _ in keys_of(text)}


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
