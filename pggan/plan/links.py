"""How long devices take to add up a gradient: a model of latency and bandwidth.

n devices in a ring, each with a link of its own.  An all-reduce sends 2 (n - 1) messages with 1/n of the gradient
each; an all-gather sends n - 1 messages with all that one device has.
Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations", section 3.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

SENT_BYTES = 3  # of one number of a compressed gradient: its position in a block in 16 bits, its value in 8


@dataclass(frozen=True)
class Link:
    """The connection from one device to the next."""

    bytes_per_second: float  # in one direction, while the other one is busy too
    latency_seconds: float  # of one message
    source: str


# Of line rates, 92 % are left for the data.  Latencies are those of NCCL's cost model (ring, Simple: 3.6, 5.7 and 15
# microseconds for NVLink, PCIe and network cards with RDMA); through sockets 55, half of a round trip measured at
# 1 Gbit/s, and a guess of 30 for faster cards.
LINKS = {
    "nvlink": Link(400e9, 3.6e-6, "NVLink 4, 450 GB/s each way; all-reduces measured at 360 to 480"),
    "pcie": Link(12e9, 5.7e-6, "PCIe 4.0 x16, 31.5 GB/s each way, through the host's memory"),
    "400g": Link(0.92 * 50e9, 15e-6, "400 Gbit/s InfiniBand or RoCE, a card per device"),
    "100g": Link(0.92 * 12.5e9, 15e-6, "100 Gbit/s with RDMA, a card per device"),
    "25g": Link(0.92 * 3.125e9, 30e-6, "25 Gbit/s Ethernet through sockets"),
    "10g": Link(0.92 * 1.25e9, 30e-6, "10 Gbit/s Ethernet through sockets"),
    "1g": Link(0.92 * 0.125e9, 55e-6, "1 Gbit/s Ethernet through sockets"),
}


class Reduction(StrEnum):
    """How gradients are added up."""

    fp32 = "fp32"  # all-reduce of float32
    bf16 = "bf16"  # all-reduce of bfloat16
    dgc = "dgc"  # all-gather of the largest numbers and their positions (Lin et al. 2018, deep gradient compression)


@dataclass(frozen=True)
class Network:
    """A link, and what is sent over it."""

    link: Link
    reduction: Reduction
    ratio: float  # share of a gradient's numbers that dgc sends

    def seconds(self, devices: int, numbers: int) -> float:
        """The time until every one of `devices` has the sum of their gradients of `numbers` numbers."""
        if self.reduction is Reduction.dgc:
            messages, size = devices - 1, float(SENT_BYTES * ceil(self.ratio * numbers))
        else:
            messages, size = 2 * (devices - 1), (4 if self.reduction is Reduction.fp32 else 2) * numbers / devices
        return messages * (self.link.latency_seconds + size / self.link.bytes_per_second)
