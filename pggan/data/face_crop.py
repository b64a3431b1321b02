"""Cut faces out of photographs as FFHQ does: eyes and mouth set position, angle and size of the square crop.

Source: Karras et al. 2019, appendix A (FFHQ), and Karras et al. 2018, appendix C (CelebA-HQ).
"""

from math import floor

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter, ImageStat

from pggan.data.image_file import BadImage, Pixels, to_pil, to_pixels
from pggan.data.writer import block_mean

MAX_SIDE_FACTOR = 4  # if the square around a face is over 4 x the photograph's longer side, the landmarks are wrong
SUPERSAMPLING = 4  # faces are rendered at 4 times the resolution, then averaged over blocks of 4x4 pixels
Point = NDArray[np.float64]
# Landmarks [4, 2] are (x, y) in pixels: left eye, right eye, left and right mouth corner, as the viewer sees them.
Landmarks = NDArray[np.float64]


def face_square(landmarks: Landmarks) -> NDArray[np.float64]:
    """Compute the corners [4, 2] of the square around a face: top left, bottom left, bottom right, top right."""
    left_eye, right_eye, left_mouth, right_mouth = landmarks
    eyes, mouth = (left_eye + right_eye) / 2, (left_mouth + right_mouth) / 2
    across, down = right_eye - left_eye, mouth - eyes
    x = across - _turned(down)  # x points from the square's center to the middle of the square's right side
    x *= max(2.0 * np.hypot(*across), 1.8 * np.hypot(*down)) / max(np.hypot(*x), 1e-9)
    y = _turned(x)
    center = eyes + 0.1 * down
    return np.stack([center - x - y, center - x + y, center + x + y, center + x - y])


def face_side(landmarks: Landmarks) -> float:
    """Compute the side of the square around a face, in pixels of the photograph."""
    square = face_square(landmarks)
    return float(np.hypot(*(square[3] - square[0])))


def align_face(pixels: Pixels, landmarks: Landmarks, resolution: int) -> Pixels:
    """Cut the square around a face out of a photograph [H, W, C]; returns [resolution, resolution, C].

    Raises BadImage if the face is too small, or outside of the photograph.
    """
    square, side = face_square(landmarks), face_side(landmarks)
    if side < resolution:
        raise BadImage(f"a face smaller than {resolution}x{resolution}")
    if side > MAX_SIDE_FACTOR * max(pixels.shape):
        raise BadImage("landmarks far outside the image")
    # To save time, a photograph far larger than needed is scaled down first.
    size, shrink = np.array(pixels.shape[1::-1]), max(1, floor(side / resolution / SUPERSAMPLING))
    reduced = np.maximum(1, np.round(size / shrink)).astype(int)
    square *= reduced / size
    side /= shrink
    border = max(round(side * 0.1), 3)
    low = np.floor(square.min(0)).astype(int) - border
    high = np.ceil(square.max(0)).astype(int) + border
    window = _window(pixels, reduced, low, high, side)
    drawn, quad = resolution * SUPERSAMPLING, tuple((square - low + 0.5).flatten())
    image = window.transform((drawn, drawn), Image.Transform.QUAD, quad, Image.Resampling.BILINEAR)
    return block_mean(to_pixels(image), resolution)


def _turned(vector: Point) -> Point:
    return np.array([-vector[1], vector[0]])  # `vector` turned clockwise by 90 degrees, with the y axis pointing down


def _window(pixels: Pixels, size: Point, low: Point, high: Point, side: float) -> Image.Image:
    """Scale a photograph down to `size`, then cut out the rectangle with corners `low` and `high`, (x, y) in pixels."""
    before, after = np.maximum(-low, 0), np.maximum(high - size, 0)
    start, end, whole = np.maximum(low, 0), np.minimum(high, size), np.array(pixels.shape[1::-1])
    if (end <= start).any():
        raise BadImage("the face lies outside the image")
    corners = np.stack([start, end]) * whole / size
    left, top = first = np.floor(corners[0]).astype(int)
    right, bottom = np.ceil(corners[1]).astype(int)
    part, box = to_pil(pixels[top:bottom, left:right]), tuple((corners - first).flatten())
    window = part.resize(end - start, Image.Resampling.BOX, box)
    if not (before.any() or after.any()):
        return window
    # The photograph has reflection padding.  Farther out, the padding is more blurred and nearer the median colour.
    # In FFHQ's script, the amount of blur and mixing also depends on the width of the padding.
    inside, widths = to_pixels(window), ((before[1], after[1]), (before[0], after[0]), (0, 0))
    padded = np.pad(inside, widths, "reflect" if min(inside.shape[:2]) > 1 else "edge")
    lines = zip(inside.shape[:2], widths, strict=False)
    down, right = (np.pad(np.zeros(length), width, "linear_ramp", end_values=width) for length, width in lines)
    distance = np.maximum(down[:, None], right[None])  # distance of each pixel from the photograph, in pixels
    outside = distance > 0
    share, mixed = (distance[outside] / (0.3 * side)).clip(0, 1)[:, None], padded[outside].astype(float)
    blurred = to_pixels(to_pil(padded).filter(ImageFilter.GaussianBlur(0.02 * side)))
    mixed += (blurred[outside] - mixed) * np.clip(3 * share, 0, 1)
    mixed += (ImageStat.Stat(window).median - mixed) * share
    padded[outside] = np.floor(mixed + 0.5).clip(0, 255)
    return to_pil(padded)
