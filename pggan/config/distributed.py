"""Keys of training with several processes."""

from dataclasses import dataclass

from pggan.core.errors import UserError
from pggan.core.validation import require


@dataclass(frozen=True, kw_only=True)
class WorkersConfig:
    """How processes find each other, and what happens when one is lost."""

    nodes: int
    rendezvous: str | None
    address: str | None
    join_seconds: int
    shards: int
    restarts: int
    patience_seconds: float

    def __post_init__(self) -> None:
        require(self.nodes >= 1, "workers.nodes", self.nodes, "at least 1")
        require(self.join_seconds >= 1, "workers.join_seconds", self.join_seconds, "at least 1")
        require(self.shards >= 1, "workers.shards", self.shards, "at least 1")
        require(self.restarts >= 0, "workers.restarts", self.restarts, "at least 0")
        require(self.patience_seconds >= 5, "workers.patience_seconds", self.patience_seconds, "at least 5")
        if self.nodes > 1 and self.rendezvous is None:
            raise UserError(
                f"workers.nodes={self.nodes} machines have to meet somewhere.",
                "Add workers.rendezvous=HOST:PORT, with the address of one of them and a free port, the same on all.",
            )
        if self.rendezvous is not None:
            host, _, port = self.rendezvous.rpartition(":")
            good = bool(host) and port.isdecimal() and 0 < int(port) < 2**16
            require(good, "workers.rendezvous", self.rendezvous, "HOST:PORT, for example node0:29500")
