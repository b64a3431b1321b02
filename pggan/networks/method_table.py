"""Methods of convolution by shape: those that were measured as the fastest here, and the rule for all other shapes."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from pggan.core.architecture import Geometry
from pggan.networks.convolution import IM2COL, WINOGRAD, WINOGRAD2, Method, method_for, plain_method
from pggan.networks.im2col import windows_size
from pggan.networks.winograd import has_whole_tiles

WINOGRADS = {WINOGRAD: 4, WINOGRAD2: 2}  # with the sides of their tiles
MAX_WINDOWS = 2**24  # numbers in the matrix of im2col where no rule asks for it: 64 MiB


class ConvolutionShape(NamedTuple):
    """The facts that the speed of a 3x3 convolution depends on."""

    images: int
    inputs: int  # feature maps
    outputs: int
    height: int  # of an input
    width: int
    geometry: Geometry
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, x: Tensor, kernel: Tensor, geometry: Geometry) -> "ConvolutionShape":
        """The shape of a convolution of images `x` [N, I, H, W] with a kernel [O, I, 3, 3]."""
        images, inputs, height, width = x.shape
        return cls(images, inputs, kernel.shape[0], height, width, geometry, x.dtype)

    def __str__(self) -> str:
        """Its name in files: 16x512x4x4-up-256 takes [16, 512, 4, 4] to 256 feature maps; bf16: -bfloat16 follows."""
        name = f"{self.images}x{self.inputs}x{self.height}x{self.width}-{self.geometry.name}-{self.outputs}"
        return name if self.dtype is torch.float32 else f"{name}-{str(self.dtype).removeprefix('torch.')}"

    def methods(self) -> list[Method]:
        """The methods that can be used: first that of the rule on a CPU."""
        x = torch.empty(1, dtype=self.dtype).expand(self.images, self.inputs, self.height, self.width)
        found = [method_for(x, torch.empty(1).expand(self.outputs, self.inputs, 3, 3), self.geometry), plain_method(x)]
        if windows_size(x, self.outputs, self.geometry) <= MAX_WINDOWS:
            found.append(IM2COL)
        if self.dtype is torch.float32:  # Winograd's transformations amplify the rounding of half precision
            found += [method for method, side in WINOGRADS.items() if has_whole_tiles(x, self.geometry, side)]
        return list(dict.fromkeys(found))


class MethodTable:
    """Methods by shape.  Two tables are never equal: what is kept by the options of a step belongs to one of them."""

    def __init__(self, methods: Mapping[ConvolutionShape, Method] | None = None) -> None:
        self._methods = {**(methods or {})}

    def method_for(self, x: Tensor, kernel: Tensor, geometry: Geometry) -> Method:
        """The method for images `x` [N, I, H, W] and a kernel [O, I, 3, 3]."""
        chosen = self._methods.get(ConvolutionShape.of(x, kernel, geometry)) if self._methods else None
        return chosen or method_for(x, kernel, geometry)

    def names(self) -> dict[str, str]:
        """The names of the methods by those of the shapes."""
        return {str(shape): method.name for shape, method in self._methods.items()}


class ShapeRecorder(MethodTable):
    """Notes the shapes that it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[ConvolutionShape] = set()

    def method_for(self, x: Tensor, kernel: Tensor, geometry: Geometry) -> Method:
        self.shapes.add(ConvolutionShape.of(x, kernel, geometry))
        return super().method_for(x, kernel, geometry)


BY_RULE = MethodTable()
