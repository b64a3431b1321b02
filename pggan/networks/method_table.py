"""Convolution methods by shape: those that were measured as the fastest here, and a heuristic for all other shapes."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from pggan.core.architecture import Rescaling
from pggan.networks.convolution import IM2COL, WINOGRAD, WINOGRAD2, Method, method_for, plain_method
from pggan.networks.im2col import windows_size
from pggan.networks.winograd import has_whole_tiles

WINOGRADS = {WINOGRAD: 4, WINOGRAD2: 2}  # with the sides of their tiles
MAX_WINDOWS = 2**24  # numbers in the matrix of im2col where no heuristic asks for it: 64 MiB


class ConvolutionShape(NamedTuple):
    """The facts that the speed of a 3x3 convolution depends on."""

    images: int
    inputs: int  # feature maps
    outputs: int
    height: int  # of an input
    width: int
    rescaling: Rescaling
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, x: Tensor, kernel: Tensor, rescaling: Rescaling) -> "ConvolutionShape":
        """The shape of a convolution of images `x` [N, I, H, W] with a kernel [O, I, 3, 3]."""
        images, inputs, height, width = x.shape
        return cls(images, inputs, kernel.shape[0], height, width, rescaling, x.dtype)

    def __str__(self) -> str:
        """Its name in files: 16x512x4x4-up-256 takes [16, 512, 4, 4] to 256 feature maps; bf16: -bfloat16 follows."""
        name = f"{self.images}x{self.inputs}x{self.height}x{self.width}-{self.rescaling.name}-{self.outputs}"
        return name if self.dtype is torch.float32 else f"{name}-{str(self.dtype).removeprefix('torch.')}"

    def methods(self) -> list[Method]:
        """The methods that can be used: first that of the heuristic on a CPU."""
        x = torch.empty(1, dtype=self.dtype).expand(self.images, self.inputs, self.height, self.width)
        found = [method_for(x, torch.empty(1).expand(self.outputs, self.inputs, 3, 3), self.rescaling), plain_method(x)]
        if windows_size(x, self.outputs, self.rescaling) <= MAX_WINDOWS:
            found.append(IM2COL)
        if self.dtype is torch.float32:  # Winograd's transformations amplify the rounding of half precision
            found += [method for method, side in WINOGRADS.items() if has_whole_tiles(x, self.rescaling, side)]
        return list(dict.fromkeys(found))


class MethodTable:
    """Convolution methods by shape.

    Tables are compared by identity, so that functions and CUDA graphs that are cached under one are never used with
    another.
    """

    def __init__(self, methods: Mapping[ConvolutionShape, Method] | None = None) -> None:
        self._methods = {**(methods or {})}

    def method_for(self, x: Tensor, kernel: Tensor, rescaling: Rescaling) -> Method:
        """The method for images `x` [N, I, H, W] and a kernel [O, I, 3, 3]."""
        chosen = self._methods.get(ConvolutionShape.of(x, kernel, rescaling)) if self._methods else None
        return chosen or method_for(x, kernel, rescaling)

    def names(self) -> dict[str, str]:
        """The names of the methods by those of the shapes."""
        return {str(shape): method.name for shape, method in self._methods.items()}


class ShapeRecorder(MethodTable):
    """Notes the shapes that it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[ConvolutionShape] = set()

    def method_for(self, x: Tensor, kernel: Tensor, rescaling: Rescaling) -> Method:
        self.shapes.add(ConvolutionShape.of(x, kernel, rescaling))
        return super().method_for(x, kernel, rescaling)


HEURISTIC = MethodTable()
