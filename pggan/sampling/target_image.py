"""An image of the user's as a generator draws them: square, of its resolution and channels."""

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from pggan.core.errors import UserError
from pggan.data.image_file import MODES, BadImage, ImageFile, ImageSpec, load_image
from pggan.sampling.output.images import Pixels

Picture = str | Path | Image.Image | Pixels  # a file, a PIL image, or bytes [H, W, C] or [H, W]


def read_target(picture: Picture, resolution: int, channels: int) -> Pixels:
    """The middle square of a picture as uint8 [R, R, C], scaled down as in training; raises UserError for others."""
    if channels not in MODES:
        raise UserError(f"No image file has the {channels} channels of this generator.", "Project with another one.")
    try:
        return load_image(_image_file(picture), ImageSpec(resolution, channels, "center"))
    except BadImage as error:
        remedy = f"Give a PNG, JPEG or WebP image of at least {resolution}x{resolution} pixels, or another resolution=."
        raise UserError(f"image={error.path} can't be projected: {error.reason}.", remedy) from error


def _image_file(picture: Picture) -> ImageFile:
    if isinstance(picture, str | Path):
        path = Path(picture)
        return ImageFile(path, lambda: path.open("rb"))
    content = BytesIO()
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(np.atleast_3d(picture).squeeze())
    image.save(content, "PNG")
    return ImageFile(Path("(picture)"), lambda: content)
