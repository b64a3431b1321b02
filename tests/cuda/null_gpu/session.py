"""In every process on the null GPU: what cuDNN and cuSOLVER would do, and what the process asked of the device.

`import torch` calls `install`, because it is the entry point of a backend: see entry_point/.
"""

import ctypes
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from tests.cuda.null_gpu.build import ROOT

_gpu = ctypes.CDLL(None)  # preloaded, so that its functions are everybody's
_gpu.null_gpu_report.restype = ctypes.c_char_p
_gpu.null_gpu_set_total_bytes.argtypes = [ctypes.c_size_t]
_gpu.null_gpu_convolution.argtypes = [ctypes.c_void_p]
_Watcher = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
_watchers = []  # for good: another thread may have read one that is no longer set, and be about to call it


copied_maps = [0]  # since the last `reset`

# ---- what the program asked of the device ------------------------------------------------------------------------


def reset() -> None:
    """Begin to count anew."""
    copied_maps[0] = 0
    _gpu.null_gpu_reset()


def counts() -> Counter[str]:
    """What was asked of the device since the last `reset`, by name; README.md lists the names."""
    lines = (line.rsplit("\t", 1) for line in _gpu.null_gpu_report().decode().splitlines())
    return Counter({name: int(number) for name, number in lines})


@contextmanager
def watched(places: Counter[tuple[str, str]]) -> Iterator[None]:
    """Inside, `places` counts what costs the host time: (what, file:line of the package that asked for it)."""

    def watch(what: bytes) -> None:
        frames = [frame for frame in traceback.extract_stack() if frame.filename.startswith(f"{ROOT}/pggan/")]
        where = frames[-1] if frames else None
        place = f"{where.filename.removeprefix(f'{ROOT}/')}:{where.name}" if where else "elsewhere"
        places[what.decode(), place] += 1

    function = _Watcher(watch)
    _watchers.append(function)
    _gpu.null_gpu_watch(function)
    try:
        yield
    finally:
        _gpu.null_gpu_watch(_Watcher(0))


def set_card_bytes(count: int) -> None:
    """Make the card so small or large, as if other programs took memory or gave it back."""
    _gpu.null_gpu_set_total_bytes(count)


# ---- convolutions --------------------------------------------------------------------------------------------------
# cuDNN is asked for nothing: results have the shapes and layouts that it would give (ATen/native/cudnn/ConvShared.cpp),
# operands are brought into that layout, as it needs them, and a convolution is counted as one product of the stream.


def _layout(*tensors: Tensor) -> torch.memory_format:
    if tensors[0].dtype == torch.float64:  # cuDNN is not asked for channels-last ones
        return torch.contiguous_format
    last = any(suggest_memory_format(tensor) is torch.channels_last for tensor in tensors)
    return torch.channels_last if last else torch.contiguous_format


def count_copy(maps: Tensor) -> None:
    """Count `maps` that are larger than 4x4 and about to be copied, because they are not channels-last."""
    in_order = maps.is_contiguous(memory_format=torch.channels_last) if maps.ndim == 4 else True
    copied_maps[0] += not in_order and maps.shape[2] > 4


def _product(operands: Sequence[Tensor], shape: Sequence[int], layout: torch.memory_format) -> Tensor:
    for operand in operands:
        count_copy(operand)
        operand.contiguous(memory_format=layout)
    result = torch.empty(tuple(shape), dtype=operands[0].dtype, device=operands[0].device, memory_format=layout)
    _gpu.null_gpu_convolution(torch.cuda.current_stream().cuda_stream)
    return result


def _convolution(x: Tensor, weight: Tensor, padding: Any, stride: Any, dilation: Any, *_: Any) -> Tensor:
    sides = [
        (x.shape[axis + 2] + 2 * padding[axis] - dilation[axis] * (weight.shape[axis + 2] - 1) - 1) // stride[axis] + 1
        for axis in range(2)
    ]
    return _product([x, weight], [len(x), len(weight), *sides], _layout(x, weight))


def _transposed_convolution(
    x: Tensor, weight: Tensor, padding: Any, output_padding: Any, stride: Any, dilation: Any, *_: Any
) -> Tensor:
    sides = [
        (x.shape[axis + 2] - 1) * stride[axis]
        - 2 * padding[axis]
        + dilation[axis] * (weight.shape[axis + 2] - 1)
        + output_padding[axis]
        + 1
        for axis in range(2)
    ]
    return _product([x, weight], [len(x), weight.shape[1], *sides], _layout(x, weight))


def _convolution_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, *others: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    wanted, layout = others[-1], _layout(x, weight)
    return (
        _product([gradient, weight], x.shape, layout) if wanted[0] else None,
        _product([gradient, x], weight.shape, layout) if wanted[1] else None,
        gradient.sum((0, 2, 3)) if wanted[2] else None,
    )


# ---- factors of matrices: cuSOLVER needs a driver, too ------------------------------------------------------------


def _qr(matrix: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    assert mode == "r", "only R is asked for"
    return matrix.new_empty(0), matrix.new_empty(min(matrix.shape), matrix.shape[1])


def _singular_values(matrix: Tensor, full: bool, vectors: bool, **_: Any) -> tuple[Tensor, Tensor, Tensor]:
    assert not vectors, "only the values are asked for"
    return matrix.new_empty(0), matrix.new_empty(min(matrix.shape)), matrix.new_empty(0)


_library = torch.library.Library("aten", "IMPL", "CUDA")


def install() -> None:
    """Let these functions take the place of NVIDIA's libraries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they take the place of others
        _library.impl("cudnn_convolution", _convolution)
        _library.impl("cudnn_convolution_transpose", _transposed_convolution)
        _library.impl("convolution_backward", _convolution_backward)
        _library.impl("linalg_qr", _qr)
        _library.impl("_linalg_svd", _singular_values)
