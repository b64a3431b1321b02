"""Networks of torchvision by name, with weights of a file."""

from pathlib import Path

from torch import nn

from pggan.core.errors import UserError, nearest
from pggan.networks.features.weights import read_weights

MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]  # of ImageNet's pixels, in 0 to 255


def new_torchvision_model(name: str) -> nn.Module:
    """The network `name`, whose weights are yet to be loaded; raises UserError for a name that torchvision has not."""
    from torchvision import models  # slow to import

    if name not in models.list_models(module=models):
        raise UserError(f"torchvision has no model '{name}'.", nearest(name, models.list_models(module=models)))
    options = {"init_weights": False} if name in ("inception_v3", "googlenet") else {}
    network: nn.Module = models.get_model(name, weights=None, **options)
    return network


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
