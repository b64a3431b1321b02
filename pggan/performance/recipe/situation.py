"""The situation that a recipe is chosen for: images, machine, time, and the keys that are given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from pggan.config import TrainConfig
from pggan.core.schedule import PerResolution
from pggan.performance.recipe.choices import GivenKeys
from pggan.performance.recipe.data_facts import DataFacts

SHORT_RUN = 200_000  # images; a run of fewer is a short one
# Resolution of photographs at which D looks at pretrained features, too.  Below, these lost (lab book).
FEATURES_FROM = 64


class Machine(NamedTuple):
    """The devices that a run trains on."""

    kind: str  # cpu, cuda or mps
    ranks: int


class NetworkSizes(NamedTuple):
    """The sizes of networks, and whether D looks at features: with the batch, they decide what an image costs."""

    resolution: int
    fmap_base: int
    fmap_max: int
    features: bool = False  # pretrained ones, from FEATURES_FROM on


# Seconds of an image at every level of networks, with so many images per batch.
Costs = Callable[[NetworkSizes, PerResolution], Mapping[int, float]]


@dataclass(frozen=True)
class Situation:
    """The images, machine, time and keys that a recipe is chosen for.

    Args: config: as composed without choices; seconds: that training may take; other_seconds: of the hours, besides;
    has_lite0: whether the weights of efficientnet-lite0 are installed.
    """

    config: TrainConfig
    given: GivenKeys
    facts: DataFacts
    machine: Machine
    costs: Costs
    seconds: float
    other_seconds: float = 0.0
    has_lite0: bool = True

    def width(self, sizes: NetworkSizes, resolution: int) -> int:
        """The feature maps at `resolution` of networks of these sizes."""
        model = replace(self.config.model, fmap_base=sizes.fmap_base, fmap_max=sizes.fmap_max)
        return model.architecture(sizes.resolution, self.facts.channels, self.facts.num_classes).width(resolution)
