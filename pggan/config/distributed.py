"""Keys of training on several ranks: how they meet, and how their gradients are reduced."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pggan.core.errors import UserError, nearest
from pggan.core.validation import require, require_bounds, validated

GRADIENTS = ("fp32", "bf16", "dgc")
DGC_RATIO = 0.1  # the default of gradients.ratio in configs/gradients/dgc.yaml


@dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """Rendezvous of the machines, and restarts when a rank is lost; keys have the names of torchrun's options."""

    nnodes: int = 1
    rdzv_endpoint: str | None = None
    local_addr: str | None = None
    rdzv_timeout_seconds: int = 300
    max_restarts: int = 3
    heartbeat_timeout_seconds: float = 45
    elastic_chunks: int = 4

    def __post_init__(self) -> None:
        require_bounds(self, "distributed.", nnodes=">=1", rdzv_timeout_seconds=">=1", max_restarts=">=0")
        require_bounds(self, "distributed.", heartbeat_timeout_seconds=">=5", elastic_chunks=">=1")
        if self.rdzv_endpoint is not None:
            host, _, port = self.rdzv_endpoint.rpartition(":")
            good = bool(host) and port.isdecimal() and 0 < int(port) < 2**16
            require(good, "distributed.rdzv_endpoint", self.rdzv_endpoint, "HOST:PORT, for example node0:29500")
        elif self.nnodes > 1:
            remedy = "Add distributed.rdzv_endpoint=HOST:PORT to all commands: one machine's address and a free port."
            raise UserError(f"distributed.nnodes={self.nnodes} machines need a rendezvous.", remedy)


@dataclass(frozen=True, kw_only=True)
class DgcConfig:
    """Deep gradient compression."""

    ratio: float
    warmup_images: int

    def __post_init__(self) -> None:
        require_bounds(self, "gradients.", ratio=">0 <=1", warmup_images=">=0")


def dgc_options(options: Mapping[str, Any], *, elastic: bool) -> DgcConfig | None:
    """The checked options of gradients=dgc, None for fp32 and bf16; raises UserError for what does not exist."""
    name = str(options.get("name"))
    if name not in GRADIENTS:
        raise UserError(f"There is no gradients={name}.", nearest(name, GRADIENTS))
    if elastic and name != "fp32":
        raise UserError(f"elastic=true needs exact gradients, not gradients={name}.", "Set gradients=fp32.")
    others = {key: value for key, value in options.items() if key != "name"}
    if name == "dgc":
        return validated(DgcConfig, others, "gradients.")
    if others:
        raise UserError(f"gradients={name} has no key '{next(iter(others))}'.", "gradients=dgc has options.")
    return None
