"""The result file of the kit.  Without torch: the process that looks after the others reads it, too."""

import json
import time
from pathlib import Path
from typing import Any

from pggan.core.atomic_io import atomic_write

Figures = dict[str, Any]
MAX_GRAPH_MILLISECONDS = 28  # above, the fused kernels do not do what they are for
MAX_COMPILED_MILLISECONDS = 24  # below, compiling pays for long runs
VERDICTS = {True: "right", False: "NOT right", None: "not measured"}  # of compiled gradients


class Record:
    """Figures of every item, `parts/<part>/items/<item>`, written to disk whenever one changes."""

    def __init__(self, path: Path) -> None:
        """Go on with the file at `path`, if there is one."""
        self.path = path
        self.content: dict[str, Any] = {"about": {}, "asked": "all", "complete": False, "running": None, "parts": {}}
        self.reload()

    def reload(self) -> None:
        """Read what another process has written."""
        if self.path.is_file():
            self.content = json.loads(self.path.read_text())

    def write(self) -> None:
        """Write the file, as a whole or not at all."""
        with atomic_write(self.path) as temporary:
            temporary.write_text(json.dumps(self.content, indent=1) + "\n")

    @property
    def complete(self) -> bool:
        """Whether no item is missing of the parts that were asked for last."""
        return bool(self.content["complete"])

    @property
    def failures(self) -> list[str]:
        """The items that have failed, as 'part/item'."""
        return [f"{part}/{name}" for part in self.content["parts"] for name in self._failed(part)]

    def items(self, part: str) -> dict[str, Figures]:
        """The figures of the items of `part` that have not failed."""
        items = self.content["parts"].get(part, {}).get("items", {})
        return {name: figures for name, figures in items.items() if "failed" not in figures}

    @property
    def tried(self) -> int:
        """How many items were tried."""
        return sum(len(part.get("items", {})) for part in self.content["parts"].values())

    def has(self, part: str, item: str) -> bool:
        """Whether an item was tried."""
        return item in self.content["parts"].get(part, {}).get("items", {})

    def forget_running(self) -> None:
        """Note that no item is running: the call that began one was stopped."""
        self.content["running"] = None
        self.write()

    def begin(self, part: str, item: str) -> None:
        """Note that an item begins."""
        self.content["running"] = [part, item]
        self.write()

    def end(self, part: str, item: str, figures: Figures) -> None:
        """Note the figures of an item."""
        self.content["parts"].setdefault(part, {}).setdefault("items", {})[item] = figures
        self.content["running"] = None
        self.write()

    def judge(self, part: str, judgement: dict[str, str]) -> None:
        """Note what was measured of a part, what was expected, and the verdict."""
        self.content["parts"].setdefault(part, {"items": {}}).update(judgement)
        self.write()

    def failed_while_running(self, reason: str) -> None:
        """Note that the item that was running, if any, has failed."""
        if self.content["running"] is not None:
            part, item = self.content["running"]
            self.end(part, item, {"failed": reason})
            print(f"{part}/{item}: {reason}", flush=True)

    def forget_failures(self) -> None:
        """Remove the items that have failed, so that they are tried again."""
        for part, content in self.content["parts"].items():
            for name in self._failed(part):
                del content["items"][name]
        self.content["complete"] = False
        self.write()

    def idle_seconds(self) -> float:
        """Seconds since the file was written."""
        return time.time() - self.path.stat().st_mtime if self.path.is_file() else 0.0

    def conclusion(self) -> str:
        """What the figures at 1024x1024 say about the defaults."""
        stages, compiled = self.items("stages"), self.items("compiled")
        lines = []
        if graph := stages.get("graph 1024", {}).get("milliseconds"):
            rule = f"a captured step at 1024x1024 takes {graph:.1f} ms"
            if graph > MAX_GRAPH_MILLISECONDS:
                lines.append(f"{rule}, more than {MAX_GRAPH_MILLISECONDS}: look at the fused kernels first.")
            else:
                lines.append(f"{rule}: the fused kernels do what they are for.")
        if step := compiled.get("1024", {}).get("milliseconds"):
            exact = compiled.get("gradients", {}).get("good")
            pays = exact and step <= MAX_COMPILED_MILLISECONDS
            rule = f"a compiled one takes {step:.1f} ms, its gradients are {VERDICTS[exact]}"
            rule = "; ".join([rule, *compiled["1024"].get("notices", ())])
            lines.append(f"{rule}: compute.compile=true {'pays for long runs' if pays else 'stays off'}.")
        return "Decision: " + (" ".join(lines) or "the step at 1024x1024 was not measured.")

    def _failed(self, part: str) -> list[str]:
        items = self.content["parts"][part].get("items", {})
        return [name for name, figures in items.items() if "failed" in figures]
