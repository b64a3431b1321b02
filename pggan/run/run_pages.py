"""Pages about a run for TensorBoard's Text and HParams: how it was started, its data, its phases, its configuration."""

from collections.abc import Iterable

from omegaconf import OmegaConf

from pggan.config.describe import flatten
from pggan.core.schedule import Schedule
from pggan.data.pyramid import ImagePyramid
from pggan.run.run_dir import RunContext

# The keys that people compare runs by; the others are in the text of the configuration.
COMPARED = (
    "seed",
    "precision",
    "elastic",
    "loss",
    "model",
    "schedule",
    "optimizer",
    "ema",
    "augmentation",
    "gradients",
)


def run_pages(run: RunContext) -> dict[str, str]:
    """Texts in Markdown by their tags."""
    return {
        "run/command": command_page(run),
        "run/data": data_page(run.pyramid, labels=run.architecture.num_classes > 0),
        "run/phases": phase_page(run.schedule),
        "run/configuration": "\n".join(
            f"    {line}" for line in OmegaConf.to_yaml(OmegaConf.create(run.description)).splitlines()
        ),
    }


def command_page(run: RunContext) -> str:
    """A table of commands: the one that started the run, and those to go on with."""
    lines = {
        "Started with": run.description["versions"]["command"] or "from Python",
        "Resume": f"pggan train run_dir={run.run_dir}",
        "Watch": f"pggan monitor run={run.run_dir}",
        "Draw images": f"pggan sample run={run.run_dir} seeds=0-63",
        "Measure": f"pggan evaluate run={run.run_dir}",
    }
    return table(("what", "command"), [(what, f"`{command}`") for what, command in lines.items()])


def data_page(pyramid: ImagePyramid, *, labels: bool) -> str:
    """The facts of a data set."""
    rows = [
        ("images", f"{pyramid.images:,}"),
        ("channels", pyramid.channels),
        ("resolutions", ", ".join(map(str, pyramid.resolutions))),
        ("classes", ", ".join(pyramid.class_names or ()) or "none"),
        ("labels are used", labels),
        *((f"source: {key}", value) for key, value in flatten(pyramid.source)),
        ("directory", pyramid.path),
        ("fingerprint", pyramid.fingerprint),
    ]
    return table(("of the data set", "value"), rows)


def phase_page(schedule: Schedule) -> str:
    """The phases of a schedule."""
    rows = [
        (
            phase.index + 1,
            phase.name,
            f"{phase.start:,}",
            f"{min(phase.end, schedule.total):,}",
            phase.batch,
            f"{phase.learning_rate_g:g}",
            f"{phase.learning_rate_d:g}",
        )
        for phase in schedule.phases
        if phase.start < schedule.total
    ]
    return table(("phase", "name", "from image", "to image", "batch", "learning rate of G", "of D"), rows)


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown."""
    cells = [list(head), *(list(row) for row in rows)]
    cells.insert(1, ["---"] * len(cells[0]))
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in cells)


def hyperparameters(run: RunContext) -> dict[str, object]:
    """The values that runs are compared by, with full keys; tables as text, and nothing that is null."""
    return {
        key: value
        for key, value in flatten(run.description)
        if key.split(".")[0] in COMPARED and value is not None and not isinstance(value, list)
    }
