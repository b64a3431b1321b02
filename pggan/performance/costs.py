"""Predicts the cost of a training step, has the data sheets of some GPUs, and models training on many devices.

FLOPs are counted by PyTorch's `FlopCounterMode` (convolutions and matrix products, two FLOPs per multiply-add) while
the networks run on the device "meta", which stores no data.

In the model of n devices, a step first computes the gradients of D and G, and then sums them over the devices.
Strong scaling keeps the batch: each device gets whole groups of minibatch stddev, and devices without a group are
idle.  Weak scaling keeps the batch of each device, so that training takes 1/n of the steps.
The devices form a ring.  In an all-reduce, each device sends 2 (n - 1) messages, each with 1/n of the gradient.  In
an all-gather, each device sends n - 1 messages, each with the whole data of one device.
Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations", section 3.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pggan.core.architecture import Architecture, Precision
from pggan.core.errors import UserError, nearest
from pggan.core.schedule import Phase
from pggan.losses.base import GradientPenalty, Loss, PenaltyContext, Reals
from pggan.networks.efficientnet_lite0 import EfficientNetLite0
from pggan.networks.networks import Generator, count_parameters, new_discriminator
from pggan.networks.projected import ProjectedDiscriminator
from pggan.training.timing import MEMORY_BYTES, Speed

NCCL_BYTES = int(1.6e9)  # memory that NCCL needs on each of several GPUs (github.com/NVIDIA/nccl/issues/864)
SENT_BYTES = 3  # DGC sends a 16-bit position and an 8-bit value for each gradient entry

Scaling = StrEnum("Scaling", "strong weak")
# Gradients are summed by an all-reduce in fp32 or bf16, or by deep gradient compression (dgc, Lin et al. 2018).
# DGC is an all-gather of the largest gradient entries and their positions.
Reduction = StrEnum("Reduction", "fp32 bf16 dgc")
COUNTED_IMAGES = 8  # FLOPs are counted for about this many images, and then scaled to the batch


class CostCounter:
    """Counts FLOPs, weights and bytes of training steps with networks on the device "meta", which stores no data."""

    def __init__(self, architecture: Architecture, loss: Loss, precision: Precision) -> None:
        self.architecture, self.loss, self.memory = architecture, loss, MEMORY_BYTES["16" in precision]
        with torch.device("meta"):
            self.g, self.d = Generator(architecture), new_discriminator(architecture)
            if isinstance(self.d, ProjectedDiscriminator):  # costs don't depend on weights, so none are loaded
                self.d.set_backbone(None, EfficientNetLite0())

    def cost(self, phase: Phase) -> dict[str, Any]:
        """The cost of a step in `phase`: weights in use, bytes of memory, and mean FLOPs of `reg_interval` steps."""
        a, loss, alpha = self.architecture, self.loss, 0.5 if phase.fading else 1.0
        count = max(COUNTED_IMAGES // a.stddev_group, 1) * a.stddev_group
        with torch.device("meta"):
            latents, mix = torch.empty(count, a.latent_size), torch.empty(count, 1, 1, 1)
            labels = torch.empty(count, a.num_classes) if a.num_classes else None

        def critic(images: Tensor, sub_batches: int = 1) -> tuple[Tensor, Tensor]:
            images = images.clone()  # FlopCounterMode can't count gradients of leaf tensors, so this is a copy
            scores: tuple[Tensor, Tensor] = self.d(images, phase.resolution, alpha, sub_batches)
            return scores

        def step(due: tuple[GradientPenalty, ...]) -> int:
            with FlopCounterMode(display=False) as counter:
                fakes = self.g(latents, labels, phase.resolution, alpha).detach()
                of_d = loss.for_d(critic, Reals(fakes, labels, labels), fakes, PenaltyContext(due, 0, mix, None))
                self.d.requires_grad_(False)
                of_g = loss.for_g(
                    critic, Reals(fakes, labels, labels), self.g(latents, labels, phase.resolution, alpha)
                )
                self.d.requires_grad_(True)
                for terms in (of_d, of_g):
                    torch.autograd.backward([term.sum() for term in terms.loss.values()])
            counts = counter.get_flop_counts().get("Global", {})
            # FLOPs of bmm are left out, because bmm builds convolution kernels only once, whatever the batch size.
            return sum(flops for operation, flops in counts.items() if operation is not torch.ops.aten.bmm)

        plain, penalized = step(()), step(loss.penalties())
        in_g, in_d = in_use(self.g), in_use(self.d)
        # Memory holds all weights of G, EMA and D.  Each weight in use also has a gradient and two moments of Adam.
        weights = 2 * count_parameters(self.g) + count_parameters(self.d) + 3 * (in_g + in_d)
        activations = self.memory * phase.batch * a.activations_up_to(phase.resolution)
        return {
            "parameters": {"generator": in_g, "discriminator": in_d},
            "gradient_bytes": 4 * (in_g + in_d),
            "memory_bytes": 4 * weights + activations,  # a rough estimate
            "flops_per_step": phase.batch / count * (plain + (penalized - plain) / loss.reg_interval),
        }


def in_use(network: nn.Module) -> int:
    """The number of weights that have a gradient; also clears all gradients."""
    used = sum(weight.numel() for weight in network.parameters() if weight.grad is not None)
    network.zero_grad()
    return used


class Card(NamedTuple):
    """A GPU's bandwidth, memory, power and FLOP rates from its data sheet.

    `teraflops` are for dense matrix products that accumulate in float32; data sheets double these rates for sparsity.
    """

    name: str  # the text that `torch.cuda.get_device_name` returns
    bytes_per_second: float
    gib: float
    watts: float
    teraflops: Mapping[str, float]  # 10^12 FLOP/s by precision

    @property
    def memory_bytes(self) -> int:
        return int(self.gib * 2**30)

    def precision(self, asked: Precision) -> Precision:
        """The precision `asked`; if auto, bf16 or else fp16.  Raises UserError if this GPU does not support `asked`."""
        found = next(name for name in ("bf16", "fp16") if name in self.teraflops) if asked is Precision.auto else asked
        if found not in self.teraflops:
            known = ", ".join(self.teraflops)
            raise UserError(f"A {self.name} has no units for precision={asked}.", f"Use auto, or one of {known}.")
        return Precision(found)

    def speed(self, precision: Precision) -> Speed:
        """The speed to expect: 80 % of the data sheet's FLOP/s and 90 % of its bytes/s, as measured on an H200."""
        return Speed.of("cuda", precision, 0.8e12 * self.teraflops[precision], 0.9 * self.bytes_per_second)


# Sources: NVIDIA's data sheets of the H200, H100 (SXM), A100 80 GB (SXM), L4 and T4.
# Source for the RTX 4090: NVIDIA's white paper on the Ada architecture, appendix A.
CARDS = {
    "h200": Card("NVIDIA H200", 4.8e12, 141, 700, {"bf16": 989, "fp16": 989, "fp32": 67}),
    "h100": Card("NVIDIA H100", 3.35e12, 80, 700, {"bf16": 989, "fp16": 989, "fp32": 67}),
    "a100": Card("NVIDIA A100", 2.039e12, 80, 400, {"bf16": 312, "fp16": 312, "fp32": 19.5}),
    "l4": Card("NVIDIA L4", 300e9, 22.5, 72, {"bf16": 121, "fp16": 121, "fp32": 30.3}),
    "4090": Card("NVIDIA GeForce RTX 4090", 1008e9, 24, 450, {"bf16": 165, "fp16": 165, "fp32": 82.6}),
    "t4": Card("Tesla T4", 320e9, 15, 70, {"fp16": 65, "fp32": 8.1}),
}
OTHER_WATTS = {"cpu": 100, "mps": 40, "cuda": 300}  # guessed watts, at full load, of devices that are not in CARDS


def card_of(device: str | None) -> Card | None:
    """The data of the GPU that `device` names; None if `device` is None.  Raises UserError for an unknown name."""
    if device is not None and device.lower() not in CARDS:
        raise UserError(f"device={device} is not known.", nearest(device.lower(), CARDS))
    return None if device is None else CARDS[device.lower()]


# ---- the time of training on many devices


class Link(NamedTuple):
    """The connection from one device to the next device in the ring."""

    bytes_per_second: float  # bandwidth in one direction, while both directions are busy
    latency_seconds: float  # delay of one message
    source: str


# Network protocols leave 92 % of a link's bit rate for data.
# The latencies of NVLink, PCIe and RDMA are from NCCL's cost model (algorithm ring, protocol Simple).
# The latency through sockets at 1 Gbit/s is half of a measured round trip; 30 microseconds for faster links is a guess.
LINKS = {
    "nvlink": Link(400e9, 3.6e-6, "NVLink 4, 450 GB/s each way; measured all-reduces reach 360 to 480 GB/s"),
    "pcie": Link(12e9, 5.7e-6, "PCIe 4.0 x16, 31.5 GB/s each way, through the host's memory"),
    "400g": Link(0.92 * 50e9, 15e-6, "400 Gbit/s InfiniBand or RoCE, one network card per device"),
    "100g": Link(0.92 * 12.5e9, 15e-6, "100 Gbit/s with RDMA, one network card per device"),
    "25g": Link(0.92 * 3.125e9, 30e-6, "25 Gbit/s Ethernet through sockets"),
    "10g": Link(0.92 * 1.25e9, 30e-6, "10 Gbit/s Ethernet through sockets"),
    "1g": Link(0.92 * 0.125e9, 55e-6, "1 Gbit/s Ethernet through sockets"),
}


class Load(NamedTuple):
    """The training steps of one phase on a single device, and the time of a step."""

    steps: int
    batch: int
    group: int  # images per group of minibatch stddev; a group stays on one device
    seconds: float  # time of one step
    fixed_seconds: float  # the part of `seconds` that does not depend on the batch
    numels: tuple[int, ...]  # number of gradient entries of each network


class Cluster(NamedTuple):
    """A model of several equal devices that train together: their link, gradient reduction and kind of scaling."""

    link: Link
    reduction: Reduction
    ratio: float  # share of the gradient entries that DGC sends
    scaling: Scaling

    def reduction_seconds(self, devices: int, numel: int) -> float:
        """The seconds until each of `devices` devices has the sum of their gradients, which have `numel` entries."""
        if self.reduction is Reduction.dgc:
            messages, size = devices - 1, float(SENT_BYTES * ceil(self.ratio * numel))
        else:
            messages, size = 2 * (devices - 1), (4 if self.reduction is Reduction.fp32 else 2) * numel / devices
        return messages * (self.link.latency_seconds + size / self.link.bytes_per_second)

    def run(self, loads: Sequence[Load], devices: int) -> dict[str, Any]:
        """Predict time, efficiency and share of communication on `devices` devices; `loads` has an item per phase."""
        compute = communication = 0.0
        for load in loads:
            steps, seconds, reducing = load.steps / devices, load.seconds, devices
            if self.scaling is Scaling.strong:
                groups = -(-load.batch // load.group)
                most = min(-(-groups // devices) * load.group, load.batch)  # images on the device with the most images
                seconds = load.fixed_seconds + (load.seconds - load.fixed_seconds) * most / load.batch
                steps, reducing = load.steps, min(devices, groups)
            compute += steps * seconds
            communication += steps * sum(self.reduction_seconds(reducing, numel) for numel in load.numels)
        hours, alone = (compute + communication) / 3600, sum(load.steps * load.seconds for load in loads) / 3600
        return {
            "scaling": self.scaling,
            "devices": devices,
            "reduction": self.reduction,
            "hours": hours,
            "device_hours": devices * hours,
            "efficiency": alone / (devices * hours),
            "communication": communication / (compute + communication),  # share of the step time
        }
