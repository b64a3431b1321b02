"""Find the faces in the photographs of a source.  Only functions that look at pixels import torch."""

import multiprocessing
from dataclasses import replace
from itertools import chain

import numpy as np
from PIL import Image

from pggan.data.image_file import BadImage, decode, read_header, to_pil
from pggan.data.report import NO_FACE
from pggan.data.sources import Entry, Source
from pggan.data.workers import Workers

SECOND = "#2"  # ending of the name of a photograph's second face
SIDE = 512  # pixels: photographs are reduced to this length of their longer side before faces are looked for


def with_found_faces(source: Source, workers: Workers) -> Source:
    """`source` with an entry for each face in its photographs; a photograph without a face is a bad file.

    Raises UserError if the package with the detector's weights is missing.
    """
    from pggan.data import mtcnn

    for network in mtcnn.NETWORKS:
        mtcnn.weights(network)
    found = workers.in_order("Finding faces", faces_of, source.in_reading_order())
    return replace(source, entries=list(chain.from_iterable(found)))


def faces_of(entry: Entry) -> list[Entry]:
    """An entry for each face in the photograph `entry`, the largest face first; or one entry with a problem."""
    import torch

    from pggan.data.mtcnn import find_faces

    if multiprocessing.parent_process() is not None:
        torch.set_num_threads(1)  # each core has a worker process of its own
    if entry.problem is not None:
        return [entry]
    try:
        header, pixels = read_header(entry.file), decode(entry.file, 3, SIDE)[0]
    except BadImage as bad:
        return [entry._replace(problem=str(bad))]
    sides = np.array(pixels.shape[1::-1])
    small = np.ceil(sides * min(SIDE / max(sides), 1)).astype(int)
    scale = max(header.width, header.height) / max(sides) * sides / small
    reduced = to_pil(pixels).resize(small.tolist(), Image.Resampling.BOX)
    faces = [(points + 0.5) * scale - 0.5 for points in find_faces(reduced)]
    names = [entry.name, *(f"{entry.name}#{number}" for number in range(2, len(faces) + 1))]
    found = [entry._replace(name=name, face=face) for name, face in zip(names, faces, strict=False)]
    return found or [entry._replace(problem=NO_FACE)]
