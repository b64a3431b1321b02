"""The items that `benchmarks.first_gpu` measures, the most informative first.

An item is a function with a `Kit`, into which it notes figures, each beside the range in which the figure is expected.
Ranges are of one H200, and left out on other cards, except those of steps, which are predicted for each card.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch.distributed import HashStore  # type: ignore[attr-defined]

from benchmarks.gradients import BOUNDS, errors
from pggan.cli.compose import compose
from pggan.config.train import TrainConfig
from pggan.config.validation import validated
from pggan.core.architecture import Precision, Rescaling
from pggan.core.devices import DTYPES, configure_process, precision_on
from pggan.core.errors import StepFailed
from pggan.core.rng import StepRng
from pggan.core.schedule import value_at
from pggan.distributed.process_group import ProcessGroup
from pggan.losses.base import Reals
from pggan.ops import convolution, fused
from pggan.performance.bench import phase_of
from pggan.performance.costs import CARDS
from pggan.performance.recipe import GPU_BATCH
from pggan.training.build import build_trainer
from pggan.training.cuda_graphs import capture
from pggan.training.timing import EMA_DECAY, WARMUP, product_rate, seconds_of, speed_of
from pggan.training.trainer import Trainer

CALLS, STEPS, FADE = 20, 4, 1.1  # kernels in a graph, steps in each of six rounds, and how much longer fades take
SMALL = ["schedule.final_resolution=16", "model.fmap_max=16", "model.fmap_base=128"]
# {(input maps, output maps, side, batch): milliseconds of convolution, gradient of x, gradient of kernel} on one H200.
CONVOLUTIONS = {
    (16, 16, 1024, 4): (0.408, 0.472, 0.447),
    (32, 32, 512, 4): (0.113, 0.112, 0.214),
    (64, 64, 256, 4): (0.054, 0.054, 0.051),
    (128, 128, 128, 4): (0.038, 0.036, 0.041),
    (256, 256, 64, 32): (0.182, 0.181, 0.194),
    (512, 512, 32, 64): (0.372, 0.391, 0.390),
}
TINY = "debug=smoke evaluation.metrics=[] devices=cuda elastic=true compute.deterministic=true"
SHARED = "MASTER_ADDR=127.0.0.1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 NCCL_MULTI_RANK_GPU_ENABLE=1"


class Kit:
    """What all items share: the card, its networks, and the figures of the item that is being measured."""

    def __init__(self, *, small: bool) -> None:
        self.small, self.figures, self.numbers = small, dict[str, Any](), count(1)
        self.device, self.name, self.kept = torch.device("cuda", 0), torch.cuda.get_device_name(), dict[str, Trainer]()
        config = validated(TrainConfig, compose("train", ["experiment=celebahq_1024", *SMALL * small]))
        self.half = DTYPES[precision_on(self.device, Precision.auto)]
        self.settings, self.last = config.trainer_settings(), config.schedule.final_resolution
        self.architecture, auto = config.model.architecture(self.last, 3, 0), Precision.auto
        cards = (card for card in CARDS.values() if f" {card.name} " in f" {self.name} ".replace("-", " "))
        self.speed = next((card.speed(card.precision(auto)) for card in cards), None) or speed_of(self.device, auto)

    def note(self, name: str, value: Any, *expected: Any, anywhere: bool = False) -> None:
        """Note a figure, `expected` at a value or from one to another: on an H200 or, with `anywhere`, on any card."""
        known = expected and (anywhere or "H200" in self.name)
        self.figures[name] = {"measured": value, "expected": [expected[0], expected[-1]] if known else None}

    def side(self, side: int) -> int:
        """`side`, which is one of the paper's networks, or with small ones much less."""
        return max(side * self.last // 1024, 4)

    def trainer(self, **settings: Any) -> Trainer:
        """A trainer with these settings, which all items share."""
        if str(settings) not in self.kept:
            phases, alone = [phase_of(self.last, 4)], ProcessGroup.single_process(self.device)
            chosen = replace(self.settings, **settings)
            self.kept[str(settings)] = build_trainer(chosen, self.architecture, phases, alone)
        return self.kept[str(settings)]

    def step(self, side: int, batch: int, *, fading: bool = False, penalty: bool = True) -> Callable[[Trainer], object]:
        """A function that takes a step of a new phase; without a `penalty`, if these are due at every other step."""
        side, batch = self.side(side), min(batch, 8) if self.small else batch
        phase = replace(phase_of(side, batch), index=next(self.numbers), fading=fading, alpha=0.5 if fading else 1.0)
        images = 2 * torch.rand(batch, 3, side, side, device=self.device) - 1
        reals, shown = Reals(images.contiguous(memory_format=torch.channels_last), None, None), 0 if penalty else batch
        return lambda trainer: trainer.step(phase, reals, StepRng(0, shown, self.device), EMA_DECAY)

    def milliseconds(self, trainer: Trainer, step: Callable[[Trainer], object]) -> float:
        """The median time of a step, after those that warm up."""
        for _ in range(WARMUP["cuda"]):
            step(trainer)
        return 1000 * seconds_of(lambda: step(trainer), self.device, STEPS)

    def stage(self, side: int, batch: int = 0, fading: bool = False) -> float:
        """Note and return the time of a captured step, expected as predicted for this card within a tenth."""
        batch = batch or int(value_at(GPU_BATCH, side))
        taken = self.milliseconds(self.trainer(), self.step(side, batch, fading=fading))
        ms = 1000 * self.speed.seconds(self.architecture, self.side(side), batch, 1) * (FADE if fading else 1.0)
        self.note(f"{side}, N={batch}{', fade' * fading}, ms", taken, 0.9 * ms, 1.1 * ms, anywhere=True)
        self.note("memory so far, GiB", torch.cuda.max_memory_reserved() / 2**30)
        return taken


def kernel_ms(work: Callable[[], torch.Tensor]) -> float:
    """The milliseconds of one call of `work` in a CUDA graph."""
    work()
    replay, _ = capture(lambda: {str(number): work() for number in range(CALLS)})
    return 1000 * seconds_of(replay, torch.device("cuda"), 2) / CALLS


def directions(kit: Kit, name: str, *shape: int) -> list[float]:
    """The milliseconds of a 3x3 convolution and its gradients to x and kernel; `shape`: a key of CONVOLUTIONS."""
    (inputs, outputs, side, batch), algorithm = shape, getattr(convolution, name)
    options, sides = dict[str, Any](device=kit.device, dtype=kit.half), [kit.side(side)] * 2
    x, y = (torch.zeros(batch, *sides, maps, **options).permute(0, 3, 1, 2) for maps in (inputs, outputs))
    same = Rescaling.same
    kernel = algorithm.prepare(torch.zeros(outputs, inputs, 3, 3, **options), same, 1.0)
    ways = (algorithm.convolve, x, kernel, None), (algorithm.grad_input, y, kernel), (algorithm.grad_weight, x, y)
    return [kernel_ms(partial(function, *arguments, same)) for function, *arguments in ways]


def rates(kit: Kit) -> None:
    """Whether the card is alone, and the rates of a large copy and a large product."""
    free, total = torch.cuda.mem_get_info()
    kit.note("memory that others hold, GiB", (total - free) / 2**30, 0, 2, anywhere=True)
    side = 256 if kit.small else 8192
    kit.note("product, TFLOP/s", product_rate(kit.device, kit.half, side) / 1e12, 700, 820)
    source, target = torch.empty(2, 2 * side * side, device=kit.device).unbind()
    kit.note("copy, TB/s", 2 * source.nbytes / seconds_of(lambda: target.copy_(source), kit.device) / 1e12, 4.0, 4.4)


def launches(kit: Kit) -> None:
    """The time of one node of a graph, and of the fused activations of the largest maps."""
    kit.note("graph node, us", 1000 * kernel_ms(partial(torch.zeros(1, device=kit.device).add_, 1)), 1.0, 2.0)
    x = torch.zeros(4, *[kit.side(1024)] * 2, 16, device=kit.device, dtype=kit.half).permute(0, 3, 1, 2)
    bias = x.new_zeros(16)
    if fused.problem() is None:
        rows = fused.PixelSums([bias]).rows(0)
        kit.note("bias and leaky ReLU, ms", kernel_ms(lambda: fused.BiasAct.apply(x, bias, lambda: rows)), 0.05, 0.08)
        kit.note("its gradient, ms", kernel_ms(lambda: fused.bias_act_backward(x, x, rows=rows)), 0.06, 0.10)


def top_stages(kit: Kit) -> None:
    """The steps of three stages, and the kernels of a replayed step by name."""
    for side in (512, 64, 1024):
        kit.stage(side)
    trainer, step = kit.trainer(), kit.step(1024, 4)
    kit.milliseconds(trainer, step)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step(trainer)
        torch.cuda.synchronize()
    kernels: Counter[str] = Counter()
    for event in profile.key_averages():
        kernels[f"{event.key[:90]} x {event.count}"] += round(event.self_device_time_total)
    kit.note("kernels of a step at 1024, us in all", sum(kernels.values()))
    kit.note("by name", dict(kernels.most_common(40)))


def convolutions(kit: Kit) -> None:
    """3x3 convolutions and their gradients by each algorithm."""
    for (inputs, outputs, side, batch), expected in CONVOLUTIONS.items():
        for name, least, most in (("DIRECT", 0.8, 1.2), ("PACKED", 0.2, 0.9))[: 2 if inputs <= 32 else 1]:
            taken = directions(kit, name, inputs, outputs, side, batch)
            for way, one, ms in zip(("", ", to x", ", to kernel"), taken, expected, strict=True):
                kit.note(f"{inputs} to {outputs}, {side}, N={batch}, {name}{way}, ms", one, least * ms, most * ms)


def stages(*which: tuple[int, int, bool]) -> Callable[[Kit], object]:
    """The item that times these stages: resolution, batch (0: that of the official preset), and whether they fade."""
    return lambda kit: [kit.stage(*one) for one in which]


def variants(kit: Kit) -> None:
    """Steps without penalty, without CUDA graphs and in float32, as shares and multiples of captured ones in bf16."""
    usual = {side: kit.milliseconds(kit.trainer(), kit.step(side, 4 if side > 4 else 128)) for side in (1024, 4)}
    lazy = kit.trainer(loss=replace(kit.settings.loss, reg_interval=2))
    kit.note("1024, no penalty", kit.milliseconds(lazy, kit.step(1024, 4, penalty=False)) / usual[1024], 0.6, 0.76)
    eager = kit.trainer(cuda_graphs=False)
    # Without graphs, an H100 took 2.96 and 12.3 times as long with an earlier version: expect half more or less.
    kit.note("1024, no graphs", kit.milliseconds(eager, kit.step(1024, 4)) / usual[1024], 1.5, 4.5)
    kit.note("4, no graphs", kit.milliseconds(eager, kit.step(4, 128)) / usual[4], 6.0, 18.0)
    exact = kit.milliseconds(kit.trainer(precision=Precision.fp32), kit.step(1024, 4))
    kit.note("1024, fp32", exact / usual[1024], 2.3, 6.0)


def gradients(kit: Kit) -> None:
    """The errors of gradients, relative to gradients in float64."""
    torch.backends.cudnn.benchmark = False  # trying plans takes longer than these steps
    for precision, bounds in BOUNDS.items():
        cases = errors(kit.device, precision) if kit.half is torch.bfloat16 or precision != "bf16" else {}
        for case, error in cases.items():
            kit.note(f"{precision} {case}", error, 0.0, bounds[case[-1]], anywhere=True)


def bits(kit: Kit) -> None:
    """Captured steps have the bits of eager ones, if algorithms are deterministic."""
    configure_process(kit.device, deterministic=True)
    ends, step = [], kit.step(8, 8)
    for graphs in (True, False):
        trainer = kit.trainer(cuda_graphs=graphs)
        kit.milliseconds(trainer, step)
        ends.append(trainer.state.flat_weights.cpu())
    kit.note("captured steps have the bits of eager ones", torch.equal(*ends), True, anywhere=True)


def failures(kit: Kit) -> None:
    """Captures that fail, alone and after an all-reduce in the capture, and what works afterwards."""
    step = kit.step(8, 8)

    def captured(spoil: Callable[[torch.Tensor], object] | None = None) -> bool:
        kit.kept.clear()
        trainer = kit.trainer()
        take = trainer.eager_step

        def spoiled(inputs: Any) -> Any:
            metrics = take(inputs)
            if spoil is not None and torch.cuda.is_current_stream_capturing():
                spoil(metrics["D/loss"])
                metrics["D/loss"].item()  # waits, which no capture allows
            return metrics

        trainer.eager_step = spoiled  # type: ignore[method-assign]
        with suppress(StepFailed):
            kit.milliseconds(trainer, step)
        return bool(trainer.captured)

    kit.note("a spoiled capture fails", not captured(torch.abs), True, anywhere=True)
    kit.note("a later capture works", captured(), True, anywhere=True)
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1, device=kit.device))
    kit.note("a spoiled capture of an all-reduce fails", not captured(dist.all_reduce), True, anywhere=True)
    kit.note("a capture after it works", captured(), True, anywhere=True)
    dist.all_reduce(count := torch.ones(1, device=kit.device))  # an error here says that the connection was broken
    kit.note("an all-reduce after it gives", float(count), 1.0)


def ranks(kit: Kit) -> None:
    """Two ranks that share the GPU, where NCCL (from 2.30 on) allows that, end in the bits of one."""
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    kit.note("NCCL", ".".join(map(str, version)))
    if version < (2, 30):
        return
    states, shared, command = [], dict(one.split("=") for one in SHARED.split()), [sys.executable, "-m", "pggan"]
    shared["MASTER_PORT"] = str(29400 + os.getpid() % 1000)
    with TemporaryDirectory(prefix="pggan-first-gpu-") as folder:
        os.mkdir(pictures := f"{folder}/pictures")
        for number, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (64, 8, 8, 3), np.uint8)):
            Image.fromarray(pixels).save(f"{pictures}/{number}.png")
        for size in (1, 2):
            keys = [*TINY.split(), f"data.path={pictures}", f"data.cache={folder}/data", f"run_dir={folder}/run{size}"]
            own = [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)] if size > 1 else [{}]
            started = [subprocess.Popen([*command, "train", *keys], env=os.environ | each) for each in own]  # noqa: S603
            codes = [each.wait(900 if kit.small else 90) for each in started]
            kit.note(f"exit codes of {size}", codes, [0] * size, anywhere=True)
            shown = subprocess.check_output([*command, "inspect", keys[-1].replace("_dir", ""), "json=true"])  # noqa: S603
            states.append(json.loads(shown)["state_sha256"])
    kit.note("two ranks have the bits of one", states[0] == states[1], True, anywhere=True)


Items = dict[str, Callable[[Kit], object]]
ITEMS = Items(rates=rates, launches=launches, top=top_stages, convolutions=convolutions)
ITEMS["lower"] = stages(*((side, 0, False) for side in (256, 128, 32, 16, 8, 4)))
ITEMS["fades"] = stages((512, 0, True), (1024, 0, True))
ITEMS["batches"] = stages(*((1024, batch, False) for batch in (8, 16, 32)), (512, 32, False), (256, 32, False))
ITEMS |= Items(variants=variants, gradients=gradients, bits=bits, failures=failures, ranks=ranks)
# These items need a process of their own, with these environment variables.
ALONE: dict[str, dict[str, str]] = {"failures": {}, "bits": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}}
