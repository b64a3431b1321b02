"""How a run scales to many devices, by a model: compute is shared, gradients are added up, neither overlaps the other.

B batch, n devices.  Strong scaling keeps the batch: every device takes a part of it, made of whole groups of minibatch
stddev; devices beyond B / group are idle and take no part in the reduction.  Weak scaling keeps the images per device:
the batch grows to n B, and the same images take 1/n of the updates.  Every update adds up the gradients of D and of G.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pggan.plan.links import Network

MOST_DEVICES = 1024  # up to which the number at which communication dominates is searched for


class Scaling(StrEnum):
    """What stays the same when devices are added."""

    strong = "strong"  # the batch
    weak = "weak"  # the images per device


@dataclass(frozen=True)
class Load:
    """The work of one phase on one device."""

    updates: int
    batch: int
    group: int  # images that stay together
    seconds: float  # of an update
    fixed_seconds: float  # the part of `seconds` that does not depend on the batch
    numbers: tuple[int, ...]  # in the gradients of an update, network by network

    def compute_seconds(self, devices: int) -> float:
        """The time of an update on the device that has the most images of the batch."""
        groups = -(-self.batch // self.group)
        images = min(-(-groups // devices) * self.group, self.batch)
        return self.fixed_seconds + (self.seconds - self.fixed_seconds) * images / self.batch

    def users(self, devices: int) -> int:
        """The number of `devices` that have images."""
        return min(devices, -(-self.batch // self.group))


@dataclass(frozen=True)
class Scaled:
    """A run on several devices."""

    hours: float
    device_hours: float
    efficiency: float  # hours on one device, over device hours
    communication: float  # share of the time of updates


def split(load: Load, network: Network, devices: int, scaling: Scaling) -> tuple[float, float]:
    """Seconds of compute and of communication in all updates of one phase."""
    if scaling is Scaling.strong:
        updates, compute, reducing = float(load.updates), load.compute_seconds(devices), load.users(devices)
    else:
        updates, compute, reducing = load.updates / devices, load.seconds, devices
    return updates * compute, updates * sum(network.seconds(reducing, numbers) for numbers in load.numbers)


def scaled(loads: Sequence[Load], network: Network, devices: int, scaling: Scaling, rest_seconds: float) -> Scaled:
    """The run of `loads` on `devices`; `rest_seconds` of it (grids, checkpoints) do not get shorter."""
    parts = [split(load, network, devices, scaling) for load in loads]
    compute, communication = (sum(part[index] for part in parts) for index in (0, 1))
    hours = (compute + communication + rest_seconds) / 3600
    alone = (sum(load.updates * load.seconds for load in loads) + rest_seconds) / 3600
    return Scaled(hours, devices * hours, alone / (devices * hours), communication / (compute + communication))


def dominated_from(loads: Sequence[Load], network: Network, scaling: Scaling) -> int | None:
    """The smallest number of devices at which updates communicate longer than they compute; None if there is none."""
    most = max(load.users(MOST_DEVICES) for load in loads) if scaling is Scaling.strong else MOST_DEVICES
    for devices in range(2, most + 1):
        compute, communication = zip(*(split(load, network, devices, scaling) for load in loads), strict=True)
        if sum(communication) > sum(compute):
            return devices
    return None
