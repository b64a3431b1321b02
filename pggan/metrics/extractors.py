"""Feature extractors, which users choose by a name in EXTRACTORS, or by MODULE:FUNCTION.

FUNCTION() returns a torch module that computes features [N, F] of images uint8 [N, 3, R, R].
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
CHUNK = 32  # images per forward pass
PIXEL_SIDE = 32
INCEPTION_SHA256 = "6726825d"  # The SHA-256 of torch-fidelity's Inception weights begins with 6726825d.
INCEPTION_FILE = f"weights-inception-2015-12-05-{INCEPTION_SHA256}.pth"
INCEPTION_URL = f"https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/{INCEPTION_FILE}"


@dataclass(frozen=True)
class Extractor:
    """A feature extractor; grayscale images are repeated to three channels, and a fourth channel is dropped."""

    name: str
    network: Callable[[Tensor], Any]  # returns features [N, F], or a tuple whose first item is features [N, F]

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Return features [N, F], float32 on the CPU, of uint8 images [N, C, R, R]; raises UserError unless finite."""
        colour = images[:, :3] if images.shape[1] >= 3 else images[:, :1].expand(-1, 3, -1, -1)
        found = [self.network(chunk) for chunk in torch.split(colour, CHUNK)]
        features = torch.cat([one[0] if isinstance(one, tuple) else one for one in found]).float().cpu()
        if features.ndim != 2 or not features.isfinite().all():
            problem = f"Extractor {self.name} gives the shape {list(features.shape)}, or NaN or infinite numbers."
            raise UserError(problem, "Extractors have to return finite features [N, F]: check network and weights.")
        return features

    def features_of_mirrored(self, images: Tensor) -> Tensor:
        return self.features(images.flip(-1))


def load_extractor(name: str, device: torch.device) -> Extractor:
    """Load an extractor; raises UserError if the name is unknown, or if weights or packages are missing."""
    network = find("extractor", name, EXTRACTORS)()
    if isinstance(network, nn.Module):
        network.requires_grad_(False).train(False).to(device)
    return Extractor(name.replace(":", "."), network)


class Resized(nn.Module):
    """Resizes images (bicubic, antialiased), clips pixels to [0, 255], divides them by `scale`, and calls `network`."""

    def __init__(self, network: nn.Module, side: int, scale: float = 1.0) -> None:
        super().__init__()
        self.network, self.side, self.scale = network, side, scale

    def forward(self, images: Tensor) -> Tensor:
        size = (self.side, self.side)
        resized = F.interpolate(images.float(), size=size, mode="bicubic", antialias=True).clamp(0, 255)
        features: Tensor = self.network(resized / self.scale)
        return features.flatten(1)


def efficientnet_lite0() -> nn.Module:
    """EfficientNet-Lite0: 1280 features of images resized to 128x128."""
    return Resized(load_efficientnet_lite0(), SIDE)  # EfficientNet-Lite0 scales pixels itself.


def pixels() -> Callable[[Tensor], Tensor]:
    """Return an extractor whose features are the pixels of an image, average-pooled to at most 32x32."""
    return box_means


def box_means(images: Tensor) -> Tensor:
    """Average-pool images to at most 32x32; the distance of two results is the RMS difference of pixels in [0, 1]."""
    means = F.adaptive_avg_pool2d(images.float(), min(PIXEL_SIDE, images.shape[-1])).flatten(1)
    scaled: Tensor = means / (255 * float(means.shape[1]) ** 0.5)
    return scaled


def inception() -> nn.Module:
    """The Inception network of the original FID (2048 features); raises UserError if the weights can't be loaded."""
    try:
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
    except ImportError as error:
        remedy = 'Install it: pip install "pggan[metrics]".'
        raise UserError("extractor=inception needs the package torch-fidelity.", remedy) from error
    path = Path(torch.hub.get_dir()) / "checkpoints" / INCEPTION_FILE
    try:
        torch.hub.load_state_dict_from_url(INCEPTION_URL, weights_only=True)
        # With other weights, FIDs could not be compared with published FIDs.
        if not file_sha256(path).startswith(INCEPTION_SHA256):
            raise ValueError(f"{path} has a wrong SHA-256")
    except Exception as error:  # A damaged file may raise any exception.
        remedy = f"Download {INCEPTION_URL} to {path}. Or measure kid with another extractor=."
        raise UserError(f"The Inception weights of the FID can't be loaded: {error}.", remedy) from error
    network: nn.Module = FeatureExtractorInceptionV3("fid", ["2048"], feature_extractor_weights_path=str(path))
    return network
