"""`pggan bench` measures every stage that is asked for."""

import json

import pytest
import torch

from pggan.cli.main import main
from pggan.core.errors import EXIT_INTERRUPTED
from pggan.performance.bench import loading
from pggan.performance.bench.steps import Steps
from pggan.training.device_rates import Rates
from pggan.training.step_cost import StepCost, StepCostEstimator

SMALL = ["model.fmap_max=8", "batch=4", "steps=1", "warmup=0", "device=cpu"]


@pytest.fixture(autouse=True)
def known_rates(monkeypatch):
    """Rates of the device, in place of measured ones: products, or copies, are the limit."""
    rates = {torch.float32: Rates(1e9, 1e12), torch.bfloat16: Rates(1e12, 1e6)}
    monkeypatch.setattr("pggan.performance.bench.steps.measured_rates", lambda device, precision, dtype: rates[dtype])


@pytest.fixture
def known_cost(monkeypatch):
    """A cost of every step, in place of a counted one."""
    monkeypatch.setattr(StepCostEstimator, "cost", lambda *_: StepCost(4_000_000, 8_000, 2**20, 100))


@pytest.mark.slow
@pytest.mark.usefixtures("known_cost")
def test_bench_shows_every_stage_in_a_table_and_writes_it_to_a_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    out = tmp_path / "results" / "bench.json"
    assert main(["bench", *SMALL, "stages=[4,8,16]", f"out={out}"]) == 0
    shown, found = [line.split() for line in capsys.readouterr().out.splitlines()], json.loads(out.read_text())
    assert ["side", "batch", "variant", "ms/step", "img/s", "TFLOP/s", "roof", "ratio", "MiB"] in shown
    assert [(row["resolution"], row["batch"]) for row in found["stages"]] == [(4, 4), (8, 4), (16, 4)]
    for row in found["stages"]:
        assert row["images_per_second"] == pytest.approx(1000 * row["batch"] / row["milliseconds_per_step"])
        assert row["teraflop_per_second"] == pytest.approx(4e-6 / (row["milliseconds_per_step"] / 1000))
        assert row["flops_per_image"] == 1_000_000
        assert "ratio" not in row
        ((name, one),) = row["variants"].items()
        figures = f"{row['milliseconds_per_step']:.1f} {row['images_per_second']:.2f} {row['teraflop_per_second']:.3f}"
        figures += f" {one['roofline_percent']:.0f}% {one['peak_memory_bytes'] / 2**20:.0f}"
        assert f"{row['resolution']} 4 {name} {figures}".split() in shown
    assert torch.__version__.startswith(found["versions"]["torch"])  # which may not name the build
    assert found["missing_stages"] == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError], ids=["Ctrl-C", "an error"])
@pytest.mark.parametrize("form", ["json=true", "json=false"])
@pytest.mark.usefixtures("known_cost")
def test_a_bench_that_is_cut_off_keeps_and_prints_the_stages_before(tmp_path, capsys, monkeypatch, error, form):
    """Written stage by stage: when the second begins, the first is in the file."""
    out, measure = tmp_path / "bench.json", Steps.measure
    found = []

    def cut_off(self, phase, *arguments):
        if phase.resolution == 16:
            raise error
        if out.exists():
            found.append(json.loads(out.read_text()))
        return measure(self, phase, *arguments)

    monkeypatch.setattr(Steps, "measure", cut_off)
    command = ["bench", *SMALL, "stages=[4,8,16,32]", form, f"out={out}"]
    if error is KeyboardInterrupt:
        assert main(command) == EXIT_INTERRUPTED
    else:
        with pytest.raises(error):
            main(command)
    shown, kept = capsys.readouterr().out, json.loads(out.read_text())
    assert [row["resolution"] for row in kept["stages"]] == [4, 8]
    assert kept["missing_stages"] == [16, 32]
    assert [([row["resolution"] for row in one["stages"]], one["missing_stages"]) for one in found] == [
        ([4], [8, 16, 32])
    ]
    assert json.loads(shown) == kept if form == "json=true" else "img/s" in shown


VARIANTS = ["fp32 eager direct jvp", "bf16 eager direct jvp"]


@pytest.mark.slow
def test_all_variants_are_compared_with_the_reference_step_and_the_rates_of_the_device(capsys):
    choices = ["penalties=[jvp]", "convolutions=[direct]", "precisions=[fp32,bf16]", "against=true", "json=true"]
    assert main(["bench", *SMALL, "stages=4", *choices]) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["stages"]
    variants = row["variants"]
    assert list(variants) == [*VARIANTS, "reference"]
    assert found["matmul_teraflop_per_second"] == {name: 1 if "bf16" in name else 0.001 for name in variants}
    assert row["ratio"] == variants[VARIANTS[0]]["ratio"]
    for name, one in variants.items():
        slower = one["moved_bytes_per_image"] / 1e6 if "bf16" in name else one["flops_per_image"] / 1e9
        milliseconds = one["milliseconds_per_step"]
        # Per image, both are rounded down to whole numbers of hundreds of thousands.
        assert one["floor_milliseconds_per_step"] == pytest.approx(1000 * row["batch"] * slower, rel=1e-3)
        assert one["roofline_percent"] == pytest.approx(100 * one["floor_milliseconds_per_step"] / milliseconds)
        assert one["ratio"] == pytest.approx(variants["reference"]["milliseconds_per_step"] / milliseconds)
    full, short = (variants[name] for name in VARIANTS)
    assert short["flops_per_image"] == full["flops_per_image"] == variants["reference"]["flops_per_image"]
    assert short["moved_bytes_per_image"] < full["moved_bytes_per_image"]
    assert variants["reference"]["peak_memory_bytes"] > 0


@pytest.mark.slow
def test_bench_data_reports_loading_beside_the_step_of_every_level(toy_data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(loading.rate, "__defaults__", (0.01,))  # seconds of measuring
    out = tmp_path / "loading.json"
    assert main(["bench", f"data={toy_data}", *SMALL, "data.batches=3", f"out={out}"]) == 0
    assert "decoded img/s per core" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert [row["resolution"] for row in found["stages"]] == [4, 8, 16]
    for row in found["stages"]:
        least = min(row["ready_images_per_second"], row["fading_images_per_second"])
        assert row["ratio"] == pytest.approx(least / row["step_images_per_second"])
        for name in ("copied", "cold", "warm"):
            assert row[f"{name}_images_per_second"] > 0
        assert row["lives_on_device"]
    assert {row["format"] for row in found["decoding"]} == {"PNG", "JPEG", "WEBP"}
    assert found["data"] == {"images": 48, "channels": 3, "resolution": 16}


def test_bench_data_refuses_what_is_not_there(toy_data, tmp_path, capsys):
    for override, hint in ((f"data={tmp_path}", "not a prepared dataset"), ("stages=[512]", "none of the stages")):
        assert main(["bench", f"data={toy_data}", override]) == 2
        assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        ("stages=[4,12]", "powers of two"),
        ("stages=[]", "for example [4,8,16]"),
        ("batch=6", "groups"),
        ("steps=0", "at least 1"),
        ("loss.reg_interval=0", "at least 1"),
        ("loss.name=nope", "nope"),
        ("penalties=[jvp,nope]", "autograd"),
        ("modes=[]", "at least one"),
        ("modes=[fast]", "compiled_graph"),
        ("modes=[eager,graph] device=cpu", "no CUDA graphs on cpu"),
        ("precisions=[fp32,tf32] device=cpu", "tf32 does not exist on cpu"),
        ("modes=[compiled] penalties=[autograd]", "autograd"),
        ("modes=[compiled] convolutions=[winograd]", "winograd"),
        ("modes=[compiled] convolutions=[im2col]", "im2col"),
        ("compute.activation_checkpointing=true penalties=[auto,jvp]", "activation_checkpointing"),
        ("compute.micro_batch_size=6", "groups"),
        ("compute.compile=true", "compute.compile"),
    ],
)
def test_bench_refuses_impossible_variants_before_it_makes_any(overrides, hint, capsys, monkeypatch):
    monkeypatch.setattr(
        "pggan.performance.bench.variants.build_trainer", None
    )  # calling it would fail otherwise than below
    assert main(["bench", *overrides.split()]) == 2
    assert hint in capsys.readouterr().err
