"""How a run scales to many devices, by a model: compute is shared, gradients are added up, neither overlaps the other.

B batch, n devices.  Strong scaling keeps the batch: every device takes a part of it, made of whole groups of minibatch
stddev; devices beyond B / group are idle and take no part in the reduction.  Weak scaling keeps the images per device:
the batch grows to n B, and the same images take 1/n of the steps.  Every step adds up the gradients of D and of G.

The devices form a ring, each with a link of its own.  An all-reduce sends 2 (n - 1) messages with 1/n of the gradient
each; an all-gather sends n - 1 messages with all that one device has.
Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations", section 3.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import ceil
from typing import NamedTuple

MAX_DEVICES = 1024  # up to which the number at which communication dominates is searched for
SENT_BYTES = 3  # of one number of a compressed gradient: its position in a block in 16 bits, its value in 8

Scaling = StrEnum("Scaling", "strong weak")
# How gradients are added up: by an all-reduce, or an all-gather of the largest numbers and their positions (Lin et al.
# 2018, deep gradient compression).
Reduction = StrEnum("Reduction", "fp32 bf16 dgc")


class Link(NamedTuple):
    """The connection from one device to the next."""

    bytes_per_second: float  # in one direction, while the other one is busy too
    latency_seconds: float  # of one message
    source: str


# Of line rates, 92 % are left for the data.  Latencies are from NCCL's cost model (ring, Simple: 3.6, 5.7 and 15
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


class Interconnect(NamedTuple):
    """A link, and what is sent over it."""

    link: Link
    reduction: Reduction
    ratio: float  # share of a gradient's numbers that dgc sends

    def seconds(self, devices: int, numel: int) -> float:
        """The time until every one of `devices` has the sum of their gradients of `numel` numbers."""
        if self.reduction is Reduction.dgc:
            messages, size = devices - 1, float(SENT_BYTES * ceil(self.ratio * numel))
        else:
            messages, size = 2 * (devices - 1), (4 if self.reduction is Reduction.fp32 else 2) * numel / devices
        return messages * (self.link.latency_seconds + size / self.link.bytes_per_second)


class Load(NamedTuple):
    """The work of one phase on one device."""

    steps: int
    batch: int
    group: int  # images that stay together
    seconds: float  # of a step
    fixed_seconds: float  # the part of `seconds` that does not depend on the batch
    numels: tuple[int, ...]  # in the gradients of a step, network by network

    def compute_seconds(self, devices: int) -> float:
        """The time of a step on the device that has the most images of the batch."""
        groups = -(-self.batch // self.group)
        images = min(-(-groups // devices) * self.group, self.batch)
        return self.fixed_seconds + (self.seconds - self.fixed_seconds) * images / self.batch

    def users(self, devices: int) -> int:
        """The number of `devices` that have images."""
        return min(devices, -(-self.batch // self.group))


def split(loads: Sequence[Load], interconnect: Interconnect, devices: int, scaling: Scaling) -> tuple[float, float]:
    """Seconds of compute and of communication in all steps of `loads`."""
    compute = communication = 0.0
    for load in loads:
        steps, seconds, reducing = load.steps / devices, load.seconds, devices
        if scaling is Scaling.strong:
            steps, seconds, reducing = load.steps, load.compute_seconds(devices), load.users(devices)
        compute += steps * seconds
        communication += steps * sum(interconnect.seconds(reducing, numel) for numel in load.numels)
    return compute, communication


def scaled(loads: Sequence[Load], interconnect: Interconnect, devices: int, scaling: Scaling) -> dict[str, float]:
    """The run of `loads` on `devices`."""
    compute, communication = split(loads, interconnect, devices, scaling)
    hours = (compute + communication) / 3600
    alone = sum(load.steps * load.seconds for load in loads) / 3600
    return {
        "hours": hours,
        "device_hours": devices * hours,
        "efficiency": alone / (devices * hours),
        "communication": communication / (compute + communication),  # share of the time of steps
    }


def communication_bound_from(loads: Sequence[Load], interconnect: Interconnect, scaling: Scaling) -> int | None:
    """The smallest number of devices at which steps communicate longer than they compute; None if there is none."""
    most = max(load.users(MAX_DEVICES) for load in loads) if scaling is Scaling.strong else MAX_DEVICES
    for devices in range(2, most + 1):
        compute, communication = split(loads, interconnect, devices, scaling)
        if communication > compute:
            return devices
    return None
