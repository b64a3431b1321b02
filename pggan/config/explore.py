"""Keys of `pggan explore`."""

from dataclasses import dataclass
from typing import Any

from pggan.config.parse import require_checkpoint
from pggan.core.validation import require_bounds


@dataclass(frozen=True, kw_only=True)
class ExploreConfig:
    """A page in the browser."""

    run: str
    checkpoint: Any
    directions: str | None
    host: str
    port: int | None
    open: bool
    device: str
    threads: int | None

    def __post_init__(self) -> None:
        require_checkpoint(self.checkpoint)
        require_bounds(self, port=">=0 <=65535", threads=">=1")
