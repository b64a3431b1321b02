"""Predicts the cost of a training step, and models training on many devices.

In the model, n devices form a ring (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", section 3).  In an all-reduce, each device sends 2 (n - 1) messages, each with 1/n of the gradient.  In
an all-gather, each device sends n - 1 messages, each with the whole data of one device.

Strong scaling divides the same batch among the devices.  A minibatch-stddev group is not divided, so some devices may
be idle.  Weak scaling keeps the batch size per device, so that training takes 1/n of the steps.
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
from pggan.networks.discriminators import ProjectedDiscriminator
from pggan.networks.efficientnet_lite0 import EfficientNetLite0
from pggan.networks.networks import Generator, count_parameters, new_discriminator
from pggan.training.timing import MEMORY_BYTES, Speed

NCCL_BYTES = int(1.6e9)  # With several GPUs, NCCL needs 1.6 GB on each (github.com/NVIDIA/nccl/issues/864).
SENT_BYTES = 3  # Deep gradient compression (DGC) sends a gradient entry as a 16-bit index and an 8-bit value.

Scaling = StrEnum("Scaling", "strong weak")
# Gradients are summed by an all-reduce in fp32 or bf16, or by deep gradient compression (dgc, Lin et al. 2018).
# With DGC, each device sends only its largest gradient entries and their indices, in an all-gather.
Reduction = StrEnum("Reduction", "fp32 bf16 dgc")
COUNTED_IMAGES = 8  # FLOPs are counted for about 8 images, and then scaled to the batch.


class CostCounter:
    """Counts FLOPs, weights and bytes of training steps on the device "meta", which has shapes but no data."""

    def __init__(self, architecture: Architecture, loss: Loss, precision: Precision) -> None:
        self.architecture, self.loss, self.memory = architecture, loss, MEMORY_BYTES["16" in precision]
        with torch.device("meta"):
            self.g, self.d = Generator(architecture), new_discriminator(architecture)
            if isinstance(self.d, ProjectedDiscriminator):  # Costs need no pretrained weights.
                self.d.set_backbone(None, EfficientNetLite0())

    def cost(self, phase: Phase) -> dict[str, Any]:
        a, loss, alpha = self.architecture, self.loss, 0.5 if phase.fading else 1.0
        count = max(COUNTED_IMAGES // a.stddev_group, 1) * a.stddev_group
        with torch.device("meta"):
            latents, mix = torch.empty(count, a.latent_size), torch.empty(count, 1, 1, 1)
            labels = torch.empty(count, a.num_classes) if a.num_classes else None

        def critic(images: Tensor, sub_batches: int = 1) -> tuple[Tensor, Tensor]:
            images = images.clone()  # FlopCounterMode counts a gradient's FLOPs for a clone, not for a leaf tensor.
            scores: tuple[Tensor, Tensor] = self.d(images, phase.resolution, alpha, sub_batches)
            return scores

        def step(due: tuple[GradientPenalty, ...]) -> int:
            with FlopCounterMode(display=False) as counter:
                fakes = self.g(latents, labels, phase.resolution, alpha).detach()
                reals = Reals(fakes, labels, labels)
                of_d = loss.for_d(critic, reals, fakes, PenaltyContext(due, 0, mix, None))
                self.d.requires_grad_(False)
                of_g = loss.for_g(critic, reals, self.g(latents, labels, phase.resolution, alpha))
                self.d.requires_grad_(True)
                for terms in (of_d, of_g):
                    torch.autograd.backward([term.sum() for term in terms.loss.values()])
            counts = counter.get_flop_counts().get("Global", {})  # A multiply-add counts as two FLOPs.
            # FLOPs of torch.bmm are left out: bmm only prepares convolution weights, once for any batch size.
            return sum(flops for operation, flops in counts.items() if operation is not torch.ops.aten.bmm)

        plain, penalized = step(()), step(loss.penalties())
        in_g, in_d = in_use(self.g), in_use(self.d)
        # Memory holds G, the averaged G, and D.  Weights trained in this phase also have gradients and Adam's moments.
        weights = 2 * count_parameters(self.g) + count_parameters(self.d) + 3 * (in_g + in_d)
        activations = self.memory * phase.batch * a.activations_up_to(phase.resolution)
        return {
            "parameters": {"generator": in_g, "discriminator": in_d},
            "gradient_bytes": 4 * (in_g + in_d),
            "memory_bytes": 4 * weights + activations,  # The memory is a rough estimate.
            "flops_per_step": phase.batch / count * (plain + (penalized - plain) / loss.reg_interval),
        }


def in_use(network: nn.Module) -> int:
    """Count the weights that have a gradient, and clear all gradients."""
    used = sum(weight.numel() for weight in network.parameters() if weight.grad is not None)
    network.zero_grad()
    return used


class Card(NamedTuple):
    """The name, memory, power and speed of a GPU, from its data sheet."""

    name: str  # as in `torch.cuda.get_device_name`
    bytes_per_second: float
    gib: float
    watts: float
    teraflops: Mapping[str, float]  # {precision: 10^12 FLOP/s of dense matmuls that accumulate in float32}

    @property
    def memory_bytes(self) -> int:
        return int(self.gib * 2**30)

    def precision(self, asked: Precision) -> Precision:
        """Resolve precision=auto to bf16 or fp16; raises UserError if this GPU does not support `asked`."""
        found = next(name for name in ("bf16", "fp16") if name in self.teraflops) if asked is Precision.auto else asked
        if found not in self.teraflops:
            known = ", ".join(self.teraflops)
            raise UserError(f"A {self.name} has no units for precision={asked}.", f"Use auto, or one of {known}.")
        return Precision(found)

    def speed(self, precision: Precision) -> Speed:
        """The expected speed: 80 % of the data sheet's FLOP/s, 90 % of its memory bandwidth (an H200 reached 87 %)."""
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
OTHER_WATTS = {"cpu": 100, "mps": 40, "cuda": 300}  # guessed watts of devices that are not in CARDS


def card_of(device: str | None) -> Card | None:
    """The data sheet of the GPU `device`, or None if `device` is None; raises UserError if the GPU is unknown."""
    if device is not None and device.lower() not in CARDS:
        raise UserError(f"device={device} is not known.", nearest(device.lower(), CARDS))
    return None if device is None else CARDS[device.lower()]


def count_cards(devices: str) -> int:
    """The number N of GPUs that devices=N asks for, whether this machine has them or not; 1 for other `devices`."""
    return max(int(devices), 1) if devices.isdecimal() else 1


class Link(NamedTuple):
    """The connection between two neighbours in the ring of devices."""

    bytes_per_second: float  # bandwidth in one direction, while both directions are busy
    latency_seconds: float
    source: str


# Network protocols leave 92 % of a link's bit rate for data.
# The latencies of NVLink, PCIe and RDMA are from NCCL's cost model (algorithm ring, protocol Simple).
# The latency of 1 Gbit/s sockets is half of a measured round trip; the 30 microseconds of faster sockets are a guess.
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
    """The number, batch size and time of the steps of one phase on a single device."""

    steps: int
    batch: int
    group: int  # number of images in a minibatch-stddev group; a group stays on one device
    seconds: float  # time of one step
    fixed_seconds: float  # the part of a step's time that does not depend on the batch size
    numels: tuple[int, ...]  # number of gradient entries of G, and of D


class Cluster(NamedTuple):
    """A model of several equal devices that train together."""

    link: Link
    reduction: Reduction
    ratio: float  # share of the gradient entries that deep gradient compression (DGC) sends
    scaling: Scaling

    def reduction_seconds(self, devices: int, numel: int) -> float:
        """The seconds that `devices` devices need to sum a gradient of `numel` entries."""
        if self.reduction is Reduction.dgc:
            messages, size = devices - 1, float(SENT_BYTES * ceil(self.ratio * numel))
        else:
            messages, size = 2 * (devices - 1), (4 if self.reduction is Reduction.fp32 else 2) * numel / devices
        return messages * (self.link.latency_seconds + size / self.link.bytes_per_second)

    def run(self, loads: Sequence[Load], devices: int) -> dict[str, Any]:
        """Predict the training time on `devices` devices; `loads` has the steps of each phase on a single device."""
        compute = communication = 0.0
        for load in loads:
            steps, seconds, reducing = load.steps / devices, load.seconds, devices
            if self.scaling is Scaling.strong:
                groups = -(-load.batch // load.group)
                most = min(-(-groups // devices) * load.group, load.batch)  # number of images on the slowest device
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
            "communication": communication / (compute + communication),  # share of the training time
        }
