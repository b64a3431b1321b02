"""Part 10: images of the largest level arrive faster than the step takes them."""

from collections.abc import Iterator

import numpy as np

from benchmarks.first_gpu.context import Context, Item, Judgement
from benchmarks.first_gpu.record import Figures
from pggan.data.writer import write_pyramid
from pggan.performance.bench.loading import measure_loading
from pggan.performance.bench.steps import phase_of

BATCHES = 10
MIN_RATIO = 3.0


def items(context: Context) -> Iterator[Item]:
    """The largest level, from the page cache of the system: nothing of it stays on the device."""
    yield "streaming", lambda: stream(context)


def stream(context: Context) -> Figures:
    """Images per second of a synthetic dataset."""
    side, batch, images = (16, 4, 16) if context.small else (1024, 4, 32)
    random = np.random.default_rng(0)
    pixels = [random.integers(0, 256, (side, side, 3), dtype=np.uint8) for _ in range(images)]
    pyramid = write_pyramid(context.folder / "streaming", pixels, {"kind": "random"})
    return measure_loading(pyramid, phase_of(side, batch), context.device, BATCHES, budget=0)


def judge(context: Context, found: dict[str, Figures]) -> Judgement:
    """The rate beside that of the captured step at the same resolution."""
    rate = found["streaming"]["ready_images_per_second"]
    step = context.record.items("stages").get("graph 1024", {}).get("images_per_second")
    if context.small or step is None:
        return Judgement(f"{rate:.0f} img/s")
    return Judgement(
        f"{rate:.0f} img/s, {rate / step:.1f} times the step", f"{MIN_RATIO:g} times", rate >= MIN_RATIO * step
    )
