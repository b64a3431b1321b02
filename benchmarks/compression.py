"""What compressed gradients do to training: `python -m benchmarks.compression METHOD --data PYRAMID`.

Trains the demo's networks as two processes would, in one: each half of every batch (whole groups of minibatch stddev)
gives a gradient of its own, and what becomes of the two is the METHOD:

dense      Adam of their mean
dgc        the messages of two `pggan.training.gradients.compression.Compressor`s
gradients  top-k of gradients with error feedback, then Adam of what was received: the obvious way, for comparison
sign       all signs of Adam's updates and their mean size, with error feedback: one bit per parameter

Prints JSON with the KID (see benchmarks.kid) after `--share` of the demo's schedule; `--out` gets a grid of faces.
With METHOD `speed`: what a message costs on this machine, for `--size` parameters.
"""

import argparse
import json
import math
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.efficientnet_lite0 import load_extractor
from benchmarks.kid import FIRST_SEED, features_of, kernel_distance
from pggan.checkpoints.read import LoadedGenerator
from pggan.cli.compose import compose
from pggan.config import TrainConfig
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.core.validation import validated
from pggan.data.format.pyramid import ImagePyramid
from pggan.data.stream.reals import RealStream
from pggan.losses import build_loss
from pggan.losses.base import LossTerms
from pggan.networks.networks import cached_weights
from pggan.networks.numerics import ComputeOptions
from pggan.optim.compression import Compressor, WarmUp, layout, mean_of
from pggan.optim.state import State, Trainable, new_state, update_ema
from pggan.run.events import ema_decay
from pggan.sampling.generate import choose_stage, render
from pggan.sampling.images import contact_sheet, save_png
from pggan.sampling.latents import seed_latents
from pggan.training.step import d_forward, frozen, g_forward, make_fakes, micro_batches, set_up

PROCESSES = 2
CPU = torch.device("cpu")
SCHEDULE = {"stable_images": (1500, 2500, 5000, 43500), "fade_images": (0, 1500, 3000, 5000)}  # of the demo


class GradientReducer(ABC):
    """How one player learns from the gradients of all processes."""

    def __init__(self, player: Trainable, config: TrainConfig, weights: list[Tensor]) -> None:
        """Args: weights: those of `player` that have gradients in this phase."""
        self.player = player
        self.config = config
        self.weights = weights
        self.size = sum(weight.numel() for weight in weights)

    @abstractmethod
    def update(self, gradients: list[Tensor], count: int) -> Tensor | None:
        """What to descend in units of the learning rate; or None, after setting `player`'s gradient for its Adam."""

    def apply(self, gradients: list[Tensor], count: int, learning_rate: float) -> None:
        """Change the weights."""
        update = self.update(gradients, count)
        if update is None:
            self.player.step(learning_rate, torch.tensor(True))
            return
        with torch.no_grad():
            for weight, change in zip(self.weights, pieces(update, self.weights), strict=True):
                weight.sub_(change, alpha=learning_rate)

    def let_adam(self, gradient: Tensor) -> None:
        for weight, piece in zip(self.weights, pieces(gradient, self.weights), strict=True):
            weight.grad = torch.empty_like(weight).copy_(piece)


class AllReduceFp32(GradientReducer):
    def update(self, gradients: list[Tensor], count: int) -> None:
        self.let_adam(torch.stack(gradients).mean(0))


class Dgc(GradientReducer):
    def __init__(self, player: Trainable, config: TrainConfig, weights: list[Tensor]) -> None:
        super().__init__(player, config, weights)
        adam = config.optimizer
        self.compressors = [
            Compressor(self.size, beta1=adam.beta1, beta2=adam.beta2, epsilon=adam.epsilon, clip=None, device=CPU)
            for _ in range(PROCESSES)
        ]

    def update(self, gradients: list[Tensor], count: int) -> Tensor:
        messages = [
            compressor.select([gradient], count, torch.tensor(True))
            for compressor, gradient in zip(self.compressors, gradients, strict=True)
        ]
        return torch.zeros(self.size).index_add_(0, *mean_of(torch.stack(messages), count, torch.zeros(self.size)))


class Gradients(GradientReducer):
    def __init__(self, player: Trainable, config: TrainConfig, weights: list[Tensor]) -> None:
        super().__init__(player, config, weights)
        self.residuals = torch.zeros(PROCESSES, self.size)

    def update(self, gradients: list[Tensor], count: int) -> None:
        received = torch.zeros(self.size)
        for residual, gradient in zip(self.residuals, gradients, strict=True):
            residual.add_(gradient)
            indices = residual.abs().topk(count, sorted=False).indices
            received[indices] += residual[indices] / PROCESSES
            residual[indices] = 0
        self.let_adam(received)


class Sign(GradientReducer):
    def __init__(self, player: Trainable, config: TrainConfig, weights: list[Tensor]) -> None:
        super().__init__(player, config, weights)
        self.residuals, self.squares = torch.zeros(2, PROCESSES, self.size)
        self.steps = 0

    def update(self, gradients: list[Tensor], count: int) -> Tensor:
        self.steps += 1
        beta2, epsilon = self.config.optimizer.beta2, self.config.optimizer.epsilon
        received = torch.zeros(self.size)
        for residual, square, gradient in zip(self.residuals, self.squares, gradients, strict=True):
            square.lerp_(gradient.square(), (1 - beta2) / (1 - beta2**self.steps))
            residual.addcdiv_(gradient, square.sqrt() + epsilon)
            sent = residual.sign() * residual.abs().mean()
            residual.sub_(sent)
            received += sent / PROCESSES
        return received


METHODS: dict[str, type[GradientReducer]] = {"dense": AllReduceFp32, "dgc": Dgc, "gradients": Gradients, "sign": Sign}


def pieces(flat: Tensor, weights: list[Tensor]) -> Iterator[Tensor]:
    """Parts of `flat`, one in the shape of each of `weights`."""
    for part, weight in zip(torch.split(flat, [weight.numel() for weight in weights]), weights, strict=True):
        yield part.view(weight.shape)


def gradient_of(player: Trainable, terms: LossTerms) -> tuple[Tensor, list[Tensor]]:
    """The flat gradient [P] of the terms' means, and the weights that it belongs to."""
    total = torch.stack([term.mean() for term in terms.loss.values()]).sum()
    total.backward()  # type: ignore[no-untyped-call]
    weights: list[Tensor] = [weight for weight in player.network.weights if weight.grad is not None]
    flat = torch.cat([weight.grad.reshape(-1) for weight in weights if weight.grad is not None])
    player.forget_gradient()
    return flat, weights


class Training:
    """The demo, by two processes in one."""

    def __init__(self, config: TrainConfig, data: Path, method: type[GradientReducer], warm_up: WarmUp) -> None:
        self.config, self.method, self.warm_up = config, method, warm_up
        self.schedule, self.loss = config.schedule.build(), build_loss(config.loss)
        self.pyramid = ImagePyramid(data)
        self.architecture = config.model.architecture(self.schedule.final_resolution, self.pyramid.channels, 0)
        self.state: State = new_state(self.architecture, config.optimizer, config.seed, CPU)
        self.stream = RealStream(self.pyramid, config.seed, CPU, config.data.mirror, labels=False, budget=2**32)
        self.exchanges: dict[str, GradientReducer] = {}

    def run(self) -> None:
        while self.state.images < self.schedule.total:
            phase = self.schedule.at(self.state.images)
            if phase.index != self.state.phase_index:
                self.state.reset_optimizers()
                self.exchanges.clear()
            self.step(phase)
            self.state.images += phase.batch
            self.state.phase_index = phase.index

    def step(self, phase: Phase) -> None:
        """`pggan.training.step.learn`, with the gradients of the parts kept apart."""
        state, compute = self.state, ComputeOptions()
        rng = StepRng(self.config.seed, state.images, CPU)
        decay = ema_decay(self.config.average, state.images, phase.batch)
        reals = self.stream.batch(phase, rng)
        stage, inputs, dials = set_up(state, phase, reals, self.loss, rng, decay=decay, compute=compute)
        parts = micro_batches(inputs, self.architecture.stddev_group, phase.batch // PROCESSES)
        found = []
        for part in parts:
            with torch.no_grad(), cached_weights(state.g.network, compute):
                fakes = make_fakes(state, stage, part.latents_d, part.reals.labels, dials.alpha)
            with cached_weights(state.d.network, compute):
                found.append(gradient_of(state.d, d_forward(state, stage, part, dials.alpha, fakes)))
        self.train_step("D", state.d, found, phase, phase.learning_rate_d)
        found = []
        for part in parts:
            with (
                cached_weights(state.g.network, compute),
                cached_weights(state.d.network, compute),
                frozen(state.d.network),
            ):
                fakes = make_fakes(state, stage, part.latents_g, part.reals.fake_labels, dials.alpha)
                found.append(gradient_of(state.g, g_forward(state, stage, part, dials.alpha, fakes)))
        self.train_step("G", state.g, found, phase, phase.learning_rate_g)
        update_ema(state.g_ema, state.g.network, decay)

    def train_step(
        self, name: str, player: Trainable, found: list[tuple[Tensor, list[Tensor]]], phase: Phase, learning_rate: float
    ) -> None:
        gradients, weights = [gradient for gradient, _ in found], found[0][1]
        if name not in self.exchanges:
            self.exchanges[name] = self.method(player, self.config, weights)
        count = math.ceil(len(gradients[0]) * self.warm_up.ratio_at(self.state.images - phase.start))
        self.exchanges[name].apply(gradients, count, learning_rate)

    def kid(self, count: int = 512, out: str | None = None) -> float:
        """KID of `count` faces; a grid of others goes to `out`."""
        resolution = self.schedule.final_resolution
        generator = LoadedGenerator(self.state.g_ema, resolution, 1.0, self.state.images)
        stage = choose_stage(generator, resolution=None, alpha=None, truncation=1.0, label=None)
        size, extractor = self.architecture.latent_size, load_extractor()
        fakes = render(generator, seed_latents(list(range(FIRST_SEED, FIRST_SEED + count)), size), stage)
        shown = np.random.default_rng(0).permutation(self.pyramid.images)[:count]
        if out is not None:
            faces = render(generator, seed_latents(list(range(64)), size), stage)
            save_png(contact_sheet(faces, 8, 2 * resolution), Path(out))
        reals = features_of(self.pyramid.read(resolution, shown), extractor)
        return kernel_distance(features_of(fakes, extractor), reals)


def demo_config(seed: int, share: float) -> TrainConfig:
    """The demo with `share` of its images."""

    def images(name: str) -> str:
        counts = [round(count * share / 16) * 16 for count in SCHEDULE[name]]
        return f"schedule.{name}={{4: {counts[0]}, 8: {counts[1]}, 16: {counts[2]}, 32: {counts[3]}}}"

    overrides = ["experiment=demo", f"seed={seed}", images("stable_images"), images("fade_images")]
    return validated(TrainConfig, compose("train", overrides))


def train(arguments: argparse.Namespace) -> dict[str, object]:
    """Train and measure."""
    warm_up = WarmUp(ratio=arguments.ratio, images=arguments.warm_up_images)
    config = demo_config(arguments.seed, arguments.share)
    training = Training(config, Path(arguments.data), METHODS[arguments.method], warm_up)
    began = time.perf_counter()
    training.run()
    seconds = time.perf_counter() - began
    return {
        **{name: value for name, value in vars(arguments).items() if name not in ("out", "size", "rounds")},
        "images_shown": training.state.images,
        "seconds": round(seconds),
        "kid@efficientnet-lite0": training.kid(out=arguments.out),
    }


def speed(arguments: argparse.Namespace) -> dict[str, object]:
    """Milliseconds to select and to add up two messages, in turn with PyTorch's top-k and fused Adam; medians."""
    size, generator = arguments.size, torch.Generator().manual_seed(0)
    scales = torch.rand(size, generator=generator).mul_(-7).exp_()
    gradient, finite, room = torch.empty(size), torch.tensor(True), torch.zeros(size)
    found: dict[str, object] = {"size": size, "threads": torch.get_num_threads()}
    weight = torch.zeros(size, requires_grad=True)
    adam = torch.optim.Adam([weight], betas=(0.0, 0.99), fused=True)
    for ratio in (0.001, 0.01, 0.025):
        count = math.ceil(size * ratio)
        compressor = Compressor(size, beta1=0.0, beta2=0.99, epsilon=1e-8, clip=None, device=CPU)
        times: dict[str, list[float]] = {name: [] for name in ("select", "mean_of_2", "torch_topk", "fused_adam")}
        for _ in range(arguments.rounds):
            gradient.normal_(generator=generator).mul_(scales)
            marks = [time.perf_counter()]
            message = compressor.select([gradient], count, finite)
            marks.append(time.perf_counter())
            mean_of(torch.stack([message, message]), count, room)
            marks.append(time.perf_counter())
            gradient.abs().topk(count, sorted=False)
            marks.append(time.perf_counter())
            weight.grad = gradient
            adam.step()
            marks.append(time.perf_counter())
            for taken, (began, ended) in zip(times.values(), pairwise(marks), strict=True):
                taken.append(1000 * (ended - began))
        milliseconds = {name: round(statistics.median(taken), 1) for name, taken in times.items()}
        found[f"ratio {ratio}"] = {
            "message_bytes": layout(size, count)[-1],
            "dense_bytes": 4 * size,
            "ms": milliseconds,
        }
    return found


def main() -> None:
    """Print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=[*METHODS, "speed"])
    parser.add_argument("--data", help="the pyramid to train on and to compare with, up to 32x32 or more")
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--warm-up-images", type=int, default=1000)
    parser.add_argument("--share", type=float, default=0.5, help="of the demo's images (default: 0.5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="a PNG for a grid of faces")
    parser.add_argument("--size", type=int, default=23_079_115, help="parameters (default: those of G at 1024x1024)")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.method != "speed" and arguments.data is None:
        parser.error("--data is needed to train")
    print(json.dumps(speed(arguments) if arguments.method == "speed" else train(arguments), indent=1))


if __name__ == "__main__":
    main()
