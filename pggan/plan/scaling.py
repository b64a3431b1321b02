"""How a run scales to many devices, by a model: compute that is shared, gradients that are exchanged, no overlap.

B batch, n devices.  Strong scaling keeps the batch: every device takes a part of it, made of whole groups of minibatch
stddev, and those beyond B / group have nothing to do.  Weak scaling keeps the images per device: the batch grows to
n B, and the same images take 1/n of the updates.  Every update exchanges the gradients of D and of G.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pggan.plan.links import Link, Reduction, reduction_seconds

MOST_DEVICES = 1024  # up to which is looked for the number at which communication dominates


class Scaling(Enum):
    """What stays the same when devices are added."""

    strong = "strong"  # the batch
    weak = "weak"  # the images per device


@dataclass(frozen=True)
class Load:
    """One phase, as one device has it."""

    updates: int
    batch: int
    group: int  # images that stay together
    seconds: float  # of an update
    fixed_seconds: float  # of it, however few images there are
    numbers: tuple[int, ...]  # in the gradients that are exchanged, one by one

    def compute_seconds(self, devices: int) -> float:
        """Of an update, on the device that has the most images of the batch."""
        groups = -(-self.batch // self.group)
        images = min(-(-groups // devices) * self.group, self.batch)
        return self.fixed_seconds + (self.seconds - self.fixed_seconds) * images / self.batch

    def users(self, devices: int) -> int:
        """How many of the devices have images."""
        return min(devices, -(-self.batch // self.group))


@dataclass(frozen=True)
class Network:
    """A link, and what is sent over it."""

    link: Link
    reduction: Reduction
    ratio: float  # share of the numbers that dgc sends

    def seconds(self, load: Load, devices: int) -> float:
        """Of the exchanges of one update between `devices`."""
        each = (reduction_seconds(self.link, self.reduction, devices, n, self.ratio) for n in load.numbers)
        return sum(each)


@dataclass(frozen=True)
class Scaled:
    """A run on several devices."""

    hours: float
    device_hours: float
    efficiency: float  # hours on one device, over device hours
    communication: float  # share of the time of updates


def split(load: Load, network: Network, devices: int, scaling: Scaling) -> tuple[float, float]:
    """Seconds of computing and of communicating in all updates of one phase."""
    if scaling is Scaling.strong:
        each = load.compute_seconds(devices), network.seconds(load, load.users(devices))
        return load.updates * each[0], load.updates * each[1]
    return load.updates / devices * load.seconds, load.updates / devices * network.seconds(load, devices)


def scaled(loads: Sequence[Load], network: Network, devices: int, scaling: Scaling, rest_seconds: float) -> Scaled:
    """The run of `loads` on `devices`; `rest_seconds` of it (grids, checkpoints) don't get shorter."""
    parts = [split(load, network, devices, scaling) for load in loads]
    computing, communicating = (sum(part[i] for part in parts) for i in (0, 1))
    hours = (computing + communicating + rest_seconds) / 3600
    alone = (sum(load.updates * load.seconds for load in loads) + rest_seconds) / 3600
    share = communicating / (computing + communicating)
    return Scaled(hours, devices * hours, alone / (devices * hours), share)


def dominated_from(loads: Sequence[Load], network: Network, scaling: Scaling) -> int | None:
    """The smallest number of devices whose updates communicate longer than they compute; None if there is none."""
    most = max(load.users(MOST_DEVICES) for load in loads) if scaling is Scaling.strong else MOST_DEVICES
    for devices in range(2, most + 1):
        parts = [split(load, network, devices, scaling) for load in loads]
        if sum(part[1] for part in parts) > sum(part[0] for part in parts):
            return devices
    return None
