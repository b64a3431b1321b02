"""The faces of a trained run as points, for TensorBoard's Projector: by their latents, and by what D sees in them.

N images, Z latent size, H features.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pggan.core.atomic_io import atomic_write, make_directory
from pggan.core.schedule import Phase
from pggan.data.pyramid import ImagePyramid
from pggan.data.reals import to_float
from pggan.networks.networks import Discriminator
from pggan.ops.elementwise import pixel_norm
from pggan.optim.state import State
from pggan.sampling.generate import draw_seeds
from pggan.sampling.images import Pixels, grid, save_png, shrink
from pggan.sampling.latents import seed_latents

CONFIG_FILE = "projector_config.pbtxt"  # where TensorBoard looks for it
FOLDER = Path("samples", "projector")
MAX_FACES = 256
MAX_PIXELS = 2**24  # that are generated: 256 faces of 256x256, 16 of 1024x1024
TILE = 32  # pixels of a point's picture: 256 of them are a few hundred kilobytes
MAX_PIXELS_AT_ONCE = 2**19  # in a batch: 8 images of 256x256
MIN_BATCH, MAX_BATCH = 8, 128  # each of whole groups, whose members D compares


def face_count(resolution: int, reals: int) -> int:
    """The number of fakes that become points, and that of the data's `reals`."""
    return min(MAX_FACES, MAX_PIXELS // resolution**2, reals)


def batch_size(resolution: int) -> int:
    """Images of `resolution` that are drawn or scored at a time: many small ones, which take no longer than one."""
    return min(max(MAX_PIXELS_AT_ONCE // resolution**2, MIN_BATCH), MAX_BATCH)


def write_projector(run_dir: Path, state: State, pyramid: ImagePyramid, phase: Phase) -> None:
    """Write the points of averaged fakes of seeds 0, 1, 2 …, beside reals, their pictures and TensorBoard's list."""
    resolution = phase.resolution
    count, batch = face_count(resolution, pyramid.images), batch_size(resolution)
    fakes = draw_seeds(state.g_ema, count, resolution, phase.alpha, batch_size=batch)
    reals = pyramid.read(resolution, np.arange(count))
    d = state.d.network
    assert isinstance(d, Discriminator), "new_state makes it"
    features, scores = zip(*(features_and_scores(d, images, phase) for images in (fakes, reals)), strict=True)
    names = [f"seed {seed}" for seed in range(len(fakes))], [f"real {number}" for number in range(len(reals))]
    folder = run_dir / FOLDER
    make_directory(folder)
    latents = seed_latents(list(range(count)), state.g_ema.architecture.latent_size)
    _write_points(folder / "latents", pixel_norm(latents).numpy(), fakes, [("name", names[0]), ("score", scores[0])])
    kinds = ["fake"] * len(fakes) + ["real"] * len(reals)
    about = [("name", names[0] + names[1]), ("kind", kinds), ("score", [*scores[0], *scores[1]])]
    _write_points(folder / "features_of_D", np.concatenate(features), np.concatenate([fakes, reals]), about)
    with atomic_write(run_dir / CONFIG_FILE) as temporary:
        temporary.write_text("".join(_entry(name, resolution) for name in ("latents", "features_of_D")))


@torch.no_grad()
def features_and_scores(network: Discriminator, images: Pixels, phase: Phase) -> tuple[NDArray[np.float32], list[str]]:
    """D's last features [N, H] of `images` [N, R, R, C], and its scores [N] as text."""
    device, features, size = network.weights[0].device, [], batch_size(phase.resolution)
    last = network.last_layer(phase.resolution)
    hook = last.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].float().cpu()))
    scores: list[Tensor] = []
    try:
        for batch in np.array_split(images, -(-len(images) // size)):
            pixels = to_float(torch.from_numpy(batch).to(device))
            padded = F.pad(pixels, (0, 0, 0, 0, 0, 0, 0, size - len(batch)), value=0.0)  # to whole groups
            score, _ = network(padded, phase.resolution, phase.alpha)
            scores.append(score[: len(batch)].cpu())
            features[-1] = features[-1][: len(batch)]
    finally:
        hook.remove()
    return torch.cat(features).numpy(), [f"{score:.3f}" for score in torch.cat(scores).tolist()]


def _write_points(
    path: Path, points: NDArray[np.float32], images: Pixels, columns: Sequence[tuple[str, Sequence[str]]]
) -> None:
    """Write `points` [N, H], the pictures of `images` [N, R, R, C] as one square, and a table of what they are."""
    save_png(grid(shrink(images, max(images.shape[1] // TILE, 1)), int(np.ceil(len(images) ** 0.5))), _sprite(path))
    with atomic_write(path.with_suffix(".tsv")) as temporary:
        np.savetxt(temporary, points, fmt="%.4g", delimiter="\t")
    rows = [tuple(name for name, _ in columns), *zip(*(values for _, values in columns), strict=True)]
    with atomic_write(_table(path)) as temporary:
        temporary.write_text("".join("\t".join(row) + "\n" for row in rows))


def _entry(name: str, resolution: int) -> str:
    """A set of points in TensorBoard's list, with paths relative to it."""
    path, side = FOLDER / name, min(resolution, TILE)
    return (
        f'embeddings {{\n  tensor_name: "{name}"\n  tensor_path: "{path.with_suffix(".tsv")}"\n'
        f'  metadata_path: "{_table(path)}"\n'
        f'  sprite {{ image_path: "{_sprite(path)}" single_image_dim: {side} single_image_dim: {side} }}\n}}\n'
    )


def _sprite(path: Path) -> Path:
    return path.with_suffix(".png")


def _table(path: Path) -> Path:
    return path.with_name(f"{path.name}_about.tsv")
