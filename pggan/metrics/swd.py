"""Sliced Wasserstein distance between patches of a Laplacian pyramid (Karras et al. 2018, section 5, official code).

At each level, 128 patches of 7x7 pixels are cut from each image, and normalised per channel over all patches of a set.
The patches of both sets (fakes and reals) are projected onto 512 random unit vectors.  The distance along a vector is
the mean absolute difference between the sorted projections.  SWD is the mean over all vectors, times 1000.

The value `swd_floor` is the SWD between two halves of the reals.  A perfect generator reaches `swd_floor`, not 0.

Unlike the official code, this code does not flip reals, or repeat grayscale images to three channels.  Patch corners
and unit vectors are the same in each evaluation, so that equal sets have the distance 0.  This code also supports 8x8
images (one level).  This code does not divide channels with zero variance by their standard deviation.
"""

import tempfile
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.architecture import resolutions_between
from pggan.core.errors import UserError
from pggan.core.rng import generator_for
from pggan.metrics import Metric, Task, label
from pggan.metrics.images import Collector, separable_filter

PATCHES = 128
SIDE = 7
MIN_LEVEL = 16
DIRECTIONS = 4 * 128
AT_ONCE = 32  # Patches are projected onto 32 unit vectors at once, which takes 268 MB of memory for 16384 images.
BINOMIAL = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)


def blur(images: Tensor) -> Tensor:
    """Filter images [N, C, S, S] with the kernel BINOMIAL and reflection padding."""
    return separable_filter(F.pad(images, (2, 2, 2, 2), mode="reflect"), BINOMIAL)


def half(images: Tensor) -> Tensor:
    """Downsample: blur, and keep every second pixel.  [N, C, S, S] -> [N, C, S/2, S/2]"""
    return blur(images)[:, :, ::2, ::2]


def double(images: Tensor) -> Tensor:
    """Upsample: put zeros between the pixels, blur, multiply by 4.  [N, C, S, S] -> [N, C, 2S, 2S]"""
    count, channels, side, _ = images.shape
    spread = images.new_zeros(count, channels, 2 * side, 2 * side)
    spread[:, :, ::2, ::2] = images
    return 4 * blur(spread)


def laplacian_pyramid(images: Tensor) -> Iterator[Tensor]:
    """Yield the Laplacian pyramid's levels for float32 images [N, C, R, R]; the last level is the low-pass image."""
    while images.shape[-1] > MIN_LEVEL:
        smaller = half(images)
        yield images - double(smaller)
        images = smaller
    yield images


def cut_patches(level: Tensor, corners: Tensor) -> Tensor:
    """Cut patches [N, P, C, 7, 7] from images [N, C, S, S]; `corners` [2, N, P]: row and column of top left pixels."""
    windows = level.unfold(2, SIDE, 1).unfold(3, SIDE, 1)  # a view [N, C, S-6, S-6, 7, 7]; no copy
    images = torch.arange(len(level), device=level.device)[:, None]
    patches: Tensor = windows[images, :, corners[0], corners[1]]
    return patches


def corners_of(block: int, count: int, side: int) -> Tensor:
    """Draw random rows and columns [2, count, 128] of 128 patches in each of `count` images; `block` is the seed."""
    generator = generator_for(0, f"swd patches {side}", block)
    corners: Tensor = torch.randint(side - SIDE + 1, (2, count, PATCHES), generator=generator)
    return corners


def random_directions(size: int, side: int) -> Tensor:
    """Random unit vectors, as columns of a matrix [size, DIRECTIONS], for the `side` x `side` level of the pyramid."""
    directions = torch.randn(size, DIRECTIONS, generator=generator_for(0, "swd directions", side), dtype=torch.float64)
    units: Tensor = directions / directions.norm(dim=0)
    return units.float()


class PatchCollector(Collector):
    """Stores this rank's patches in temporary files."""

    def __init__(self, count: int, task: Task) -> None:
        resolution = task.reals.resolution
        self.count, self.channels, self.partition = count, task.reals.pyramid.channels, task.partition
        self.starts = [block.start for block in self.partition.own(count)]
        self.levels = resolutions_between(min(MIN_LEVEL, resolution), resolution)[::-1]
        self.patches: dict[int, list[Tensor]] = {side: [] for side in self.levels}
        self.sums: dict[int, list[Tensor]] = {side: [] for side in self.levels}  # [N, 2, C]: sums, sums of squares

    def add(self, images: Tensor) -> None:
        for side, level in zip(self.levels, laplacian_pyramid(images.float()), strict=True):
            # A shorter last block draws corners for a full block too, so that an image's corners are always the same.
            corners = corners_of(self.starts[len(self.patches[side])], self.partition.size, side)[:, : len(images)]
            patches = stored(cut_patches(level, corners.to(images.device)).cpu())
            self.patches[side].append(patches)
            values = patches.double().transpose(1, 2).flatten(2)  # [N, C, P * 49]
            self.sums[side].append(torch.stack([values.sum(2), values.square().sum(2)], 1))

    def normalise(self, side: int) -> None:
        """Normalise the patches of the `side` x `side` level in place: mean 0 and standard deviation 1 per channel."""
        sums = self.partition.all_gather(self.sums[side]).sum(0) / (self.count * PATCHES * SIDE**2)  # [2, C]
        mean = sums[0]
        deviation = (sums[1] - mean.square()).clamp(min=0).sqrt()
        deviation[deviation == 0] = 1
        shape = (-1, 1, 1)
        for block in self.patches[side]:
            block.sub_(mean.float().view(shape)).div_(deviation.float().view(shape))

    def project(self, side: int, directions: Tensor) -> Tensor:
        """Project all ranks' patches onto K unit vectors `directions` [C * 49, K]; returns [K, number of patches]."""
        device = self.partition.group.device
        there = directions.to(device)
        projected = [(block.to(device).flatten(2) @ there).cpu() for block in self.patches[side]]
        return self.partition.all_gather(projected).flatten(0, 1).to(device).T.contiguous()


def stored(block: Tensor) -> Tensor:
    """Move a float32 tensor to a memory-mapped temporary file; raises UserError if the disk is full."""
    try:
        with tempfile.NamedTemporaryFile() as file:
            # The data are written before mapping, because on a full disk, a write to mapped memory kills the process.
            file.write(block.numpy().tobytes())
            file.flush()
            # Unlike np.memmap, torch.from_file keeps no file open, so many blocks don't exceed the limit of open files.
            return torch.from_file(file.name, shared=True, size=block.numel()).view(block.shape)
    except OSError as error:
        problem = f"The images' patches can't be stored in {tempfile.gettempdir()}: {error.strerror}."
        raise UserError(problem, "Use fewer images (count=), or set TMPDIR to a directory with more space.") from error


def distances(one: PatchCollector, other: PatchCollector) -> dict[str, float]:
    """SWD at each level, and the mean over all levels; all ranks call this function."""
    found = {str(side): distance(one, other, side) for side in one.levels}
    return found | {"mean": sum(found.values()) / len(found)}


def distance(one: PatchCollector, other: PatchCollector, side: int) -> float:
    """SWD at one level, between two sets of equally many images; all ranks call this function."""
    for collector in (one, other):
        collector.normalise(side)
    directions = random_directions(one.channels * SIDE**2, side)
    found: list[float] = []
    for some in torch.split(directions, AT_ONCE, 1):
        for pair in zip(one.project(side, some), other.project(side, some), strict=True):
            # On a CPU, NumPy sorts three times as fast as PyTorch.
            a, b = (np.sort(row.numpy()) if row.is_cpu else row.sort().values.cpu().numpy() for row in pair)
            found.append(float(np.abs(a - b).mean(dtype=np.float64)))
    return 1000 * sum(found) / DIRECTIONS


class SlicedWasserstein(Metric):
    """SWD per level and on average: `swd` between fakes and reals, `swd_floor` between two halves of the reals."""

    paper_images = 16_384
    least_images = 16  # With fewer than 16 reals, SWD between two halves of the reals would be noise.
    least_resolution = 8  # A patch of 7x7 pixels does not fit into an image of 4x4 pixels.
    decides = "swd/mean"

    def __init__(self, task: Task, count: int) -> None:
        super().__init__(task, count)
        self.patches = task.collectors[self] = PatchCollector(count, task)

    def values(self) -> dict[str, float]:
        found = distances(self.patches, self._of_reals(self.count))
        half = min(self.count, self.task.reals.pyramid.images // 2)  # `swd_floor` compares two halves of the reals.
        key = "swd_floor", half
        floor = self.task.once(key, lambda: distances(self._of_reals(half), self._of_reals(half, first=half)))
        named = {label(f"swd/{level}", "patches", self.count): value for level, value in found.items()}
        return named | {label(f"swd_floor/{level}", "patches", half): value for level, value in floor.items()}

    def _of_reals(self, count: int, first: int = 0) -> PatchCollector:
        return self.task.shown_reals(PatchCollector(count, self.task), first)
