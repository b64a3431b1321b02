"""Deep gradient compression for Adam: of every update only the largest entries are sent, the rest is sent later.

One `Compressor` per network and rank.  Each step, every rank selects a message from its own gradient; all messages
are gathered, and `mean_of` makes the same update of them everywhere.  Nothing here knows ranks or networks.
P parameters, k entries sent, n ranks.
Source: Lin et al. 2018 (residuals, momentum correction, factor masking, local clipping, warmup), made for SGD; what
becomes of it with Adam is derived in docs/scaling.md.
"""

from collections.abc import Sequence
from math import ceil, gcd, sqrt

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from pggan.config import OptimizerConfig

WARMUP_FACTOR = 4  # from one ratio of the warmup to the next: 25 %, 6.25 %, 1.6 % … (Lin et al. 2018, section 3.3)
SENT_AS = torch.float8_e4m3fn  # 3 bits of mantissa; what rounding leaves out is sent later
MAX_FP8 = 448.0  # of this type, which has no infinity
BLOCK = 2**16  # indices that differ in their last two bytes only
PIECE = 2**17  # entries that are looked at together
SAMPLE = 100_000  # entries that the threshold is estimated from
CERTAINTY = 4.0  # standard deviations by which the estimate lets through too many rather than too few


def share_to_send(ratio: float, warmup_images: int, since: int) -> float:
    """The share of entries to send when `since` images of a phase have been shown: a quarter, a sixteenth … `ratio`.

    It falls in steps of equal length over the first `warmup_images`, while all gradients are new.
    """
    larger: list[float] = []
    while (share := WARMUP_FACTOR ** -(len(larger) + 1.0)) > ratio:
        larger.append(share)
    return larger[since * len(larger) // warmup_images] if since < warmup_images and larger else ratio


class Compressor(nn.Module):
    """The updates of one network that one rank has not sent yet, and the moments that make updates of gradients.

    The buffers are what a checkpoint has to hold; all belong to one rank and one set of parameters.
    """

    residual: Tensor  # updates not sent yet, in units of the learning rate
    exp_avg_sq: Tensor  # of this rank's gradients, as Adam keeps it
    steps: Tensor
    exp_avg: Tensor | None  # of the gradients not sent yet, as Adam keeps it

    def __init__(self, size: int, optimizer: OptimizerConfig, clip: float | None, device: torch.device) -> None:
        """Args: size: P; clip: the largest norm of a gradient of this rank, None for any (Lin et al. scale the norm
        allowed for the mean of n gradients by n^-1/2).
        """
        super().__init__()
        self.optimizer, self.clip = optimizer, clip
        self.register_buffer("residual", torch.zeros(size, device=device))
        self.register_buffer("exp_avg_sq", torch.zeros(size, device=device))
        self.register_buffer("steps", torch.zeros((), device=device))
        self.register_buffer("exp_avg", torch.zeros(size, device=device) if optimizer.beta1 else None)
        self._importance = torch.empty(size, device=device)  # what sending the updates is worth, squared

    def select(self, gradients: Sequence[Tensor], count: int, finite: Tensor, factor: Tensor | None = None) -> Tensor:
        """Take in this rank's gradient times `factor`; returns the message that all are to be sent.

        The message holds those `count` entries of the residual that the loss depends on most; they leave it.
        `gradients`: fp32 vectors, [P] one after the other; their memory is used.
        `finite`: false on all ranks if the gradient of any is not; then nothing changes, and the message is void.
        `factor`: fp32, on the device, which a number would have to be copied to each time; None: 1.
        """
        self._accumulate(list(gradients), finite, factor)
        # Halfway between the size of the update and the fall of the loss, which is the update times the usual gradient:
        # the latter alone starves small gradients, which made faces of fewer kinds.
        torch.sqrt(self.exp_avg_sq, out=self._importance).mul_(self.residual).mul_(self.residual)
        indices = largest(self._importance, count).sort().values
        waiting = self.residual[indices]
        sent = waiting.clamp(-MAX_FP8, MAX_FP8).to(SENT_AS)
        # What rounding left out waits, too: nothing is ever lost.  An update that is not finite is not made, nor sent.
        self.residual[indices] = torch.where(finite, waiting - sent.float(), waiting)
        if self.exp_avg is not None and count < len(self.residual):
            self.exp_avg.index_fill_(0, indices, 0)  # factor masking: what is sent must not be carried on by momentum
        return pack(indices, sent, len(self.residual))

    def _accumulate(self, gradients: list[Tensor], finite: Tensor, factor: Tensor | None) -> None:
        """Add Adam's update for the gradient times `factor` to the residual: that is Adam's own step."""
        divisor = torch.ones_like(self.steps) if factor is None else 1 / factor
        if self.clip is not None:
            norm = torch.stack(torch._foreach_norm(gradients)).norm() / divisor
            divisor = divisor * (norm / self.clip).clamp(min=1)
        sizes = [len(gradient) for gradient in gradients]
        steps = self.steps.repeat(len(sizes))  # Adam counts for each vector
        adam(
            list(torch.split(self.residual, sizes)),
            gradients,
            # Without momentum, the mean is the gradient itself.
            gradients if self.exp_avg is None else list(torch.split(self.exp_avg, sizes)),
            list(torch.split(self.exp_avg_sq, sizes)),
            [],
            list(steps.unbind()),
            fused=True,
            grad_scale=divisor,
            found_inf=(~finite).float(),
            amsgrad=False,
            beta1=self.optimizer.beta1,
            beta2=self.optimizer.beta2,
            lr=-1.0,  # uphill: the residual is what is to be subtracted
            weight_decay=0.0,
            eps=self.optimizer.epsilon,
            maximize=False,
        )
        self.steps.copy_(steps[0])


def pack(indices: Tensor, values: Tensor, size: int) -> Tensor:
    """One message, bytes [4 P / 65536 + 3 k]: of `indices` [k], ascending and below P, and one-byte `values` [k].

    It holds how many indices are in each block of 65536, then the indices' places in their blocks, then the values.
    """
    first, second, third, end = layout(size, len(indices))
    message = torch.zeros(end, dtype=torch.uint8, device=indices.device)
    borders = torch.arange(0, size + BLOCK, BLOCK, device=indices.device)
    message[:first].view(torch.int32)[:] = torch.searchsorted(indices, borders).diff()
    message[first:second].view(torch.uint16)[:] = indices % BLOCK
    message[second:third].view(SENT_AS)[:] = values
    return message


def unpack(message: Tensor, count: int, size: int) -> tuple[Tensor, Tensor]:
    """The indices [count] and values [count], fp32, that `pack` made a message of."""
    first, second, third, _ = layout(size, count)
    starts = torch.arange(0, size, BLOCK, device=message.device)
    inside = message[:first].view(torch.int32)
    blocks = starts.repeat_interleave(inside, output_size=count)  # told the size, it doesn't ask the device
    indices = blocks + message[first:second].view(torch.uint16).long()
    return indices, message[second:third].view(SENT_AS).float()


def mean_of(messages: Tensor, count: int, scratch: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of what `messages` [n, bytes] of `count` entries each hold: indices [n k] and values [n k].

    An index that is in several messages has all of its value where it comes first, and 0 from there on.  The bits are
    the same on every rank: messages are added in their order, and no index comes twice in one of them.
    `scratch` [P] has to be 0 everywhere, and is left so.
    """
    entries = [unpack(message, count, len(scratch)) for message in messages]
    for indices, values in entries:
        scratch.index_add_(0, indices, values, alpha=1 / len(messages))
    found = []
    for indices, _ in entries:
        found.append(scratch[indices])
        scratch.index_fill_(0, indices, 0)
    return torch.cat([indices for indices, _ in entries]), torch.cat(found)


def layout(size: int, count: int) -> tuple[int, int, int, int]:
    """The bytes at which a message's places, values and padding begin, and at which it ends."""
    first = 4 * ceil(size / BLOCK)
    second = first + 2 * count
    third = second + count
    return first, second, third, -(-third // 4) * 4  # messages are gathered side by side, and int32 wants its place


def largest(vector: Tensor, count: int) -> Tensor:
    """The indices [count] of the largest entries of `vector` [P], none of them below 0, in no particular order.

    On a CPU only entries above a threshold are compared, which is estimated from a sample so that too few are hardly
    ever above it; then all are compared.  Elsewhere all are: no shape depends on values, nothing waits for the device.
    """
    size = len(vector)
    if vector.device.type == "cpu" and 0 < count < size // WARMUP_FACTOR:
        stride = max(size // SAMPLE, 1)
        while gcd(stride, 6) > 1:  # out of step with kernels of 3x3 and with powers of two of maps
            stride += 1
        sample = vector[::stride]
        expected = len(sample) * count / size
        rank = ceil(expected + CERTAINTY * sqrt(expected) + CERTAINTY)
        if rank < len(sample):
            threshold = sample.topk(rank, sorted=False).values.min()
            candidates = above(vector, float(threshold))
            if len(candidates) >= count:
                return candidates[vector[candidates].topk(count, sorted=False).indices]
    return vector.topk(count, sorted=False).indices


def above(vector: Tensor, threshold: float) -> Tensor:
    """The indices of all entries of `vector` [P], on the CPU, of at least `threshold`, in order."""
    values = vector.numpy()  # NumPy finds them four times as fast as PyTorch
    starts = range(0, len(values), PIECE)
    found = [start + np.flatnonzero(values[start : start + PIECE] >= threshold) for start in starts]
    return torch.from_numpy(np.concatenate(found))
