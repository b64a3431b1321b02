"""TensorBoard of a run: its charts, the pages about it, its row in HParams."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

# The keys that people compare runs by; the others are in the text of the configuration.
COMPARED = ("seed", "precision", "elastic", "loss", "model", "schedule", "optimizer", "ema", "augmentation")
GROWTH = {"growth: each bend is the border of two phases": ["Multiline", ["^schedule/growth$"]]}
# Categories of Custom Scalars, their charts, and patterns of the tags in each.
LAYOUT: dict[str, dict[str, list[str]]] = {
    "losses": {
        "losses": [r"^[DG]/loss$"],
        "terms of D": [r"^D/(wasserstein|loss_reals|loss_fakes|relativistic|class_loss_.*)$"],
    },
    "scores": {"scores: reals against fakes": [r"^scores/.*"]},
    "augmentation": {"p of ADA": ["^augment/p$"], "mean sign of D": ["^augment/sign$"]},
    "penalties": {"penalties": [r"^D/(gradient_penalty|r1|r2|drift)$"]},
    "quality": {"metrics and their floors": [r"^metrics/.*"]},
    "health": {
        "gradient norms": [r"^[DG]/gradient_norm(_max)?$"],
        "alarms, skipped updates": [r"^health/alarms$", r"^alarms/.*", r"^[DG]/skipped$"],
        "overfitting, diversity": ["^health/reals_sign$", "^health/diversity$"],
        "loss scale": [r"^[DG]/loss_scale$"],
    },
    "speed": {
        "images per second": ["^speed/images_per_second$"],
        "where the time goes": [r"^speed/.*_share$"],
        "memory, bytes": ["^speed/memory_bytes$"],
        "time left, seconds": ["^speed/eta_seconds$"],
    },
    "schedule": {
        "resolution": ["^schedule/resolution$"],
        "alpha": ["^schedule/alpha$"],
        "batch": ["^schedule/batch$"],
        "learning rates": ["^schedule/learning_rate_.*"],
    },
}


class Board(SummaryWriter):
    """An event file in `run_dir` whose points replace all earlier ones from step `first` on; for several threads."""

    def __init__(self, run_dir: Path, first: int) -> None:
        super().__init__(str(run_dir), purge_step=first)
        self.first = first

    def describe(self, pages: dict[str, str], hyperparameters: dict[str, Any]) -> None:
        """Write the layout of the charts, texts in Markdown by tag, and the beginning of a row in HParams."""
        charts = {title: {name: ["Multiline", tags] for name, tags in parts.items()} for title, parts in LAYOUT.items()}
        self.add_custom_scalars({title: GROWTH | parts for title, parts in charts.items()})
        for tag, markdown in pages.items():
            self.add_text(tag, markdown, self.first)
        # No columns are declared, as `add_hparams` would: TensorBoard takes all numbers of all runs.
        _, start, self._end = hparams(hyperparameters, {})  # type: ignore[no-untyped-call]
        self._add(start, self.first)

    def finish(self, images: int) -> None:
        """Mark the row in HParams: the run has come to its end."""
        self._add(self._end, images)

    def _add(self, summary: object, step: int) -> None:
        self.file_writer.add_summary(summary, step)  # type: ignore[attr-defined]  # its type says None


def run_pages(run_dir: Path, description: dict[str, Any]) -> dict[str, str]:
    """Pages about a run by their tags, in Markdown: commands to go on with, and its configuration."""
    commands = {
        "Started with": description["versions"]["command"] or "from Python",
        "Resume": f"pggan train run_dir={run_dir}",
        "Watch": f"pggan monitor run={run_dir}",
        "Draw images": f"pggan sample run={run_dir} seeds=0-63",
        "Measure": f"pggan evaluate run={run_dir}",
    }
    configuration = OmegaConf.to_yaml(OmegaConf.create(description)).splitlines()
    return {
        "run/command": "\n\n".join(f"{what}: `{command}`" for what, command in commands.items()),
        "run/configuration": "\n".join(f"    {line}" for line in configuration),
    }


def hyperparameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that runs are compared by, of `values` by full keys; nothing that is null."""
    return {
        key: value
        for key, value in values.items()
        if key.split(".")[0] in COMPARED and isinstance(value, bool | int | float | str)
    }
