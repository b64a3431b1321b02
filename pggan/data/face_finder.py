"""Find faces in photographs, with the positions of eyes and mouth, by MTCNN with the weights of the package `mtcnn`.

Source: Zhang et al. 2016, Joint Face Detection and Alignment using Multitask Cascaded Convolutional Networks.
N boxes; a box is (left, top, right, bottom) in pixels.
"""

import multiprocessing
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image

from pggan.core.errors import UserError
from pggan.data.face_crop import Landmarks
from pggan.data.formats import BadImage, Pixels
from pggan.data.image_file import decode, read_header, to_pil, to_pixels
from pggan.data.report import NO_FACE
from pggan.data.sources import Entry, Source
from pggan.data.workers import Workers

if TYPE_CHECKING:
    from torch import Tensor

SECOND = "#2"  # ending of the name of a photograph's second face
SIDE = 512  # pixels: photographs are reduced to this length of their longer side before the search
SMALLEST = 24  # pixels: side of the smallest box that the search finds in a reduced photograph
SEARCH_STEP = 0.5**0.5  # the search looks at a photograph at scales with this ratio


class Network(NamedTuple):
    """One of MTCNN's three networks.

    file, sha256: its weights; side: the pixels that it sees; least_score: the score above which a box passes;
    most_shared: of two boxes that share more of their union, the worse is dropped; pools: the pooling behind each
    convolution, 0 for none.
    """

    file: str
    sha256: str
    side: int
    least_score: float
    most_shared: float
    pools: tuple[int, ...]


SEARCH = Network(
    "pnet.lz4", "ea6b0c3e685ebee3165326ad6484acc95f2ef78f1c94fbf40a55704fa989f7b5", 12, 0.6, 0.7, (2, 0, 0)
)
REFINE = Network(
    "rnet.lz4", "cb00e6460f3c98b0bfafaba3c0a0ded4bdf6e62cee7174d969e8670d7e757fee", 24, 0.7, 0.7, (3, 3, 0)
)
FINISH = Network(
    "onet.lz4", "94f6ea2f4cf985275ee958cdd762d17b6009348a4fb9d8c6be39ba73ffd22ca3", 48, 0.9, 0.3, (3, 3, 2, 0)
)


def with_found_faces(source: Source, workers: Workers) -> Source:
    """`source` with an entry for each face in its photographs; a photograph without a face is a bad file.

    Raises UserError if the package with the weights is missing.
    """
    for network in (SEARCH, REFINE, FINISH):
        weights(network)
    found = workers.in_order("Finding faces", faces_of, source.in_reading_order())
    return replace(source, entries=list(chain.from_iterable(found)))


def faces_of(entry: Entry) -> list[Entry]:
    """An entry for each face in the photograph `entry`, the largest face first; or one entry with a problem."""
    if entry.problem is not None:
        return [entry]
    try:
        header, pixels = read_header(entry.file), decode(entry.file, 3, SIDE)[0]
    except BadImage as bad:
        return [entry._replace(problem=str(bad))]
    sides = np.array(pixels.shape[1::-1])
    small = np.ceil(sides * min(SIDE / max(sides), 1)).astype(int)
    reduced = to_pixels(to_pil(pixels).resize(small.tolist(), Image.Resampling.BOX))
    scale = max(header.width, header.height) / max(sides) * sides / small
    faces = [(points + 0.5) * scale - 0.5 for points in find_faces(reduced)]
    names = [entry.name, *(f"{entry.name}#{number}" for number in range(2, len(faces) + 1))]
    found = [entry._replace(name=name, face=face) for name, face in zip(names, faces, strict=False)]
    return found or [entry._replace(problem=NO_FACE)]


def find_faces(pixels: Pixels) -> list[Landmarks]:
    """The landmarks of each face in a photograph [H, W, 3], the largest face first."""
    import torch

    if multiprocessing.parent_process() is not None:
        torch.set_num_threads(1)  # each core has a worker process of its own
    with torch.inference_mode():
        image = to_tensor(to_pil(pixels))
        boxes, _ = refined(image, search(to_pil(pixels)), REFINE)
        boxes, points = refined(image, boxes, FINISH)
    order = (boxes[:, 0] - boxes[:, 2]).argsort()
    return [np.delete(five, 2, axis=0) - 0.5 for five in points[order].double().numpy()]  # without the nose


def to_tensor(image: Image.Image) -> "Tensor":
    """A Pillow image as a tensor [1, 3, H, W] in [0, 255]."""
    import torch

    return torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()


def search(image: Image.Image) -> "Tensor":
    """Boxes with scores [N, 5] that may hold faces: the first network looks at all places of `image`, in all sizes."""
    import torch

    size, scale, found = torch.tensor(image.size), SEARCH.side / SMALLEST, [torch.empty(0, 5)]
    while min(shape := (size * scale).round().int().tolist()) >= SEARCH.side:
        changes, scores = outputs(SEARCH, to_tensor(image.resize(shape, Image.Resampling.BOX)))
        rows, columns = torch.where(scores[0] > SEARCH.least_score)
        corners = 2 * torch.stack([columns, rows], 1)  # there is an output for every second pixel
        boxes = torch.cat([corners, corners + SEARCH.side], 1) * (size / torch.tensor(shape)).repeat(2)
        boxes = torch.cat([moved(boxes, changes[0, :, rows, columns].T), scores[0, rows, columns, None]], 1)
        found.append(kept(boxes, 0.5)[0])
        scale *= SEARCH_STEP
    return kept(torch.cat(found), SEARCH.most_shared)[0]


def refined(image: "Tensor", boxes: "Tensor", network: Network) -> tuple["Tensor", "Tensor"]:
    """The boxes [N, 5] that `network` keeps, moved, and the five points [N, 5, 2] that only the last network finds."""
    import torch
    from torch.nn import functional as F

    if not len(boxes):
        return boxes, boxes.new_empty(0, 5, 2)
    middle, half = (boxes[:, :2] + boxes[:, 2:4]) / 2, (boxes[:, 2:4] - boxes[:, :2]).amax(1, keepdim=True) / 2
    boxes = torch.cat([middle - half, middle + half], 1)  # squares
    # Each square is sampled at twice the side that the network sees, then pairs of rows and columns are averaged.
    ticks = torch.arange(0.5, 2 * network.side) / network.side - 1
    places = middle[:, :, None] + half[:, :, None] * ticks  # [N, 2, 2 S], x and y
    x, y = (2 * places / torch.tensor(image.shape[:1:-1])[:, None] - 1).unbind(1)
    grids = torch.stack([x[:, None].expand(-1, len(ticks), -1), y[:, :, None].expand(-1, -1, len(ticks))], 3)
    crops = F.grid_sample(image.expand(len(boxes), -1, -1, -1), grids, align_corners=False)
    changes, *points, scores = outputs(network, F.avg_pool2d(crops, 2))
    passed = scores > network.least_score
    new, keep = kept(torch.cat([moved(boxes, changes), scores[:, None]], 1)[passed], network.most_shared)
    shares = points[0].view(-1, 2, 5).mT if points else boxes.new_empty(len(boxes), 5, 2)
    return new, (boxes[:, None, :2] + shares * 2 * half[:, None])[passed][keep]


def moved(boxes: "Tensor", changes: "Tensor") -> "Tensor":
    """Boxes [N, 4] whose sides a network has moved by `changes` [N, 4], in shares of the boxes' widths and heights."""
    return boxes + changes * (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)


def kept(boxes: "Tensor", most_shared: float) -> tuple["Tensor", "Tensor"]:
    """Boxes [N, 5] without those that share more than `most_shared` of their union with a better one; their numbers."""
    import torch

    corners, areas = boxes[:, :4], (boxes[:, 2:4] - boxes[:, :2]).clamp(min=0).prod(1)
    low = torch.maximum(corners[:, None, :2], corners[None, :, :2])
    high = torch.minimum(corners[:, None, 2:], corners[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    rivals = (shared > most_shared * (areas[:, None] + areas - shared)).numpy()
    keep, free = [], np.ones(len(boxes), bool)
    for number in boxes[:, 4].argsort(descending=True).tolist():
        if free[number]:
            keep.append(number)
            free &= ~rivals[number]
    numbers = torch.tensor(keep, dtype=torch.long)
    return boxes[numbers], numbers


def outputs(network: Network, images: "Tensor") -> list["Tensor"]:
    """The outputs of a network for images [N, 3, H, W] in [0, 255]: changes of boxes, maybe points, and scores."""
    import torch
    from torch.nn import functional as F

    layers, x = list(weights(network)), (images - 127.5) / 128
    x = x.contiguous(memory_format=torch.channels_last)  # pooling takes a tenth of the time of the default format
    for pool in network.pools:
        weight, bias, slope = layers.pop(0), layers.pop(0), layers.pop(0)
        x = F.prelu(F.conv2d(x, weight.permute(3, 2, 0, 1), bias), slope.flatten())
        x = F.max_pool2d(x, pool, 2, ceil_mode=True) if pool else x
    if network is not SEARCH:
        x = x.permute(0, 3, 2, 1).flatten(1)  # the weights come from a program whose images are stored by columns
        x = F.prelu(x @ layers.pop(0) + layers.pop(0), layers.pop(0))
    found = []
    while layers:
        weight, bias = layers.pop(0), layers.pop(0)
        found.append(F.conv2d(x, weight.permute(3, 2, 0, 1), bias) if network is SEARCH else x @ weight + bias)
    return [*found[:-1], found[-1].softmax(1)[:, 1]]


@lru_cache
def weights(network: Network) -> list["Tensor"]:
    """The weights of a network, layer by layer; raises UserError if the packages of the extra `faces` are missing."""
    import torch

    try:
        import joblib

        (folder,) = getattr(find_spec("mtcnn"), "submodule_search_locations", None) or [""]
        path = Path(folder, "assets", "weights", network.file)
        # joblib's files are pickles, which can run code.  This file is the one with the known checksum, or is not read.
        if sha256(path.read_bytes()).hexdigest() == network.sha256:
            return [torch.from_numpy(np.asarray(array)) for array in joblib.load(path)]
    except (ImportError, OSError, ValueError):  # joblib raises ValueError if lz4 is missing
        pass
    problem = "crop=faces needs mtcnn 1.0.0, which finds faces, with joblib and lz4."
    remedy = "Install these packages: pip install 'pggan[faces]'. Or take the middle of each photograph: crop=center."
    raise UserError(problem, remedy)
