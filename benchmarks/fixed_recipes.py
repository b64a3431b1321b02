"""The keys that `hours=` chooses for known images and hours on a machine whose speed is fixed: one line per recipe.

    python benchmarks/fixed_recipes.py

`benchmarks/identity.py` compares the lines of two checkouts.
"""

import json
from collections.abc import Mapping

from pggan.cli.compose import compose
from pggan.config.train import TrainConfig
from pggan.config.validation import validated
from pggan.core.architecture import resolutions_between
from pggan.core.schedule import PerResolution
from pggan.performance.recipe import Costs, DataFacts, NetworkSizes, Recipe

STEP_SECONDS = {4: 0.0010, 8: 0.0031, 16: 0.0056, 32: 0.0050}  # of an image with 64 feature maps, on two cores
AVATARS = DataFacts(4096, 256, 3, 0, drawn=True, note="avatars")
PORTRAITS = DataFacts(400, 256, 3, 0, drawn=False, note="portraits")
CELEBRITIES = DataFacts(30_000, 1024, 3, 0, drawn=False, note="celebrities")
SITUATIONS = {
    "avatars, 2 cores": (AVATARS, "cpu", 1, (0.083, 0.5, 8)),
    "portraits, 2 cores": (PORTRAITS, "cpu", 1, (0.083, 1, 8)),
    "celebrities, GPU": (CELEBRITIES, "cuda", 200, (1, 24)),
}


def two_cores(times: float = 1) -> Costs:
    """The seconds of an image on a machine so many `times` as fast as two cores.

    Above 32x32, every level takes three times as long as the one below; wider networks take longer by their operations.
    """

    def costs(sizes: NetworkSizes, batch: PerResolution) -> Mapping[int, float]:
        width = (sizes.fmap_max / 64) ** 2 / times
        sides = resolutions_between(4, sizes.resolution)
        return {side: width * STEP_SECONDS.get(side, 0.005 * 3 ** (side.bit_length() - 6)) for side in sides}

    return costs


def main() -> None:
    """Print the name of each recipe, a tab, and its keys."""
    config = validated(TrainConfig, compose("train", ["loss=logistic"]))
    for name, (facts, kind, speed, hours) in SITUATIONS.items():
        for each in hours:
            recipe = Recipe(config, frozenset(), facts, kind, 1, two_cores(speed), 0.94 * 3600 * each)
            recipe.choose()
            chosen = {choice.key: choice.value for choice in recipe.choices}
            print(f"{name}, {each} h\t{json.dumps(chosen, sort_keys=True)}")


if __name__ == "__main__":
    main()
