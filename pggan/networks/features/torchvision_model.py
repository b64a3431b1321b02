"""Networks of torchvision by name, with weights of a file."""

from pathlib import Path

from torch import nn

from pggan.core.errors import UserError, nearest
from pggan.networks.features.weights import read_weights

MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]  # of ImageNet's pixels, in 0 to 255
# Their published weights expect pixels in [-1, 1].  torchvision makes these from pixels that are normalised as those of
# ImageNet, by `transform_input`, which it switches on only where it loads the weights itself.
SYMMETRIC = ("inception_v3", "googlenet")


def new_torchvision_model(name: str) -> nn.Module:
    """The network `name`, whose weights are yet to be loaded; raises UserError for a name that torchvision has not."""
    from torchvision import models  # slow to import

    if name not in models.list_models(module=models):
        raise UserError(f"torchvision has no model '{name}'.", nearest(name, models.list_models(module=models)))
    options = {"init_weights": False} if name in SYMMETRIC else {}
    network: nn.Module = models.get_model(name, weights=None, **options)
    return network


def normalization_of(name: str) -> tuple[list[float], list[float]]:
    """Mean and standard deviation, per channel of pixels in [0, 255], that the layers of the network `name` expect.

    They are those of torchvision's default weights, without any download; ImageNet's where it publishes none.
    """
    from torchvision import models  # slow to import

    if name in SYMMETRIC:
        return [127.5] * 3, [127.5] * 3
    weights = getattr(models.get_model_weights(name), "DEFAULT", None)
    if weights is None:
        return MEAN, STD
    preset = weights.transforms()
    mean, std = ([round(255 * value, 6) for value in values] for values in (preset.mean, preset.std))
    return mean, std


def load_torchvision_model(name: str, weights: str | None, key: str) -> tuple[nn.Module, Path]:
    """The network `name` with the weights of a file, which the key `key` gives, and the file's path.

    Raises UserError for an unknown name, and without a file of its weights.
    """
    network = new_torchvision_model(name)
    if weights is None:
        raise UserError(f"torchvision:{name} needs its weights.", f"Give {key}= a file with the state_dict.")
    stored = read_weights(Path(weights))
    try:
        network.load_state_dict(stored)
    except RuntimeError as error:
        problem = f"{weights} does not hold weights of torchvision's {name}: {str(error).splitlines()[-1].strip()}"
        raise UserError(problem, "Give the state_dict of this model.") from error
    return network, Path(weights)
