"""What compressed gradients do to training: `python -m benchmarks.compression METHOD --data PYRAMID`.

Trains the demo's networks as two ranks would, in one process: each half of every batch (whole groups of minibatch
stddev) gives a gradient of its own, and what becomes of the two is the METHOD:

fp32       Adam of their mean
dgc        the messages of two `pggan.optim.compression.Compressor`s
gradients  top-k of gradients with error feedback, then Adam of what was received: the obvious way, for comparison
sign       all signs of Adam's updates and their mean size, with error feedback: one bit per parameter

Prints JSON with the KID (see `pggan evaluate`) after `--share` of the demo's schedule; `--out` gets a grid of faces.
With METHOD `speed`: what a message costs on this machine, for `--size` parameters.
"""

import argparse
import json
import math
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from pggan.checkpoints.generator_file import LoadedGenerator
from pggan.cli.compose import compose
from pggan.config import OptimizerConfig, TrainConfig
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.core.validation import validated
from pggan.data.pyramid import ImagePyramid
from pggan.data.reals import RealBatches
from pggan.distributed.process_group import ProcessGroup
from pggan.losses import build_loss
from pggan.losses.base import LossTerms
from pggan.metrics.evaluate import evaluate
from pggan.metrics.extractors import load_extractor
from pggan.networks.networks import use_options
from pggan.networks.numerics import ComputeOptions
from pggan.optim.compression import Compressor, layout, mean_of, share_to_send
from pggan.optim.ema import ema_decay, update_ema
from pggan.optim.state import State, Trainable, new_state
from pggan.sampling.output.images import contact_sheet, save_png
from pggan.sampling.trained_generator import TrainedGenerator
from pggan.training.inputs import draw_inputs, split_into_micro_batches
from pggan.training.passes import Passes

RANKS = 2
CPU = torch.device("cpu")
SCHEDULE = {"stable_images": (1500, 2500, 5000, 43500), "fade_images": (0, 1500, 3000, 5000)}  # of the demo


class Method(ABC):
    """How one network is updated from the gradients of all ranks."""

    def __init__(self, trainable: Trainable, config: TrainConfig, weights: list[Tensor]) -> None:
        """Args: weights: those of `trainable` that have gradients in this phase."""
        self.trainable = trainable
        self.config = config
        self.weights = weights
        self.size = sum(weight.numel() for weight in weights)

    @abstractmethod
    def update(self, gradients: list[Tensor], count: int) -> Tensor | None:
        """What to descend in units of the learning rate; or None, after setting the gradient for Adam."""

    def apply(self, gradients: list[Tensor], count: int, learning_rate: float) -> None:
        """Change the weights."""
        update = self.update(gradients, count)
        if update is None:
            step(self.trainable, learning_rate)
            return
        with torch.no_grad():
            for weight, change in zip(self.weights, pieces(update, self.weights), strict=True):
                weight.sub_(change, alpha=learning_rate)

    def let_adam(self, gradient: Tensor) -> None:
        for weight, piece in zip(self.weights, pieces(gradient, self.weights), strict=True):
            weight.grad = torch.empty_like(weight).copy_(piece)


class Fp32(Method):
    def update(self, gradients: list[Tensor], count: int) -> None:
        self.let_adam(torch.stack(gradients).mean(0))


class Dgc(Method):
    def __init__(self, trainable: Trainable, config: TrainConfig, weights: list[Tensor]) -> None:
        super().__init__(trainable, config, weights)
        self.compressors = [Compressor(self.size, config.optimizer, None, CPU) for _ in range(RANKS)]

    def update(self, gradients: list[Tensor], count: int) -> Tensor:
        messages = [
            compressor.select([gradient], count, torch.tensor(True))
            for compressor, gradient in zip(self.compressors, gradients, strict=True)
        ]
        return torch.zeros(self.size).index_add_(0, *mean_of(torch.stack(messages), count, torch.zeros(self.size)))


class Gradients(Method):
    def __init__(self, trainable: Trainable, config: TrainConfig, weights: list[Tensor]) -> None:
        super().__init__(trainable, config, weights)
        self.residuals = torch.zeros(RANKS, self.size)

    def update(self, gradients: list[Tensor], count: int) -> None:
        received = torch.zeros(self.size)
        for residual, gradient in zip(self.residuals, gradients, strict=True):
            residual.add_(gradient)
            indices = residual.abs().topk(count, sorted=False).indices
            received[indices] += residual[indices] / RANKS
            residual[indices] = 0
        self.let_adam(received)


class Sign(Method):
    def __init__(self, trainable: Trainable, config: TrainConfig, weights: list[Tensor]) -> None:
        super().__init__(trainable, config, weights)
        self.residuals, self.squares = torch.zeros(2, RANKS, self.size)
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
            received += sent / RANKS
        return received


METHODS: dict[str, type[Method]] = {"fp32": Fp32, "dgc": Dgc, "gradients": Gradients, "sign": Sign}


def pieces(flat: Tensor, weights: list[Tensor]) -> Iterator[Tensor]:
    """Parts of `flat`, one in the shape of each of `weights`."""
    for part, weight in zip(torch.split(flat, [weight.numel() for weight in weights]), weights, strict=True):
        yield part.view(weight.shape)


def gradient_of(trainable: Trainable, terms: LossTerms) -> tuple[Tensor, list[Tensor]]:
    """The flat gradient [P] of the terms' means, and the weights that it belongs to."""
    total = torch.stack([term.mean() for term in terms.loss.values()]).sum()
    total.backward()  # type: ignore[no-untyped-call]
    weights: list[Tensor] = [weight for weight in trainable.network.weights if weight.grad is not None]
    flat = torch.cat([weight.grad.reshape(-1) for weight in weights if weight.grad is not None])
    trainable.zero_grad()
    return flat, weights


def step(trainable: Trainable, learning_rate: float) -> None:
    """One step of the optimizer, with the gradient that is set."""
    finite = torch.tensor(True)
    trainable.prepare_update(learning_rate, finite)
    trainable.optimizer.step()
    trainable.finish_update(finite)


class Training:
    """The demo, by two processes in one."""

    def __init__(self, config: TrainConfig, data: Path, method: type[Method], share: Callable[[int], float]) -> None:
        self.config, self.method, self.share = config, method, share
        self.schedule, self.loss = config.schedule.build(), build_loss(config.loss)
        self.pyramid = ImagePyramid(data)
        self.architecture = config.model.architecture(self.schedule.final_resolution, self.pyramid.channels, 0)
        self.state: State = new_state(self.architecture, config.optimizer, config.seed, CPU)
        self.stream = RealBatches(self.pyramid, config.seed, CPU, config.data.mirror, labels=False, budget=2**32)
        self.methods: dict[str, Method] = {}

    def run(self) -> None:
        while self.state.images < self.schedule.total:
            phase = self.schedule.at(self.state.images)
            if phase.index != self.state.phase_index:
                self.state.reset_optimizers()
                self.methods.clear()
            self.step(phase)
            self.state.images += phase.batch
            self.state.phase_index = phase.index

    def step(self, phase: Phase) -> None:
        """`pggan.training.step.train_step`, with the gradients of the micro-batches kept apart."""
        state = self.state
        rng = StepRng(self.config.seed, state.images, CPU)
        inputs = draw_inputs(
            phase,
            self.stream.batch(phase, rng),
            self.loss,
            rng,
            latent_size=self.architecture.latent_size,
            ema_decay=ema_decay(self.config.ema, state.images, phase.batch),
            options=ComputeOptions(micro_batch_size=phase.batch // RANKS),
        )
        options, passes = inputs.spec.options, Passes()
        micro_batches = split_into_micro_batches(inputs, self.architecture.stddev_group)
        found = []
        for micro_batch in micro_batches:
            with torch.no_grad(), use_options(state.g.network, options):
                fakes = passes.fakes_for_d(state, micro_batch)
            with use_options(state.d.network, options):
                found.append(gradient_of(state.d, passes.d_terms(state, micro_batch, fakes)))
        self.update("D", state.d, found, phase, phase.learning_rate_d)
        found = []
        for micro_batch in micro_batches:
            d_options = use_options(state.d.network, options, frozen=True)
            with use_options(state.g.network, options), d_options:
                fakes = passes.fakes_for_g(state, micro_batch)
                found.append(gradient_of(state.g, passes.g_terms(state, micro_batch, fakes)))
        self.update("G", state.g, found, phase, phase.learning_rate_g)
        update_ema(state.g_ema, state.g.network, inputs.ema_decay)

    def update(
        self,
        name: str,
        trainable: Trainable,
        found: list[tuple[Tensor, list[Tensor]]],
        phase: Phase,
        learning_rate: float,
    ) -> None:
        gradients, weights = [gradient for gradient, _ in found], found[0][1]
        if name not in self.methods:
            self.methods[name] = self.method(trainable, self.config, weights)
        count = math.ceil(len(gradients[0]) * self.share(self.state.images - phase.start))
        self.methods[name].apply(gradients, count, learning_rate)

    def kid(self, count: int = 512, out: str | None = None) -> dict[str, float]:
        """KID of `count` faces, under its full name, and its floor; a grid of others goes to `out`."""
        resolution = self.schedule.final_resolution
        generator = TrainedGenerator(LoadedGenerator(self.state.g_ema, resolution, 1.0, self.state.images))
        device = torch.device("cpu")
        extractor = load_extractor("efficientnet-lite0", None, device)
        if out is not None:
            faces = generator.render(generator.latents(range(64)))
            save_png(contact_sheet(faces, 8, 2 * resolution), Path(out))
        found = evaluate(
            generator,
            generator.settings(),
            self.pyramid,
            ["kid"],
            extractor=extractor,
            count=count,
            first_seed=10_000,  # not among the faces that people look at
            group=ProcessGroup.single_process(device),
        )
        return found.values


def demo_config(seed: int, share: float) -> TrainConfig:
    """The demo with `share` of its images."""

    def images(name: str) -> str:
        counts = [round(count * share / 16) * 16 for count in SCHEDULE[name]]
        return f"schedule.{name}={{4: {counts[0]}, 8: {counts[1]}, 16: {counts[2]}, 32: {counts[3]}}}"

    overrides = ["experiment=demo", f"seed={seed}", images("stable_images"), images("fade_images")]
    return validated(TrainConfig, compose("train", overrides))


def train(arguments: argparse.Namespace) -> dict[str, object]:
    """Train and measure."""
    share = partial(share_to_send, arguments.ratio, arguments.warmup_images)
    config = demo_config(arguments.seed, arguments.share)
    training = Training(config, Path(arguments.data), METHODS[arguments.method], share)
    began = time.perf_counter()
    training.run()
    seconds = time.perf_counter() - began
    return {
        **{name: value for name, value in vars(arguments).items() if name not in ("out", "size", "rounds")},
        "images_shown": training.state.images,
        "seconds": round(seconds),
        **training.kid(out=arguments.out),
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
        compressor = Compressor(size, OptimizerConfig(), None, CPU)
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
            "fp32_bytes": 4 * size,
            "ms": milliseconds,
        }
    return found


def main() -> None:
    """Print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=[*METHODS, "speed"])
    parser.add_argument("--data", help="the pyramid to train on and to compare with, up to 32x32 or more")
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--warmup-images", type=int, default=1000)
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
