"""Keys of `pggan export` and `import`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pggan.config.parse import require_checkpoint
from pggan.core.errors import UserError

ExportFormat = StrEnum("ExportFormat", "safetensors onnx torch hf web")


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """A generator for other programs."""

    run: str
    checkpoint: Any
    format: ExportFormat
    out: str
    resolution: int | None
    alpha: float | None
    license: str | None
    data_statement: str | None
    evaluation: str | None
    push: str | None
    private: bool
    directions: str | None
    runtime: str | None

    def __post_init__(self) -> None:
        require_checkpoint(self.checkpoint)
        of_the_folder = ("license", "data_statement", "evaluation", "push")
        given = [name for name in of_the_folder if getattr(self, name) is not None]
        if given and self.format is not ExportFormat.hf:
            raise UserError(f"{given[0]}= belongs to a model card.", "Add format=hf, or leave it out.")
        of_the_page = [name for name in ("directions", "runtime") if getattr(self, name) is not None]
        if of_the_page and self.format is not ExportFormat.web:
            raise UserError(f"{of_the_page[0]}= belongs to a page.", "Add format=web, or leave it out.")


@dataclass(frozen=True, kw_only=True)
class ImportConfig:
    """A generator of another program."""

    source: str
    out: str
