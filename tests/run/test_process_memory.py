"""What a run says about the memory of its process."""

from types import SimpleNamespace

import pytest

from pggan.metrics.swd import SlicedWasserstein
from pggan.run import process_memory as module
from pggan.run.process_memory import BEGINNING, process_memory

GIB = 2**30


def said(monkeypatch, *, metrics=(), step_bytes=0, budget=GIB, count=512, images=300):
    pyramid = SimpleNamespace(resolution=32, channels=3, images=images, level_bytes=lambda side: images * 3 * side**2)
    config = SimpleNamespace(evaluation=SimpleNamespace(metrics=list(metrics), count=count))
    monkeypatch.setattr(module, "peak_memory", lambda device: GIB)
    monkeypatch.setattr(module, "_held_now", lambda: GIB // 2)
    line = process_memory(SimpleNamespace(config=config, pyramid=pyramid), step_bytes, budget)
    assert line.startswith("about ")
    assert line.endswith(" GiB in all")
    return float(line.split()[1]) * GIB


IMAGES = 300 * 3 * 32**2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, GIB + IMAGES),
        ({"budget": IMAGES - 1}, GIB),  # images that are not kept
        ({"step_bytes": GIB // 4}, GIB + IMAGES),  # not more than what was held for the updates that were timed
        ({"step_bytes": 2 * GIB}, 2.5 * GIB + IMAGES),
        ({"metrics": ["swd"]}, GIB + IMAGES + SlicedWasserstein.temporary_bytes(300, 32, 3)),
        ({"metrics": ["swd", "ms_ssim"], "count": 100}, GIB + IMAGES + SlicedWasserstein.temporary_bytes(100, 32, 3)),
    ],
)
def test_the_process_holds_what_it_held_and_what_is_to_come(monkeypatch, options, expected):
    assert said(monkeypatch, **options) == pytest.approx(expected + BEGINNING, abs=0.005 * GIB)


def test_the_system_says_what_a_process_holds():
    assert module._held_now() > 2**24
