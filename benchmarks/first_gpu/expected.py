"""What is expected of one H200, modelled before there was any.

The launches and bytes of every operation of a step were counted, and their times modelled: 4.3 TB/s, of which vector
kernels reach 85 %, broadcasts 50 to 65 % and reductions 45 %; convolutions reach 60 % of 790 TFLOP/s or 70 % of the
bandwidth; 1.6 us per kernel of a CUDA graph.  The error is 25 %.
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
    4: Stage(419, 2.0, 7.5, 1.8, 0.5),
    8: Stage(511, 5.1, 10, 4.4, 2.6),
    16: Stage(603, 16.5, 17, 14.0, 11.2),
    32: Stage(699, 31.7, 32, 26.8, 22.8),
    64: Stage(791, 33.4, 33, 27.3, 22.7),
    128: Stage(883, 28.9, 29, 22.1, 17.2),
    256: Stage(975, 24.1, 24, 16.9, 11.7),
    512: Stage(1064, 21.9, 25, 14.4, 9.0),
    1024: Stage(1156, 35.5, 36, 20.9, 12.4),
}
ORDER = (1024, 512, 64, 256, 128, 32, 16, 8, 4)  # the most telling first
