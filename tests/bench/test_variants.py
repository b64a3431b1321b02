"""The variants of the step that `pggan bench` compares."""

import torch

from pggan.config import BenchConfig, ConvolutionMethod, PenaltyStrategy, Precision, Switch
from pggan.core.validation import validated
from pggan.networks.numerics import ComputeOptions
from pggan.performance.bench.variants import Variant
from tests.composed import composed


def test_every_choice_is_combined_with_every_other_and_named_by_what_is_not_auto():
    choices = ["modes=[graph,eager]", "convolutions=[auto,native]", "penalties=[jvp,auto]"]
    variants = validated(BenchConfig, composed("bench", choices)).variants()
    assert [name for name in variants if "graph" in name] == [
        f"auto graph{convolution}{penalty}" for convolution in ("", " native") for penalty in (" jvp", "")
    ]
    assert len(variants) == 8
    one, compute = variants["auto graph native jvp"], variants["auto graph native jvp"].compute
    expected = (Precision.auto, ConvolutionMethod.native, PenaltyStrategy.jvp)
    assert (one.precision, compute.convolution, compute.penalty) == expected
    assert (compute.cuda_graphs, variants["auto eager"].compute.cuda_graphs) == (Switch.on, Switch.off)


class Idle(Variant):
    """Takes no steps."""

    def begin(self):
        pass

    def step(self, phase, reals, rng):
        pass


def test_memory_of_a_variant_leaves_out_what_others_hold(monkeypatch):
    now, peak = {"bytes": 700}, {"bytes": 0}  # others hold 700

    def allocate(size):
        now["bytes"] += size
        peak["bytes"] = max(peak["bytes"], now["bytes"])

    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: now["bytes"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak["bytes"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peak.update(now))
    variant = Idle(Precision.fp32, ComputeOptions(), torch.device("cuda"))
    with variant.counted():
        allocate(50)  # the state
    allocate(1000)  # others again
    with variant.counted():
        allocate(30), allocate(-10)
    assert (variant.held, variant.peak) == (70, 80)
    allocate(-1000)
    with variant.counted():
        allocate(-20), allocate(25)
    assert (variant.held, variant.peak) == (75, 80)
