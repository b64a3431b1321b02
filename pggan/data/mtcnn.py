"""Find faces with MTCNN: three small networks, with the weights of the package `mtcnn`.

Source: Zhang et al. 2016, Joint Face Detection and Alignment using Multitask Cascaded Convolutional Networks.
A box is (left, top, right, bottom) in pixels.
"""

from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import nms, roi_align

from pggan.core.errors import UserError
from pggan.data.face_crop import Landmarks

SMALLEST = 24  # side of the smallest box that the search finds, in pixels
SEARCH_STEP = 0.5**0.5  # each step of the search shrinks the photograph by this factor, to find larger faces


class Network(NamedTuple):
    """One of the three networks of MTCNN."""

    file: str
    sha256: str
    side: int  # side of the input images, in pixels
    least_score: float  # only boxes with a higher score are kept
    most_shared: float  # IoU threshold of non-maximum suppression
    pools: tuple[int, ...]  # size of the pooling after each convolution; 0 means no pooling


NETWORKS = SEARCH, REFINE, FINISH = (
    Network("pnet.lz4", "ea6b0c3e685ebee3165326ad6484acc95f2ef78f1c94fbf40a55704fa989f7b5", 12, 0.6, 0.7, (2, 0, 0)),
    Network("rnet.lz4", "cb00e6460f3c98b0bfafaba3c0a0ded4bdf6e62cee7174d969e8670d7e757fee", 24, 0.7, 0.7, (3, 3, 0)),
    Network("onet.lz4", "94f6ea2f4cf985275ee958cdd762d17b6009348a4fb9d8c6be39ba73ffd22ca3", 48, 0.9, 0.3, (3, 3, 2, 0)),
)


@torch.inference_mode()
def find_faces(image: Image.Image) -> list[Landmarks]:
    """Return the landmarks of each face in a colour image, the largest face first."""
    boxes, _ = refined(to_tensor(image), search(image), REFINE)
    boxes, points = refined(to_tensor(image), boxes, FINISH)
    order = (boxes[:, 0] - boxes[:, 2]).argsort()
    return [np.delete(five, 2, axis=0) - 0.5 for five in points[order].double().numpy()]  # without the nose


def search(image: Image.Image) -> Tensor:
    """Return boxes [N, 4] that may hold faces; the first network searches `image` at several scales."""
    size, scale = torch.tensor(image.size), SEARCH.side / SMALLEST
    boxes, scores = [torch.empty(0, 4)], [torch.empty(0)]
    while min(shape := (size * scale).round().int().tolist()) >= SEARCH.side:
        changes, values = outputs(SEARCH, to_tensor(image.resize(shape, Image.Resampling.BOX)))
        rows, columns = torch.where(values[0] > SEARCH.least_score)
        corners = 2 * torch.stack([columns, rows], 1)  # neighbouring outputs stand for boxes 2 pixels apart
        found = torch.cat([corners, corners + SEARCH.side], 1) * (size / torch.tensor(shape)).repeat(2)
        boxes.append(found + changes[0, :, rows, columns].T * (found[:, 2:] - found[:, :2]).repeat(1, 2))
        scores.append(values[0, rows, columns])
        scale *= SEARCH_STEP
    return torch.cat(boxes)[nms(torch.cat(boxes), torch.cat(scores), SEARCH.most_shared)]


def refined(image: Tensor, boxes: Tensor, network: Network) -> tuple[Tensor, Tensor]:
    """Drop boxes in which `network` sees no face, and refine the others; returns boxes [N, 4], landmarks [N, 5, 2]."""
    middle, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]).amax(1, keepdim=True) / 2
    boxes = torch.cat([middle - half, middle + half], 1)  # each box becomes a square
    crops = roi_align(image, [boxes], network.side, sampling_ratio=2, aligned=True)
    changes, *shares, scores = outputs(network, crops)
    passed = torch.where(scores > network.least_score)[0]
    new = (boxes + changes * 2 * half)[passed]
    keep = nms(new, scores[passed], network.most_shared)
    shares = shares or [changes.new_zeros(len(boxes), 10)]
    points = boxes[:, None, :2] + shares[0].view(-1, 2, 5).mT * 2 * half[:, None]
    return new[keep], points[passed][keep]


def to_tensor(image: Image.Image) -> Tensor:
    """Convert a Pillow image to a tensor [1, 3, H, W] in [0, 255]."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()


def outputs(network: Network, images: Tensor) -> list[Tensor]:
    """Run `network` on images [N, 3, H, W] in [0, 255]; returns box corrections, landmarks, and scores."""
    layers, x = list(weights(network)), (images - 127.5) / 128
    x = x.contiguous(memory_format=torch.channels_last)  # channels_last makes pooling ten times as fast
    for pool in network.pools:
        weight, bias, slope = layers.pop(0), layers.pop(0), layers.pop(0)
        x = F.prelu(F.conv2d(x, weight.permute(3, 2, 0, 1), bias), slope.flatten())
        x = F.max_pool2d(x, pool, 2, ceil_mode=True) if pool else x
    if network is not SEARCH:
        x = x.permute(0, 3, 2, 1).flatten(1)  # the dense layer's weights expect features in the order [N, W, H, C]
        x = F.prelu(x @ layers.pop(0) + layers.pop(0), layers.pop(0))
    found = []
    while layers:
        weight, bias = layers.pop(0), layers.pop(0)
        found.append(F.conv2d(x, weight.permute(3, 2, 0, 1), bias) if network is SEARCH else x @ weight + bias)
    return [*found[:-1], found[-1].softmax(1)[:, 1]]


@lru_cache
def weights(network: Network) -> list[Tensor]:
    """Load a network's weights, first layer first; raises UserError if the packages of `pggan[faces]` are missing."""
    try:
        import joblib

        (folder,) = getattr(find_spec("mtcnn"), "submodule_search_locations", None) or [""]
        path = Path(folder, "assets", "weights", network.file)
        # A joblib file is a pickle, which can run code, so only a file with the known checksum is loaded.
        if sha256(path.read_bytes()).hexdigest() == network.sha256:
            return [torch.from_numpy(np.asarray(array)) for array in joblib.load(path)]
    except (ImportError, OSError, ValueError):  # joblib raises ValueError if lz4 is missing
        pass
    problem = "crop=faces needs the packages mtcnn 1.0.0, joblib and lz4."
    remedy = "Install these packages: pip install 'pggan[faces]'. Or take the middle of each photograph: crop=center."
    raise UserError(problem, remedy)
