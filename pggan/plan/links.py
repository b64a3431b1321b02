"""What it takes to exchange gradients between devices: a model of latency and bandwidth.

n devices, each with a link of its own; k numbers in a gradient.  A ring passes every message to the next device: an
all-reduce sends 2 (n - 1) messages of a share 1/n, an all-gather n - 1 messages of all that one device has.
Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations", section 3.
"""

from dataclasses import dataclass
from enum import Enum
from math import ceil

from pggan.core.errors import UserError, nearest

SENT_BYTES = 3  # of one number of a compressed update: its place in a block in 16 bits, its value in 8


@dataclass(frozen=True)
class Link:
    """How one device reaches the next."""

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


class Reduction(Enum):
    """What is sent of a gradient."""

    fp32 = "fp32"  # all of it
    bf16 = "bf16"  # all of it, in half the bytes
    dgc = "dgc"  # its largest numbers with their positions (Lin et al. 2018, deep gradient compression)


def all_reduce_seconds(link: Link, devices: int, size: float) -> float:
    """Until every device has the sum of what all have, `size` bytes each."""
    return 2 * (devices - 1) * (link.latency_seconds + size / devices / link.bytes_per_second)


def all_gather_seconds(link: Link, devices: int, size: float) -> float:
    """Until every device has what all have, `size` bytes each."""
    return (devices - 1) * (link.latency_seconds + size / link.bytes_per_second)


def reduction_seconds(link: Link, reduction: Reduction, devices: int, numbers: int, ratio: float) -> float:
    """To average a gradient of `numbers` numbers over `devices`; `ratio`: the share of them that dgc sends."""
    if reduction is Reduction.dgc:
        return all_gather_seconds(link, devices, SENT_BYTES * ceil(ratio * numbers))
    return all_reduce_seconds(link, devices, (4 if reduction is Reduction.fp32 else 2) * numbers)


def require_link(name: str) -> None:
    """Raise UserError unless `name` is a network of LINKS."""
    if name not in LINKS:
        raise UserError(f"There is no network '{name}'.", nearest(name, LINKS))
