"""3x3 convolutions with few feature maps on GPUs: k neighbouring pixels become one pixel with k times as many maps.

On tensor cores, convolving a few feature maps takes almost as long as convolving 64 (MAPS).  Channels-last images
[N, C, H, W] lie in memory like images [N, k C, H, W / k], whose pixels are packs of k pixels.  The kernel for packs
holds each weight k times, and zeros elsewhere.  With fused resampling, packs of the larger images have 2k pixels.
Shapes: N batch size, H height, W width, S channels of the smaller images (a layer's input or output), L channels of
the larger images.  Without resampling, S counts output channels, and L counts input channels.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.architecture import Rescaling
from pggan.ops.products import side_and_stride

MAPS = 64  # a pack of neighbouring pixels has at most this many feature maps
REACH = 3  # width of a packed kernel, in packs: the left neighbour, the pack itself and the right neighbour


def pack_size(outputs: int, inputs: int) -> int:
    """The number k of pixels per pack, a power of two, for a layer with `inputs` and `outputs` feature maps."""
    return 1 << max(MAPS // max(outputs, inputs), 1).bit_length() - 1


@cache  # cached, because launching several CUDA kernels is slow
def places(k: int, rescaling: Rescaling, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a mask, which is 1 where a packed kernel holds a tap (weight) of the unpacked kernel, and 0 elsewhere.

    Axes: pixel in the smaller image's pack; one of REACH packs of the larger image; pixel in that pack; kernel column.
    Kernel column t links pixel a of the smaller image (input or output) to pixel a * stride + t - 1 of the larger.
    """
    side, stride = side_and_stride(rescaling)
    sizes = (k, REACH, k * stride, side)
    small, pack, large, tap = torch.meshgrid(*(torch.arange(size, device=device) for size in sizes), indexing="ij")
    return (small * stride + tap - 1 == large + (pack - 1) * k * stride).to(dtype)


def pack_kernel(kernel: Tensor, k: int, rescaling: Rescaling) -> Tensor:
    """Convert a kernel from `fuse_resampling`, which is for single pixels, to a kernel for packs of `k` pixels.

    [S, L, 3, 3] -> [k S, k L, 3, 3] or, fused with resampling, [S, L, 4, 4] -> [k S, 2k L, 4, 3]
    """
    taps = kernel.permute(0, 2, 3, 1)  # [S, side, side, L]
    packed = torch.einsum("kplt,ahtb->kahplb", places(k, rescaling, kernel.dtype, kernel.device), taps)
    return packed.reshape(k * taps.shape[0], taps.shape[1], REACH, -1).permute(0, 3, 1, 2)


def with_maps(images: Tensor, maps: int) -> Tensor:
    """View channels-last images with another number of feature maps: [N, C, H, W] -> [N, maps, H, W * C / maps]."""
    count, _, height, _ = images.shape
    return images.permute(0, 2, 3, 1).reshape(count, height, -1, maps).permute(0, 3, 1, 2)


def convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, rescaling: Rescaling) -> Tensor:
    """Convolve `x` [N, I, H, W] with a `kernel` from `pack_kernel`, and add `bias` [O]; returns [N, O, …]."""
    result = (_to_large if rescaling is Rescaling.up else _to_small)(x, kernel, bias, rescaling)
    return result.detach()  # without `detach`, autograd would see a view, which in-place activations may not overwrite


def grad_input(gradient: Tensor, kernel: Tensor, rescaling: Rescaling) -> Tensor:
    """The gradient of `convolve` with respect to `x`: [N, O, …] -> [N, I, H, W]."""
    return (_to_small if rescaling is Rescaling.up else _to_large)(gradient, kernel, None, rescaling)


def grad_weight(x: Tensor, gradient: Tensor, rescaling: Rescaling) -> Tensor:
    """The gradient of `convolve` with respect to `kernel`, in the kernel's shape."""
    small, large = (x, gradient) if rescaling is Rescaling.up else (gradient, x)
    k, (side, stride) = pack_size(gradient.shape[1], x.shape[1]), side_and_stride(rescaling)
    small, large = with_maps(small, k * small.shape[1]), with_maps(large, k * stride * large.shape[1])
    kernel = x.new_empty(small.shape[1], large.shape[1], side, REACH)  # uninitialised: PyTorch reads only the shape
    backward, asked = torch.ops.aten.convolution_backward, [False, True, False]
    gradients = backward(small, large, kernel, None, [stride, 1], [1, 1], [1, 1], False, [0, 0], 1, asked)
    return gradients[1]  # type: ignore[no-any-return]


def _to_small(large: Tensor, kernel: Tensor, bias: Tensor | None, rescaling: Rescaling) -> Tensor:
    (maps, large_maps), (_, stride) = kernel.shape[:2], side_and_stride(rescaling)
    k = large_maps // (stride * large.shape[1])
    bias = None if bias is None else bias.repeat(k)
    return with_maps(F.conv2d(with_maps(large, large_maps), kernel, bias, (stride, 1), 1), maps // k)


def _to_large(small: Tensor, kernel: Tensor, bias: Tensor | None, rescaling: Rescaling) -> Tensor:
    (maps, large_maps), (_, stride) = kernel.shape[:2], side_and_stride(rescaling)
    pixels = maps // small.shape[1] * stride
    bias = None if bias is None else bias.repeat(pixels)
    return with_maps(F.conv_transpose2d(with_maps(small, maps), kernel, bias, (stride, 1), 1), large_maps // pixels)
