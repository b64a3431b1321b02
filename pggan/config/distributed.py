"""Keys of training on several ranks."""

from dataclasses import dataclass

from pggan.core.errors import UserError
from pggan.core.validation import require, require_bounds


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
