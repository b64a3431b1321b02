"""What is expected of one H200: `pggan plan device=h200 experiment=celebahq_1024`, whose shares an H100 has shown.

The times without fused kernels are older ones, modelled before there was any card.  The error is 25 %.
"""

from typing import NamedTuple

COPY_BYTES_PER_SECOND = 4.0e12  # of 4.8e12 by the data sheet
BF16_OPERATIONS_PER_SECOND = 7.5e14  # of 9.9e14 by the data sheet, which no product reaches
TOLERANCE = 0.25  # of the milliseconds below
COMPILED_MILLISECONDS = {1024: 24.0, 64: 31.0}  # at most


class Stage(NamedTuple):
    """A step of a stable phase: bf16, wgan-gp, the paper's widths, the official batch."""

    kernels: int  # launches, as `pggan plan device=h200` counts them
    plain_graph: float  # ms, captured, without fused kernels
    eager: float  # ms, without fused kernels; mostly the time of the host
    graph: float  # ms, captured, with fused kernels
    convolutions: float  # ms, of these


STAGES = {
    4: Stage(419, 2.0, 7.5, 1.83, 0.32),
    8: Stage(511, 5.1, 10, 3.97, 1.83),
    16: Stage(603, 16.5, 17, 10.9, 7.56),
    32: Stage(699, 31.7, 32, 19.9, 15.3),
    64: Stage(791, 33.4, 33, 20.6, 15.3),
    128: Stage(883, 28.9, 29, 17.5, 11.8),
    256: Stage(975, 24.1, 24, 15.5, 9.47),
    512: Stage(1064, 21.9, 25, 14.6, 8.35),
    1024: Stage(1156, 35.5, 36, 25.0, 14.9),
}
ORDER = (1024, 512, 64, 256, 128, 32, 16, 8, 4)  # the most telling first
