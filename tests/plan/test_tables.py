"""A plan as tables."""

import dataclasses

import pytest
import torch
from rich.console import Console

from pggan.performance.plan.run_time import assumed_time
from pggan.performance.plan.summary import summary, this_machine
from pggan.performance.plan.tables import Unit, prediction_table, tables


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True])
def test_the_tables_fit_into_80_columns(large, make_config, costs, capsys):
    """With the figures of a small run, and those of 1024x1024 with millions of images."""
    side, images, flops = (128, 10**5, 10**6) if large else (1, 1, 1)
    rate = "tflops=100" if large else "tflops=0.001"
    config = make_config(rate, "interconnect=10g", "processes=[1,2,64]", "gradients=dgc")
    many = [
        dataclasses.replace(
            cost,
            phase=dataclasses.replace(cost.phase, resolution=side * cost.phase.resolution),
            images=images * cost.images,
            steps=images * cost.steps,
            flops=flops * cost.flops,
            peak_bytes=flops * cost.peak_bytes // 10,
        )
        for cost in costs
    ]
    device = torch.device("cpu")
    architecture = config.model.architecture(8, 3, 0)
    spent = assumed_time(config, architecture, device, many)
    console = Console(width=80, highlight=False)
    for table in tables(summary(config, architecture, many, spent, this_machine(device))):
        console.print(table)
    shown = capsys.readouterr().out
    for part in (f"{4 * side} stable", "G for-", "gradients", "dgc 10 %", "1g, whole run", "Energy: 100 W"):
        assert part in shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_numbers_of_a_column_share_a_unit_that_fits_the_largest():
    unit = Unit([2_500_000, 12, 999_000])
    assert (unit.prefix, [unit.of(value) for value in (2_500_000, 123_456, 12)]) == ("M", ["2.5", "0.123", "0"])
    assert (Unit([3 * 2**30], base=1024).prefix, Unit([0.5]).prefix, Unit([6e18]).of(6e18)) == ("G", "", "6")


def test_the_table_of_a_prediction_fits_into_80_columns(capsys):
    """With the figures of the slowest card at 1024x1024, and those of the fastest one at 4x4."""
    figures = {"matmul": 2345.0, "other": 2345.0, "launch": 0.123, "captured": 2345.0, "eager": 2345.0}
    row = {"resolution": 1024, "fading": False, "launches": 2345, "share_of_memory": 1.0}
    row |= {f"{part}_milliseconds": milliseconds for part, milliseconds in figures.items()}
    row |= {"captured_images_per_second": 123_456.0, "eager_images_per_second": 23_456.0}
    hours = {"captured": 123 * 24, "eager": 123.4}
    prediction = {"name": "NVIDIA GeForce RTX 4090", "precision": "bf16", "phases": [row], "hours": hours}
    Console(width=80, highlight=False).print(prediction_table(prediction))
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
