"""How long each convolution method takes for one shape on this CPU: with all gradients, as a training step needs them.

What is measured is the processor's time of one thread: other processes hardly change it, and more threads share the
work of every method alike.
N images, I and O feature maps, H and W sides.
"""

import time
from collections.abc import Mapping
from math import inf

import torch
from torch import Tensor

from pggan.networks.convolution import Method, convolution
from pggan.networks.method_table import ConvolutionShape
from pggan.networks.winograd import tile_stride

# Tiles of Winograd's in what is measured: products of matrices are as fast as they get with so many rows, and more
# images take as long each.
TIMED_TILES = 64
MIN_ROUNDS, MAX_ROUNDS = 3, 20  # in which all methods take their turn; the fastest counts
ROUNDS_SECONDS = 0.05  # after which no more than the least are made
HOPELESS = 1.5  # times as slow as the fastest: not measured again
# A method replaces that of the heuristic where it takes at most this share of its time: the fastest of few rounds
# repeats to within some percent on a shared machine, and a smaller gain is not worth another rounding.
WORTHWHILE = 0.9
# Passes of as many images for which a step prepares a kernel once: those of G, and those of D with its penalties, make
# every method's three functions run about twice per preparation.
TIMED_PASSES = 2
SCALE = 0.5  # of the kernel, as equalised layers have one

# Of one method: seconds of preparing the kernel with the gradient of that, and of each image.
Seconds = tuple[float, float]


def sample_of(shape: ConvolutionShape) -> ConvolutionShape:
    """The sample to measure for `shape`: as many images of it as show how long each takes."""
    stride = tile_stride(shape.rescaling)
    per_image = (shape.height // stride) * (shape.width // stride)
    return shape._replace(images=min(shape.images, max(1, TIMED_TILES // max(1, per_image))))


def measure(sample: ConvolutionShape) -> dict[str, Seconds]:
    """The seconds of every method that can be used for `sample`, by its name."""
    best: dict[Method, Seconds] = dict.fromkeys(sample.methods(), (inf, inf))
    x = torch.ones(sample.images, sample.inputs, sample.height, sample.width, dtype=sample.dtype)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = torch.ones(sample.outputs, sample.inputs, 3, 3, dtype=sample.dtype)
    weight = weight.contiguous(memory_format=torch.channels_last).requires_grad_()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    began, number = time.thread_time(), 0
    while number < MIN_ROUNDS or (time.thread_time() - began < ROUNDS_SECONDS and number < MAX_ROUNDS):
        least = min(sum(seconds) for seconds in best.values())
        for method, before in best.items():
            if number < 2 or sum(before) < HOPELESS * least:  # the first call of each makes its kernels
                found = _timed(method, sample, x, weight)
                best[method] = min(before[0], found[0]), min(before[1], found[1])
        number += 1
    torch.set_num_threads(threads)
    return {method.name: (first, rest / sample.images) for method, (first, rest) in best.items()}


def _timed(method: Method, shape: ConvolutionShape, x: Tensor, weight: Tensor) -> Seconds:
    """Seconds of preparing the `weight` [O, I, 3, 3], and of `x` [N, I, H, W], each with its gradients."""
    start = time.thread_time()
    prepared = method.transform(weight, shape.rescaling, SCALE)
    after_kernel = time.thread_time()
    kernel = prepared.detach().requires_grad_()
    y = convolution(x, kernel, None, method, shape.rescaling)
    _, gradient = torch.autograd.grad(y, (x, kernel), torch.ones_like(y))
    after_images = time.thread_time()
    torch.autograd.grad(prepared, weight, gradient)
    end = time.thread_time()
    return (after_kernel - start) + (end - after_images), after_images - after_kernel


def fastest(shape: ConvolutionShape, seconds: Mapping[str, Seconds], prepared: Method | None = None) -> Method:
    """The method for `shape` by the seconds of its sample: the usual one, unless another one is clearly faster.

    The usual one is the heuristic's, or the one for which the step has already `prepared` the kernel, if there is one.
    """
    total = {
        method: (0 if method is prepared else first) + TIMED_PASSES * shape.images * each
        for method in shape.methods()
        for first, each in [seconds.get(method.name, (inf, inf))]
    }
    usual = prepared if prepared in total else shape.methods()[0]
    best = min(total, key=total.__getitem__)
    return best if total[best] < WORTHWHILE * total[usual] < inf else usual
