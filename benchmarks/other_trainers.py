"""The CPU step beside those of two other trainers of the same networks, in turn, from checkouts of their code.

    git clone https://github.com/facebookresearch/pytorch_GAN_zoo ../pytorch_GAN_zoo
    git clone https://github.com/akanimax/pro_gan_pytorch ../pro_gan_pytorch
    python -m benchmarks.other_trainers --gan-zoo ../pytorch_GAN_zoo --pro-gan ../pro_gan_pytorch

Each trainer is a process of its own, with networks of the paper's widths up to the stage's resolution and its own
update of D, of G and of the average: WGAN-GP with drift and the penalty at every update, Adam, float32, images in
memory.  Prints JSON: medians of the seconds per step, and `factor`, the best other's by ours.  Nothing else should run.
"""

import argparse
import builtins
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from statistics import median
from typing import IO, Any, cast

import torch
from torch import Tensor

from pggan.cli.compose import compose
from pggan.config.train import TrainConfig
from pggan.config.validation import validated
from pggan.core.devices import configure_process
from pggan.core.process import available_cores, processor_facts
from pggan.core.rng import StepRng
from pggan.distributed.process_group import ProcessGroup
from pggan.losses.base import Reals
from pggan.performance.bench import phase_of
from pggan.training.build import build_trainer

CPU = torch.device("cpu")
EMA_DECAY = 0.999
OURS, GAN_ZOO, PRO_GAN = "pggan", "pytorch_GAN_zoo", "pro_gan_pytorch"
STAGES = {4: 16, 8: 16, 16: 16, 32: 16, 64: 4}  # batches, by resolution
STEPS = {4: 8, 8: 3}  # of a round; elsewhere one
Step = Callable[[Tensor], object]


def our_step(resolution: int, batch: int, checkout: Path | None, threads: int) -> Step:
    """That of `pggan train experiment=paper`, with the default kernels."""
    config = validated(TrainConfig, compose("train", ["experiment=paper", f"threads={threads}"]))
    configure_process(CPU, threads)
    phase, group = phase_of(resolution, batch), ProcessGroup.single_process(CPU)
    architecture = config.model.architecture(resolution, 3, num_classes=0)
    trainer = build_trainer(config.trainer_settings(), architecture, [phase], group)
    shown = 0

    def step(reals: Tensor) -> None:
        nonlocal shown
        trainer.step(phase, Reals(reals, None, None), StepRng(0, shown, CPU), EMA_DECAY)
        shown += batch

    return step


def gan_zoo_step(resolution: int, batch: int, checkout: Path | None, threads: int) -> Step:
    """That of pytorch_GAN_zoo's ProgressiveGAN with its configuration for CelebA-HQ."""
    torch.set_num_threads(threads)
    sys.path.insert(0, str(checkout))
    adam = torch.optim.Adam
    # Its betas are [0, 0.99], which PyTorch refuses today: both have to be fractional numbers.
    torch.optim.Adam = lambda parameters, betas, lr: adam(parameters, lr=lr, betas=(0.0, 0.99))  # type: ignore[assignment, misc]
    from models.progressive_gan import ProgressiveGAN  # type: ignore[import-not-found]

    gan = ProgressiveGAN(miniBatchStdDev=True, lambdaGP=10.0, epsilonD=0.001, useGPU=False)
    for level in widths(resolution)[1:]:
        gan.addScale(level)
    return cast(Step, gan.optimizeParameters)  # its alpha of 0 is a level that has grown


def pro_gan_step(resolution: int, batch: int, checkout: Path | None, threads: int) -> Step:
    """That of pro_gan_pytorch's ProGAN, whose widths are half of the official code's elsewhere."""
    torch.set_num_threads(threads)
    sys.path.insert(0, str(checkout))
    builtins.Tuple = tuple  # type: ignore[attr-defined]  # networks.py takes it for imported
    from pro_gan_pytorch import custom_layers, networks  # type: ignore[import-not-found]
    from pro_gan_pytorch.gan import ProGAN  # type: ignore[import-not-found]
    from pro_gan_pytorch.losses import WganGP  # type: ignore[import-not-found]

    networks.nf = lambda stage: widths(2 ** (stage + 1))[-1]
    # PyTorch asks for one more argument today; no layer of these networks pads its output.
    custom_layers.EqualizedConvTranspose2d._output_padding = lambda *_: (0, 0)
    depth = resolution.bit_length() - 1
    gan = ProGAN(networks.Generator(depth), networks.Discriminator(depth))
    of_g, of_d = (torch.optim.Adam(each.parameters(), 0.001, (0.0, 0.99)) for each in (gan.gen, gan.dis))
    loss = WganGP()

    def step(reals: Tensor) -> None:
        latents = torch.randn(batch, gan.latent_size)
        gan.optimize_discriminator(loss, of_d, latents, reals, depth, 1.0)
        custom_layers.update_average(gan.gen_shadow, gan.gen, EMA_DECAY)
        gan.optimize_generator(loss, of_g, latents, reals, depth, 1.0)

    return step


STEP_MAKERS = {OURS: our_step, GAN_ZOO: gan_zoo_step, PRO_GAN: pro_gan_step}


def widths(resolution: int) -> list[int]:
    """The paper's feature maps at 4x4, 8x8 … up to `resolution`."""
    config = validated(TrainConfig, compose("train", ["experiment=paper"]))
    architecture = config.model.architecture(max(resolution, 4), 3, num_classes=0)
    return [architecture.width(side) for side in architecture.resolutions]


def serve(arguments: argparse.Namespace) -> None:
    """Take as many steps as each line read says, and print the seconds of one."""
    resolution, batch = arguments.stage
    with redirect_stdout(sys.stderr):  # they print their networks
        step = STEP_MAKERS[arguments.serve](resolution, batch, arguments.checkout, arguments.threads)
        images = torch.rand(batch, 3, resolution, resolution) * 2 - 1
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(int(line)):
            step(images)
        print((time.perf_counter() - began) / int(line), flush=True)


class Server:
    """The process of one trainer at one stage."""

    def __init__(self, name: str, checkout: Path | None, stage: tuple[int, int], threads: int) -> None:
        sizes = [f"--threads={threads}", "--stage", *map(str, stage)]
        words = [f"--serve={name}", *sizes, *([f"--checkout={checkout}"] if checkout else [])]
        command, pipe = [sys.executable, "-m", "benchmarks.other_trainers", *words], subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)  # noqa: S603

    def seconds(self, steps: int) -> float:
        """The seconds of a step, of so many that are taken now."""
        requests, answers = cast(IO[str], self.process.stdin), cast(IO[str], self.process.stdout)
        requests.write(f"{steps}\n")
        requests.flush()
        return float(answers.readline())


def race(stage: tuple[int, int], checkouts: dict[str, Path | None], threads: int, rounds: int) -> dict[str, Any]:
    """The row of a stage: a round warms up and does not count."""
    steps = STEPS.get(stage[0], 1)
    with ExitStack() as stack:
        servers = {name: Server(name, checkout, stage, threads) for name, checkout in checkouts.items()}
        for server in servers.values():
            stack.enter_context(server.process)
            stack.callback(server.process.kill)
        taken = [{name: server.seconds(steps) for name, server in servers.items()} for _ in range(rounds + 1)][1:]
    seconds = {name: median(one[name] for one in taken) for name in servers}
    others = [each for name, each in seconds.items() if name != OURS]
    row = {"resolution": stage[0], "batch": stage[1], "seconds": seconds, "rounds": taken}
    return row | ({"factor": min(others) / seconds[OURS]} if others else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gan-zoo", type=Path, help="a checkout of pytorch_GAN_zoo")
    parser.add_argument("--pro-gan", type=Path, help="a checkout of pro_gan_pytorch")
    parser.add_argument("--resolutions", type=int, nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", choices=STEP_MAKERS, help=argparse.SUPPRESS)
    parser.add_argument("--stage", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--checkout", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments)
        return
    given = {OURS: None, GAN_ZOO: arguments.gan_zoo, PRO_GAN: arguments.pro_gan}
    checkouts = {name: path for name, path in given.items() if path is not None or name == OURS}
    rows = [
        race((side, STAGES[side]), checkouts, arguments.threads, arguments.rounds) for side in arguments.resolutions
    ]
    about = {"processor": processor_facts()["model name"], "threads": arguments.threads, "torch": torch.__version__}
    print(found := json.dumps({**about, "stages": rows}, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(found + "\n")


if __name__ == "__main__":
    main()
