"""The training step as it is usually written, to measure and test `pggan.training.step` against.

The same networks, losses and random numbers, in plain float32 and the fewest words: upsampling, convolution and pooling
one by one, separate passes of D for reals, fakes and interpolated images, every weight scaled at every use, PyTorch's
own derivatives throughout.  N batch, C channels, R resolution, Z latent size.
"""

from collections.abc import Mapping
from copy import deepcopy
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.config import OptimizerConfig
from pggan.core.architecture import Architecture, resolutions_between
from pggan.core.batch import Reals
from pggan.core.intervals import is_nth_update
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses.base import Loss
from pggan.losses.gradient_penalty import PenaltyAt
from pggan.networks.layers import minibatch_stddev
from pggan.networks.networks import Discriminator, Generator, initialize


class ReferenceStep:
    """Generator, discriminator and averaged generator, and a step that updates them."""

    def __init__(self, architecture: Architecture, optimizer: OptimizerConfig, seed: int, device: torch.device) -> None:
        self.architecture = architecture
        with torch.device(device):
            generator, discriminator = Generator(architecture), Discriminator(architecture)
        initialize(generator, seed, "generator")
        initialize(discriminator, seed, "discriminator")
        self.g, self.d = dict(generator.named_parameters()), dict(discriminator.named_parameters())
        self.g_ema = deepcopy(self.g)
        betas = optimizer.beta1, optimizer.beta2
        self.adam_g, self.adam_d = (
            torch.optim.Adam(list(weights.values()), betas=betas, eps=optimizer.epsilon, foreach=True)
            for weights in (self.g, self.d)
        )

    def step(self, phase: Phase, reals: Reals, loss: Loss, rng: StepRng, *, ema_decay: float) -> None:
        """Update D, then G, then the averaged G."""
        count, size, resolution = len(reals.images), self.architecture.latent_size, phase.resolution
        with torch.no_grad():
            fakes = self.forward_g(rng.normal("d_latents", count, size), resolution)
        real_images = reals.images.clone().requires_grad_()
        fake_images = fakes.clone().requires_grad_()
        mix = rng.uniform("mix", count, 1, 1, 1)
        interpolated = torch.lerp(reals.images, fakes, mix).requires_grad_()
        real_scores, fake_scores = self.forward_d(real_images, resolution), self.forward_d(fake_images, resolution)
        places = {PenaltyAt.reals: (real_images, real_scores), PenaltyAt.fakes: (fake_images, fake_scores)}
        terms = loss.d_terms(real_scores, fake_scores)
        for penalty in loss.penalties():
            if is_nth_update(penalty.reg_interval, rng.images, phase.batch):
                points, scores = places.get(penalty.at) or (interpolated, self.forward_d(interpolated, resolution))
                (gradient,) = torch.autograd.grad(scores.sum(), points, create_graph=True)
                terms[penalty.name] = penalty.of(gradient, phase.missing_levels)
        self.update(self.adam_d, terms, phase.learning_rate_d)

        for weight in self.d.values():
            weight.requires_grad_(False)
        fakes = self.forward_g(rng.normal("g_latents", count, size), resolution)
        also = self.forward_d(reals.images, resolution) if loss.needs_reals_for_g else None
        self.update(self.adam_g, loss.g_terms(also, self.forward_d(fakes, resolution)), phase.learning_rate_g)
        for weight in self.d.values():
            weight.requires_grad_(True)

        with torch.no_grad():
            torch._foreach_lerp_(list(self.g_ema.values()), list(self.g.values()), 1 - ema_decay)

    def reset_optimizers(self) -> None:
        """Forget Adam's moments."""
        self.adam_g.state.clear()
        self.adam_d.state.clear()

    def tensors(self) -> list[Tensor]:
        """All tensors that a step changes."""
        states = [*self.adam_g.state.values(), *self.adam_d.state.values()]
        moments = [value for state in states for value in state.values()]
        return [*self.g.values(), *self.d.values(), *self.g_ema.values(), *moments]

    def update(self, adam: torch.optim.Adam, terms: dict[str, Tensor], learning_rate: float) -> None:
        """One step of `adam` down the sum of the means of `terms`."""
        adam.zero_grad()
        torch.stack([term.mean() for term in terms.values()]).sum().backward()  # type: ignore[no-untyped-call]
        adam.param_groups[0]["lr"] = learning_rate
        adam.step()

    def forward_g(self, latents: Tensor, resolution: int) -> Tensor:
        """Latents [N, Z] to images [N, C, R, R]."""
        w = self.g
        x = normalized(latents) @ scaled(w["stem.dense.weight"], gain=sqrt(2) / 4).t()
        x = x.reshape(len(latents), -1, 4, 4) + w["stem.dense.bias"][:, None, None]
        x = normalized(F.leaky_relu(x, 0.2))
        x = normalized(F.leaky_relu(convolved(x, w, "stem.conv"), 0.2))
        for level in resolutions_between(8, resolution):
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = normalized(F.leaky_relu(convolved(x, w, f"blocks.{level}.up_conv"), 0.2))
            x = normalized(F.leaky_relu(convolved(x, w, f"blocks.{level}.conv"), 0.2))
        return convolved(x, w, f"to_rgb.{resolution}", gain=1.0)

    def forward_d(self, images: Tensor, resolution: int) -> Tensor:
        """Images [N, C, R, R] to scores [N]."""
        w = self.d
        x = F.leaky_relu(convolved(images, w, f"from_rgb.{resolution}"), 0.2)
        for level in reversed(resolutions_between(8, resolution)):
            x = F.leaky_relu(convolved(x, w, f"blocks.{level}.conv"), 0.2)
            x = F.leaky_relu(convolved(x, w, f"blocks.{level}.down_conv"), 0.2)
            x = F.avg_pool2d(x, 2)
        deviation = minibatch_stddev(x, self.architecture.stddev_group)[:, None, None, None]
        x = torch.cat([x, deviation.expand(-1, 1, 4, 4)], 1)
        x = F.leaky_relu(convolved(x, w, "head.conv"), 0.2).flatten(1)
        x = F.leaky_relu(F.linear(x, scaled(w["head.dense.weight"]), w["head.dense.bias"]), 0.2)
        return F.linear(x, scaled(w["head.score.weight"], gain=1.0), w["head.score.bias"])[:, 0]


def normalized(x: Tensor) -> Tensor:
    """`x` over its root mean square along dimension 1."""
    return x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-8)


def scaled(weight: Tensor, gain: float = sqrt(2)) -> Tensor:
    """`weight` with the equalized learning rate's factor."""
    return weight * (gain / sqrt(weight[0].numel()))


def convolved(x: Tensor, weights: Mapping[str, Tensor], name: str, gain: float = sqrt(2)) -> Tensor:
    """The convolution `name` of `x`, with the same resolution."""
    weight = weights[f"{name}.weight"]
    return F.conv2d(x, scaled(weight, gain), weights[f"{name}.bias"], padding=weight.shape[-1] // 2)
